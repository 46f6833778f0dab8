"""The ops of a decode step, once in readable torch (the twins) and once in Triton; a model runs on one of the two.

    ops = choose(config, device);  y = ops.linear(x, weight)

Every kernel stands beside its twin, with the same arguments: `f(..., pdl=False)` launches it, `f_twin(...)` says what
it computes. No kernel uses atomics or tunes itself at run time, and every call makes its own outputs and scratch, so
that two streams share none and the same inputs give the same bits whatever runs beside them.
Out of scope: the order of ops (`decode.py` and the layers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.config import K3Config
from k3model.errors import DeviceError
from k3model.kernels import attention, gemv, kda, language, mla, moe, norm
from k3model.pointwise import linear_wide

Op = Callable[..., Any]


@dataclass(frozen=True)
class Ops:
    """One implementation of every op that has two. Signatures are those of the twins."""

    linear: Op
    linear_wide: Op
    norm_linear: Op
    situ_linear: Op
    add_mix_norm: Op
    keep: Op
    kda_stage: Op
    kda_step: Op
    latent_row: Op
    absorb: Op
    append: Op
    attend: Op
    combine: Op
    pick: Op
    experts: Op | None  # the twins' way to visit experts depends on what is known of the hits (`k3model/experts.py`)


TWINS = Ops(
    linear=F.linear,
    linear_wide=linear_wide,
    norm_linear=gemv.norm_linear_twin,
    situ_linear=gemv.situ_linear_twin,
    add_mix_norm=norm.add_mix_norm_twin,
    keep=norm.keep_twin,
    kda_stage=kda.kda_stage_twin,
    kda_step=kda.kda_step_twin,
    latent_row=mla.latent_row_twin,
    absorb=mla.absorb_twin,
    append=mla.append_twin,
    attend=attention.attend_twin,
    combine=attention.combine_twin,
    pick=moe.pick_twin,
    experts=None,
)


def choose(config: K3Config, device: torch.device) -> Ops:
    """The set that the config names. Raises `DeviceError` for Triton where it cannot run."""
    if config.kernels == "torch" or device.type == "meta":
        return TWINS
    if not language.found:
        raise DeviceError(
            "kernels=triton needs Triton, which is not installed", fix="pip install triton, or kernels=torch"
        )
    if device.type != "cuda" and not language.interpreted():
        raise DeviceError(
            "kernels=triton needs a CUDA device", fix="use kernels=torch, or set TRITON_INTERPRET=1 to test"
        )
    return _triton(config.pdl, config.side_programs)


def _triton(pdl: bool, side_programs: int = 0) -> Ops:
    def on(kernel: Op, **more: Any) -> Op:
        return partial(kernel, pdl=pdl, **more)

    few = {"side_programs": side_programs}

    return Ops(
        linear=on(gemv.linear, **few),
        linear_wide=on(gemv.linear_wide, **few),
        norm_linear=on(gemv.norm_linear, **few),
        situ_linear=on(gemv.situ_linear, **few),
        add_mix_norm=on(norm.add_mix_norm),
        keep=on(norm.keep),
        kda_stage=on(kda.kda_stage),
        kda_step=on(kda.kda_step),
        latent_row=on(mla.latent_row),
        absorb=on(mla.absorb),
        append=on(mla.append),
        attend=on(attention.attend),
        combine=on(attention.combine),
        pick=on(moe.pick),
        experts=on(moe.experts),
    )
