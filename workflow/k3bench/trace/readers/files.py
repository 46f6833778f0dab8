"""Opening a trace file without trusting it: what it is by its first bytes, and bounded decompression.

In: a path. Out: its kind, its digest, its plain bytes or a temporary plain file. Out of scope: what is inside.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from k3bench.errors import TraceError

Kind = Literal["sqlite", "json", "nsys_rep", "qdstrm", "unknown"]
#: No decode trace worth analysing in one piece is larger; a small file that unpacks to more is not one.
MAX_PLAIN_BYTES = 16 * 1024**3
#: what is held in memory at once
MAX_IN_MEMORY_BYTES = 6 * 1024**3
_CHUNK = 4 * 1024 * 1024
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_SQLITE = b"SQLite format 3\x00"


def kind_of(path: Path) -> Kind:
    """Decided by content; the name only tells Nsight reports and streams apart, which share no magic we rely on."""
    with opened(path) as file:
        head = _read(file, path, 4096)
    if head.startswith(_SQLITE):
        return "sqlite"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        return "json"
    suffixes = path.name.lower()
    if suffixes.endswith(".nsys-rep"):
        return "nsys_rep"
    return "qdstrm" if suffixes.endswith(".qdstrm") else "unknown"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, decompressed on the fly where its first bytes say gzip or xz."""
    try:
        with path.open("rb") as raw:
            magic = raw.read(6)
            raw.seek(0)
            if magic.startswith(_GZIP):
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            elif magic == _XZ:
                with lzma.LZMAFile(raw) as unpacked_xz:
                    yield unpacked_xz
            else:
                yield raw
    except OSError as error:
        raise TraceError(f"cannot read the trace: {error}", where=str(path), fix=_COPY_AGAIN) from None


_COPY_AGAIN = "copy or export the file again; a trace that was cut off while it was written cannot be analysed"


def _read(file: IO[bytes], path: Path, size: int = -1) -> bytes:
    try:
        return file.read(size)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"the compressed file is damaged or cut off: {error}", where=str(path), fix=_COPY_AGAIN
        ) from None


def chunks(path: Path, limit: int = MAX_PLAIN_BYTES) -> Iterator[bytes]:
    """The plain content in pieces, never more than `limit` bytes in all."""
    done = 0
    with opened(path) as file:
        while piece := _read(file, path, _CHUNK):
            done += len(piece)
            if done > limit:
                raise _too_large(path, limit)
            yield piece


def _too_large(path: Path, limit: int) -> TraceError:
    fix = "profile fewer steps, or export only the time range of some hundred steps"
    return TraceError(f"holds more than {limit:,} bytes when unpacked", where=str(path), fix=fix)


def plain_bytes(path: Path, limit: int = MAX_IN_MEMORY_BYTES) -> tuple[bytes | bytearray, str, int]:
    """(plain content, sha256 and size of the file as it lies on disk); a plain file is held once and read once."""
    if is_packed(path):
        unpacked = bytearray()
        for piece in chunks(path, limit):
            unpacked += piece
        return (unpacked, *digest_of_file(path))
    if path.stat().st_size > limit:
        raise _too_large(path, limit)
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest(), len(content)


def is_packed(path: Path) -> bool:
    """Compressed, by its first bytes."""
    with path.open("rb") as file:
        return file.read(6).startswith((_GZIP, _XZ))


@contextmanager
def plain_file(path: Path, limit: int = MAX_PLAIN_BYTES) -> Iterator[Path]:
    """A path with the plain content: the file itself, or a temporary copy that is gone afterwards."""
    if not is_packed(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="k3bench-trace-") as folder:
        copy = Path(folder) / "plain"
        with copy.open("wb") as out:
            for piece in chunks(path, limit):
                _write(out, piece, path)
        yield copy


def _write(out: IO[bytes], piece: bytes, path: Path) -> None:
    try:
        out.write(piece)
    except OSError as error:
        what = f"cannot unpack: {error.strerror or error}"
        raise TraceError(what, where=str(path), fix="free space for temporary files, or set TMPDIR") from None


def digest_of_file(path: Path) -> tuple[str, int]:
    """(sha256, size) of the file as it lies on disk."""
    sha, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            sha.update(piece)
            size += len(piece)
    return sha.hexdigest(), size
