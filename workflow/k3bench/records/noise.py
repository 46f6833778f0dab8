"""What zero-change observations showed, kept so that later comparisons of the same setting can use it.

In: what `compare.noise_record` computed from zero-change observations. Out: `k3bench.noise/1`. Out of scope: deciding
which record a comparison picks up (`compare.calibration`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Finite, Model, Name, Record
from k3bench.records.comparison import RangeBand


class Setting(Model):
    """Noise is that of an engine on a class of hardware under a workload; another setting's says nothing."""

    engine: str
    preset: str
    hardware_class: str
    restart: str
    isl_tokens: int
    osl_tokens: int
    stream_interval: int


class LevelNoise(Model):
    """Noise of the headline metric at one level."""

    concurrency: int
    n_runs: int
    n_pairs: int
    run_sd_log: Finite | None = None
    range_band: RangeBand | None = None
    #: half-width a zero change of one observation of this design stays inside with 95 %, log units
    band95_log: Finite | None = None
    tau_log: Finite | None = None


class Noise(Record):
    """`k3bench.noise/1`: the calibration of floor and run standard deviation."""

    SCHEMA: ClassVar[str] = "k3bench.noise/1"
    schema_: Literal["k3bench.noise/1"] = Field(default="k3bench.noise/1", alias="schema")
    campaign: Name
    simulated: bool
    metric: str
    setting: Setting
    n_observations: int
    n_blocks: int
    levels: tuple[LevelNoise, ...]
    #: None with fewer than three zero-change observations: the assumed floor stays
    tau0_log: Finite | None = None
    dates: tuple[str, ...]
    called: bool
    called_p_holm: float | None = None
    #: something was called that cannot be there, with Holm p < 0.001: nothing may use this record
    blocked: bool
    inputs: tuple[Digest, ...] = ()
