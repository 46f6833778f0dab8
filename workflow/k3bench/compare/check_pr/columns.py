"""What a column's header means, and the number a cell shows.

In: header and cell texts of many hands. Out: roles, metric kinds, printed numbers; a header not understood has no role.
"""

from __future__ import annotations

import re
from typing import Literal

from k3bench.compare.published import Printed

Role = Literal[
    "arrow", "after", "band", "before", "build", "delta", "family", "job", "level", "metric", "observation", "rack"
]
Kind = Literal["tpot", "itl", "ttft", "throughput", "tps_user", "other"]

#: Tried in order; the first that fits is the role.
_ROLES: tuple[tuple[str, Role | None], ...] = (
    (r"busy|residency|share|segments|two.stream|of busy", None),
    (r"noise|band", "band"),
    (r"\bjob\b|slurm", "job"),
    (r"\brack\b|\bnode\b", "rack"),
    (r"\bbuild\b|wheel", "build"),
    (r"\bfamily\b|\bmodule\b", "family"),
    (r"->|→|=>", "arrow"),
    (r"delta|Δ|δ|\bchange\b|diff|gain|\bratio\b|speed.?up|improve|reduction|as published|^%$|\bvs\b", "delta"),
    (r"\bbefore\b|baseline|\bbase\b|\bmain\b|\bmaster\b|\bold\b|without|\bw/o\b|\boff\b|unmodified|\bpre\b", "before"),
    (r"\bafter\b|\bthis pr\b|\bpr\b|\bnew\b|\bwith\b|\bw/|\bon\b|patched|\bhead\b|\bpost\b", "after"),
    (r"concurren|^conc\.?$|^c$|^bs$|batch.?size|\blevel\b|\busers\b", "level"),
    (r"observation|^obs\b|^id$|^#$|^run$", "observation"),
    (r"^metric", "metric"),
)
_METRICS: tuple[tuple[str, Kind], ...] = (
    (r"\bitl\b|inter.?token", "itl"),
    (r"\bttft\b|first token", "ttft"),
    (r"tps.?(/|per|_).?user|tok/s/user|tokens?/s(ec)?/user", "tps_user"),
    (r"throughput|tok(ens?)?/s|output.?tps", "throughput"),
    (r"\btpot\b|time per output token|decode step|step time", "tpot"),
)


def role_of(header: str) -> Role | None:
    """The role of a column, by its header."""
    text = header.lower().replace("_", " ").strip()
    return next((role for pattern, role in _ROLES if re.search(pattern, text)), None)


def kind_of(text: str) -> Kind | None:
    """The metric a text names; None where it names none, TPOT where it names TPOT among others."""
    lowered = text.lower().replace("_", " ")
    found = [kind for pattern, kind in _METRICS if re.search(pattern, lowered)]
    return "tpot" if "tpot" in found else found[0] if found else None


def number_in(cell: str) -> Printed | None:
    """The first number of a cell as printed; None for a dash, n/a or an empty cell. `13,2` has a decimal comma."""
    text = cell.replace("−", "-").replace("–", "-").strip()
    text = re.sub(r"^([~≈(\s]*[+-]?\d+),(\d{1,2})(?![\d.]|,\d)", r"\1.\2", text)
    found = re.match(r"[~≈(\s]*([+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[+-]?\d+(?:\.\d+)?)(?![\d.]*[a-z]*\d)", text, re.I)
    if found is None:
        return None
    number = Printed.parse(found[1].replace(",", ""))
    return alone(number)


def delta_in(cell: str) -> Printed | None:
    """The number of a delta's cell, where an arrow down, before or after the number, is a minus."""
    bare = re.sub(r"[↓↑]", "", cell).strip()
    down = "↓" in cell and "↑" not in cell and re.match(r"[(\s]*\d", bare)
    return number_in(re.sub(r"\d", r"-\g<0>", bare, count=1) if down else bare)


def unit_of(header: str) -> str | None:
    """The unit of time a header gives: `before [ms]`, `after (s)`, `before_ms`."""
    text = header.strip().lower().replace("µ", "u").replace("μ", "u")
    found = re.search(r"[\[(]\s*(s|ms|us)\s*[\])]|[ _](s|ms|us)$", text)
    return (found[1] or found[2]) if found else None


def factor_in(cell: str) -> Printed | None:
    """The number of a cell that is written as a factor, `1.05x`; None for any other cell."""
    return number_in(cell) if re.match(r"[~≈(\s]*\d+(?:[.,]\d+)?\s*[x×](?![a-z])", cell, re.I) else None


def alone(number: Printed) -> Printed | None:
    """Numbers beyond any time or percentage are identifiers."""
    return number if abs(number.value) < 1e9 else None
