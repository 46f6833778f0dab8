"""A checkpoint's safetensors in, the weights of a built model filled; and the other way, for a model that is whole.

The names and formats are the checkpoint's own: BF16 or F32 tensors, routed experts as MXFP4 (nibbles and E8M0 scales),
`A_log` padded with zeros to a multiple of 128. Every tensor is checked before the first is copied; what is missing, not
known, or of another shape or type is named. Out of scope: vision tensors (skipped), downloading, quantising.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from k3model.config import K3Config
from k3model.decode import K3
from k3model.errors import CheckpointError
from k3model.mxfp4 import GROUP, dequantise
from k3model.weights import Part

#: The text decoder's names; a multimodal checkpoint holds others beside them.
PREFIX = "language_model."
INDEX = "model.safetensors.index.json"
A_LOG_MULTIPLE = 128
_EXPERT = re.compile(r"(.*\.layers\.(\d+)\.block_sparse_moe)\.experts\.(\d+)\.(w[123])\.weight(_packed|_scale)?")
#: Layer 0 has nothing to mix before its attention; a checkpoint may carry the pair all the same.
_UNUSED = re.compile(re.escape(PREFIX) + r"model\.layers\.0\.self_attention_res_(norm|proj)\.weight")


@dataclass(frozen=True)
class Source:
    """Where one part's values come from: one tensor, or packed nibbles and scales to dequantise."""

    part: Part
    name: str
    scale: str | None = None

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each tensor needed, with its full shape."""
        if self.scale is None:
            yield self.name, self.part.full_shape
        else:
            rows, columns = self.part.full_shape
            yield self.name, (rows, columns // 2)
            yield self.scale, (rows, columns // GROUP)


class Files:
    """The tensors of a folder, opened but not read."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._of: dict[str, Any] = {}
        for path in _files(folder):
            opened = _open(path, stack)
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                self._of[name] = opened
        self.names = frozenset(self._of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the values."""
        return tuple(self._of[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As the file spells it: BF16, F32, U8."""
        return str(self._of[name].get_slice(name).get_dtype())

    def read(self, name: str, dim: int | None = None, start: int = 0, size: int = 0) -> torch.Tensor:
        """A tensor, or a share of it along one dimension."""
        if dim is None:
            return self._of[name].get_tensor(name)
        cut = slice(start, start + size)
        return self._of[name].get_slice(name)[(slice(None),) * dim + (cut,)]


def load(model: K3, folder: Path) -> None:
    """Fill the model's weights from a checkpoint folder. Raises `CheckpointError` naming a tensor, before any copy."""
    with ExitStack() as stack:
        files = Files(folder, stack)
        sources = [_source(part, files) for part in model.weights.parts.values()]
        _check_names(model, sources, files)
        for source in sources:
            _check_form(source, files)
        with torch.no_grad():
            for source in sources:
                _copy(source, files)
            model.prepare()


def save(model: K3, folder: Path, *, shards: int = 1) -> None:
    """Write a whole model (one rank, every expert) as a checkpoint: MXFP4 experts as bytes, the rest in its dtype."""
    if model.config.tp_size != 1 or model.config.local_experts != model.config.experts:
        raise CheckpointError(
            "one rank's share is no checkpoint", where=model.config.name, fix="save a model built with tp_size=1"
        )
    tensors = {name: _padded(part) for name, part in model.weights.parts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    places: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        chosen = names[shard::shards]
        save_file({name: tensors[name] for name in chosen}, folder / file)
        places |= dict.fromkeys(chosen, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}, indent=1, sort_keys=True))


def _files(folder: Path) -> list[Path]:
    """The files of the index, or every safetensors file."""
    index = folder / INDEX
    if not index.exists():
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise CheckpointError("no safetensors here", where=str(folder), fix="name the folder of the checkpoint")
        return found
    try:
        named = {str(file) for file in json.loads(index.read_text())["weight_map"].values()}
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint index: {error}", where=str(index)) from None
    for file in named:
        if "/" in file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{file!r} is no file of this folder", where=str(index))
    return [folder / file for file in sorted(named)]


