"""Where the numbers come from, what is missing, and the details that can be folded away.

In: the comparison record (as `At`). Out: blocks. Out of scope: verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence

from k3bench.publish.cite import DASH, At, count, delta, fixed, interval, ms, p_number, percent, share, tally, words
from k3bench.publish.document import Block, Bullets, Column, Details, Fence, Paragraph, Table
from k3bench.publish.evidence import SHORT, probe_table
from k3bench.publish.spans import bold, code
from k3bench.publish.words import WORD, formula, label
from k3bench.records.comparison import LEAST_FLOOR


def outstanding_blocks(record: At) -> tuple[Block, ...]:
    """Evidence that this record does not hold, each with what would bring it."""
    if not record.outstanding:
        return (Paragraph("Nothing of what was planned is missing."),)
    groups: dict[str, list[int]] = {}
    for i, o in enumerate(record.outstanding):
        line = f"{bold(o.kind.raw.replace('_', '-') + ':')} {words(o.what)}"
        groups.setdefault(line + (f" → {words(o.fix)}" if o.fix.raw else ""), []).append(i)
    return (
        Bullets(
            tuple(
                line + (f" ({tally(record.outstanding, found)} times)" if len(found) > 1 else "")
                for line, found in groups.items()
            )
        ),
    )


def provenance_blocks(record: At, digest: str) -> tuple[Block, ...]:
    """What ran on what, from which commits and records, when, and how to read the band."""
    found = record.provenance
    facts = [
        ("engine", words(found.engine), words(found.preset) if found.preset else ""),
        ("hardware", words(found.hardware_class), ""),
        ("workload", _pairs(found.workload), ""),
        ("declared change", words(found.declared_change), ""),
        ("restart between runs", words(found.restart), ""),
        ("commits", _lists(found.commits), ""),
        ("versions", _lists(found.versions), ""),
        ("measured", _span(found), ""),
        ("seed of the orders", count(found.seed), ""),
        ("source", words(found.source_title), words(found.source_url) if found.source_url else ""),
    ]
    lines = [f"{name}: {one}{f' ({two})' if two else ''}" for name, one, two in facts if one not in (DASH, "")]
    if record.health.n_runs_planned.raw or record.runs:
        lines += [_counts(record), f"floor: {_floor(record)}"]
    lines += [words(note) for note in found.notes]
    lines.append(
        f"comparison record {code(digest)}"
        + (f", recipe {code(record.recipe_digest.raw)}" if record.recipe_digest else "")
    )
    lines.append(f"method: {code('docs/METHOD.md')}")
    if formula(record.metric.raw):
        lines.append(f"{label(record.metric.raw)} = {code(formula(record.metric.raw))}")
    return (Bullets(tuple(lines)),)


def _pairs(mapping: At) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {words(at)}" for key, at in mapping.items())


def _lists(mapping: At) -> str:
    return "; ".join(f"{key} {' / '.join(words(at) for at in values)}" for key, values in mapping.items())


def _span(found: At) -> str:
    if not found.first_started_at:
        return ""
    return f"{words(found.first_started_at)} to {words(found.last_ended_at)}"


def _counts(record: At) -> str:
    health = record.health
    done = "reported" if record.kind.raw == "reported" else "measured"
    text = (
        f"runs: {count(health.n_runs_planned)} planned, {count(health.n_runs_measured)} {done}, "
        f"{count(health.n_runs_valid)} valid"
    )
    if health.n_runs_measured.raw != health.n_runs_valid.raw:
        text += f" (invalid: {count(health.n_invalid_before)} before, {count(health.n_invalid_after)} after)"
    return text


def _floor(record: At) -> str:
    """Where the least floor holds, the zero-change observations did not set it: what they showed stands beside."""
    floor = record.floor
    size = f"{share(floor.tau0_log, 2)} %"
    if floor.assumed.raw:
        return f"{size} assumed"
    dates = "".join(f", {words(at)}" for at in floor.dates)
    observations = f"{count(floor.n_zero_change_observations)} zero-change observations"
    if floor.tau0_log.raw > LEAST_FLOOR:
        return f"{size}, from {observations}{dates}"
    own = record.zero_change.tau_log if record.zero_change and floor.source.raw == record.campaign.raw else None
    less = own is not None and own.raw is not None and own.raw < LEAST_FLOOR
    showed = f"{share(own, 2)} %" if own is not None and less else "no more"
    return f"at least {size} (the least that is assumed); {observations} showed {showed}{dates}"


def detail_blocks(record: At) -> tuple[Block, ...]:
    """How to repeat it, what every run gave, what was dropped and noticed, what differed in the environment."""
    found: list[Block] = [Details("How to repeat this", (Fence(_commands(record)),))]
    for summary, blocks in (
        ("Every observation at every level", _every_level(record)),
        ("Every run", _every_run(record)),
        ("Every probe of equality", _probes(record)),
        ("Dropped pairs and findings", [*_dropped(record), *_findings(record)]),
        ("Zero-change observations", _zero_change(record)),
        ("Environment", _environment(record)),
        ("Records that went in", _inputs(record)),
    ):
        if blocks:
            found.append(Details(summary, tuple(blocks)))
    return tuple(found)


def _commands(record: At) -> str:
    name = record.campaign.raw
    if record.kind.raw == "reported":
        return (
            f"./k3 compare results/{name} --out results/{name}/comparison.json   # or results/recorded/{name}\n"
            f"./k3 publish results/{name}/comparison.json"
        )
    return (
        f"./k3 run recipes/{name}.yaml\n"
        f"./k3 publish results/{name}/comparison.json   # this report again, from the same records"
    )


def _table(titles: Sequence[str], rows: Sequence[tuple[str, ...]], *, left: int) -> list[Block]:
    columns = tuple(Column(t, "left" if i < left else "right") for i, t in enumerate(titles))
    return [Table(columns, tuple(rows))] if rows else []


def _every_level(record: At) -> list[Block]:
    if not any(level.n_pairs.raw for row in record.observations for level in row.levels):
        return []
    rows = [
        (
            code(row.observation.raw),
            count(level.concurrency),
            count(level.n_pairs),
            ms(level.before_median),
            ms(level.after_median),
            delta(level.delta_pct, 3),
            interval(level.ci95),
            interval(level.own_ci95),
            p_number(level.order_p),
            p_number(level.sign_flip_p),
            f"{delta(level.before_moved_pct)} / {delta(level.after_moved_pct)}",
        )
        for row in record.observations
        for level in row.levels
    ]
    unit = record.metric_unit.raw
    titles = ("observation", "c", "pairs", f"before [{unit}]", f"after [{unit}]", "delta [%]", "95 % CI [%]")
    return _table(
        (*titles, "with floor [%]", "p of order", "p of sign flips", "before / after against the others [%]"),
        rows,
        left=1,
    )


def _every_run(record: At) -> list[Block]:
    rows = [
        (
            code(run.record_id.raw),
            run.arm.raw,
            words(run.reason) if run.reason else ("" if run.valid.raw else "invalid"),
            count(run.concurrency),
            count(run.position),
            ms(run.value),
        )
        for run in record.runs
    ]
    titles = ("record", "arm", "remark", "c", "position", f"{label(record.metric.raw)} [{record.metric_unit.raw}]")
    return _table(titles, rows, left=3)


def _probes(record: At) -> list[Block]:
    return [probe_table(record)] if record.equality and len(record.equality) > SHORT else []


def _dropped(record: At) -> list[Block]:
    lines = [
        f"{code(row.observation.raw)} c={count(pair.concurrency)} block {count(pair.block)} pair {count(pair.pair)}"
        + (f", {pair.arm.raw}" if pair.arm else "")
        + f": {words(pair.reason)}"
        for row in record.observations
        for pair in row.dropped_pairs
    ]
    return [Bullets(tuple(lines))] if lines else []


def _findings(record: At) -> list[Block]:
    rows = [
        (
            f.kind.raw.replace("_", " "),
            "yes" if f.flagged.raw else "no",
            words(f.observation),
            f.arm.raw or DASH,
            words(f.where),
            words(f.statistic),
            count(f.concurrency),
            fixed(f.value, 3),
            fixed(f.threshold, 3),
            p_number(f.p),
        )
        for f in record.health.findings
    ]
    titles = ("finding", "flagged", "observation", "arm", "where", "statistic", "c", "value", "threshold", "p")
    return _table(titles, rows, left=6)


def _zero_change(record: At) -> list[Block]:
    if not record.zero_change:
        return []
    found = record.zero_change
    rows = [
        (
            WORD[level.word.raw],
            count(level.concurrency),
            delta(level.delta_pct),
            interval(level.ci95),
            percent(
                At(
                    found.run_sd_pct.raw.get(str(level.concurrency.raw)),
                    f"{found.path}.run_sd_pct[{level.concurrency.raw}]",
                )
            ),
        )
        for level in found.levels
    ]
    text = f"{count(found.n_observations)} zero-change observations, both arms unchanged. They never enter agreement."
    if found.blocked.raw:
        text += " They were called different beyond doubt, so neither their band nor their floor is used."
    return [Paragraph(text), *_table(("word", "c", "delta [%]", "95 % CI [%]", "run sd [%]"), rows, left=1)]


def _environment(record: At) -> list[Block]:
    """Keys with one value are the common ground; keys with several differ between runs."""
    rows = [
        (code(key), "same" if len(values) == 1 else bold("differs"), " / ".join(words(at) for at in values))
        for key, values in record.provenance.environment.items()
    ]
    return _table(("key", "across runs", "values"), rows, left=3)


def _inputs(record: At) -> list[Block]:
    rows = [(at.kind.raw, code(at.record_id.raw), code(at.digest.raw[:16])) for at in record.inputs]
    return _table(("kind", "record", "digest"), rows, left=3)
