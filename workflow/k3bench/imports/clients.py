"""Readers of the benchmark clients that share one ancestor: vLLM, TensorRT-LLM, sglang, InferenceX, sa-bench.

In: one flat object. Out: a `Reading`. What differs between them (words, units, facts) is in the dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from k3bench.errors import RecordError
from k3bench.imports.dictionary import Format
from k3bench.imports.foreign import Fields
from k3bench.imports.gate import Totals
from k3bench.imports.readers import assemble, number, rate_of, read_facts, same_length, summary
from k3bench.imports.reading import Facts, Reading, check
from k3bench.imports.requests import RERUN, Judged, Shown, judge
from k3bench.records.measurement import Check

#: Text does not always turn into the same number of tokens again; a stream that ended early differs by more.
MAX_RETOKENISED_MISS = 0.01
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times", "e2els")


def read_client(name: str, entry: Format, fields: Fields) -> Reading:
    """One object of such a client. Raises `RecordError` where tokens were claimed that never came."""
    facts = _lengths(fields, entry, read_facts(fields, entry))
    rate = rate_of(fields, entry)
    _refuse_claimed_tokens(fields, entry)
    metrics, notes = summary(fields, entry)
    judged, checks = _requests(fields, facts)
    missing = _without_itl(number(fields, entry.facts, "accept_length"), metrics, judged)
    return assemble(
        name,
        entry,
        fields,
        facts,
        metrics=metrics,
        notes=notes,
        totals=Totals(
            output_tokens=number(fields, entry.facts, "output_tokens"),
            duration_s=number(fields, entry.facts, "duration_s"),
            closed_loop=rate is None,
        ),
        judged=judged,
        missing=missing,
        checks=checks,
        remarks=(_rate_remark(rate), _retokenised_remark(fields, entry)),
    )


def _without_itl(accepted: float | None, metrics: dict[str, float], judged: Judged | None) -> dict[str, str]:
    """Under speculative decoding a chunk holds what was accepted: its gap is no interval of anything."""
    if accepted is None or accepted <= 1:
        return {}
    for found in (metrics, judged.metrics if judged else {}):
        found.pop("itl_median_ms", None)
    return {"itl_median_ms": f"{accepted:g} tokens are accepted a step: chunk gaps are no times per token"}


def _rate_remark(rate: float | None) -> str | None:
    return None if rate is None else f"open loop: requests were sent at a rate of {rate:g}/s, so no level was held"


def _lengths(fields: Fields, entry: Format, facts: Facts) -> Facts:
    """ISL and OSL: as stated, unless drawn from a range, else as counted."""
    drawn = number(fields, entry.facts, "range_ratio") not in (None, 1.0)
    if drawn or not str(fields.text(entry.facts.get("dataset", "")) or "random").startswith("random"):
        return replace(facts, isl_tokens=None, osl_tokens=None)
    isl = facts.isl_tokens or same_length(fields.numbers("input_lens") or [], fields.where)
    return replace(
        facts,
        isl_tokens=isl or _mean(fields, entry, "input_tokens", facts, 0.01),
        osl_tokens=facts.osl_tokens or _mean(fields, entry, "output_tokens", facts, 0.0),
    )


def _mean(fields: Fields, entry: Format, fact: str, facts: Facts, tolerance: float) -> int | None:
    """A total divided by the requests, where that is a whole number within `tolerance` tokens."""
    total = number(fields, entry.facts, fact)
    if total is None or not facts.completed:
        return None
    mean = total / facts.completed
    return round(mean) if 1 <= mean < 1e9 and abs(mean - round(mean)) <= tolerance else None


def _refuse_claimed_tokens(fields: Fields, entry: Format) -> None:
    """A client that counts the requested length makes every early end look fast; its own recount gives it away."""
    claimed, recounted = number(fields, entry.facts, "output_tokens"), number(fields, entry.facts, "retokenised")
    if not claimed or recounted is None or abs(recounted / claimed - 1) <= MAX_RETOKENISED_MISS:
        return
    raise RecordError(
        f"streams were cut off: {claimed:g} output tokens are claimed, {recounted:g} came; TPOT was made of the claim",
        where=f"{fields.where}: {entry.facts['retokenised']}",
        fix=RERUN,
    )


def _retokenised_remark(fields: Fields, entry: Format) -> str | None:
    claimed, recounted = number(fields, entry.facts, "output_tokens"), number(fields, entry.facts, "retokenised")
    if not claimed or recounted is None or claimed == recounted:
        return None
    return f"output tokens are claimed, not counted: {claimed:g} claimed, {recounted:g} in the text"


def _requests(fields: Fields, facts: Facts) -> tuple[Judged | None, Sequence[Check]]:
    """Per-request lists, as far as they go: all of them, or output lengths only."""
    lists = {name: found for name in LISTS if (found := fields.items(name)) is not None}
    tokens = fields.numbers("output_lens")
    if tokens is None or not tokens:
        return None, ()
    _same_size(lists, fields)
    if "ttfts" not in lists or not ("itls" in lists or "e2els" in lists):
        return None, (_output_lens(tokens, facts),)
    planned = facts.planned if facts.planned is not None else len(tokens)
    shown = [_shown(i, fields) for i in range(len(tokens))]
    return judge(shown, where=fields.where, osl_tokens=facts.osl_tokens, planned=planned), ()


def _same_size(lists: dict[str, list[object]], fields: Fields) -> None:
    sizes = {name: len(found) for name, found in lists.items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name} {n}" for name, n in sizes.items())
        raise RecordError(
            f"per-request lists of different length: {shown}",
            where=f"{fields.where}: {min(sizes, key=lambda k: sizes[k])}",
            fix="the file was edited or cut; write it again",
        )


def _output_lens(tokens: Sequence[float], facts: Facts) -> Check:
    found = sorted(set(tokens))
    wanted = [float(facts.osl_tokens)] if facts.osl_tokens else found[:1]
    lengths = ", ".join(f"{n:g}" for n in found[:5])
    return check("output_length_exact", found == wanted and found[0] >= 1, f"output lengths {lengths}")


def _shown(i: int, fields: Fields) -> Shown:
    """Request `i` of the lists. A failed request stands in them with zeros and an error text."""
    gaps = fields.numbers(f"itls/{i}")
    ttft = fields.number(f"ttfts/{i}")
    latency = fields.number(f"e2els/{i}")
    if latency is None and ttft is not None and gaps is not None:
        latency = ttft + sum(gaps)
    return Shown(
        ttft_s=ttft,
        latency_s=latency,
        tokens=fields.count(f"output_lens/{i}"),
        prompt_tokens=fields.count(f"input_lens/{i}"),
        sent_s=fields.number(f"start_times/{i}"),
        gaps_s=None if gaps is None else tuple(gaps),
        error=fields.text(f"errors/{i}"),
    )
