"""What the load client itself adds at each concurrency, measured on the campaign's own host before the campaign."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Finite, Model, Name, Record
from k3bench.records.measurement import Instant

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ClientLevel(Model):
    """One concurrency. Lag is client's stamp - server's; shift is by how much it grows from a request's first chunk to
    its last, and bias is the shift in percent of that time.
    """

    concurrency: Annotated[int, Field(ge=1)]
    requests: int
    osl_tokens: int
    pace_ms: Finite
    server_tpot_ms: Finite
    bias_pct_median: Finite
    bias_pct_largest: Finite
    shift_ms_median: Finite
    lag_ms_median: Finite
    lag_ms_p99: Finite
    client_cpu_share: Share
    full_rate_chunks_s: Share


class Calibration(Record):
    """All levels of a recipe on one host. A level beyond the recipe's `max_client_bias_pct` is not measured."""

    SCHEMA: ClassVar[str] = "k3bench.calibration/1"
    schema_: Literal["k3bench.calibration/1"] = Field(default="k3bench.calibration/1", alias="schema")
    host: str
    boot: str
    cores: int
    versions: dict[Name, str]
    measured: Instant
    levels: tuple[ClientLevel, ...]

    def level(self, concurrency: int) -> ClientLevel:
        """One concurrency. Raises KeyError for one that was not calibrated."""
        return {level.concurrency: level for level in self.levels}[concurrency]