def _open(path: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read: {error}", where=str(path), fix="fetch the file again") from None


def _source(part: Part, files: Files) -> Source:
    """A plain expert of the model may lie packed in the checkpoint; the other way round nothing fits."""
    packed, scale = f"{part.name}_packed", f"{part.name}_scale"
    if part.name not in files.names and _EXPERT.fullmatch(part.name) and packed in files.names:
        return Source(part, packed, scale)
    if part.kind != "plain" and part.name not in files.names and _plain_name(part.name) in files.names:
        raise CheckpointError(
            f"{_plain_name(part.name)} is plain, but the model wants MXFP4",
            where=str(files.folder),
            fix="build with expert_weights=bf16",
        )
    return Source(part, part.name)


def _plain_name(name: str) -> str:
    return name.removesuffix("_packed").removesuffix("_scale")


def _check_names(model: K3, sources: list[Source], files: Files) -> None:
    wanted = {name for source in sources for name, _ in source.shapes()}
    _refuse("missing from the checkpoint", wanted - files.names, files, "fetch the files again, or choose its preset")
    extra = {
        name for name in files.names - wanted if name.startswith(PREFIX) and not _known(name, model.config, wanted)
    }
    _refuse("not known to this model", extra, files, "choose the preset that this checkpoint belongs to")


def _known(name: str, config: K3Config, wanted: set[str]) -> bool:
    """Not needed by this rank, but part of its model: experts held elsewhere, the pair that layer 0 never uses."""
    if _UNUSED.fullmatch(name):
        return True
    match = _EXPERT.fullmatch(name)
    return bool(match) and int(match[3]) < config.experts and f"{match[1]}.gate.weight" in wanted  # type: ignore[index]


def _refuse(what: str, names: Iterable[str], files: Files, fix: str) -> None:
    found = sorted(names)
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise CheckpointError(f"{found[0]} is {what}{more}", where=str(files.folder), fix=fix)


def _check_form(source: Source, files: Files) -> None:
    bytes_wanted = source.scale is not None or source.part.kind != "plain"
    for name, expected in source.shapes():
        found, dtype = files.shape(name), files.dtype(name)
        is_padded = name.endswith(".A_log") and len(found) == 1 and found[0] == _rounded_up(expected[0])
        if found != expected and not is_padded:
            raise CheckpointError(f"{name} has shape {list(found)}, not {list(expected)}", where=str(files.folder))
        if (dtype == "U8") != bytes_wanted or dtype not in ("U8", "BF16", "F16", "F32", "F64"):
            kind = "bytes (U8)" if bytes_wanted else "floating-point values"
            raise CheckpointError(f"{name} holds {dtype}, not {kind}", where=str(files.folder))
        if is_padded and files.read(name)[expected[0] :].any():
            raise CheckpointError(f"{name} is not zero past its {expected[0]} heads", where=str(files.folder))


def _copy(source: Source, files: Files) -> None:
    part, view = source.part, source.part.view
    if source.scale is not None:
        values = dequantise(files.read(source.name), files.read(source.scale), view.dtype)
    elif part.name.endswith(".A_log"):
        values = files.read(source.name)[part.start : part.start + view.shape[0]]
    else:
        values = files.read(source.name, part.dim, part.start, view.shape[part.dim] if part.dim is not None else 0)
    view.copy_(values.reshape(view.shape))


def _padded(part: Part) -> torch.Tensor:
    """The part as the checkpoint holds it."""
    values = part.view.reshape(part.full_shape).detach().cpu().contiguous().clone()
    if not part.name.endswith(".A_log"):
        return values
    return torch.nn.functional.pad(values, (0, _rounded_up(len(values)) - len(values)))


def _rounded_up(heads: int) -> int:
    return -(-heads // A_LOG_MULTIPLE) * A_LOG_MULTIPLE
