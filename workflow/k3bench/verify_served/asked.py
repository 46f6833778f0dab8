"""Plan and builds of a served engine in, greedy tokens compared out: before/after beside before/before.

Every server is started anew, asked the same prompts one after the other, and stopped. Where two lives of `before`
differ, a difference of `after` means nothing, and the row says so. Needs no torch. Out of scope: bits (`verify.py`).
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import aiohttp

from k3bench.errors import RecordError, ServingError
from k3bench.records.equivalence import Equivalence, EquivalenceRow
from k3bench.records.measurement import Arm
from k3bench.records.plan import Build, Plan
from k3bench.serving.arms import ServedArm, device_of, served_arm
from k3bench.serving.prompts import Prompt, random_prompts
from k3bench.serving.stream import Recording, Target, read_answer

#: The least that is asked; a recipe's verdict on sameness rests on all of them.
PROMPTS = 8
Say = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """What one prompt was answered with: token ids where the server gives them, characters elsewhere."""

    units: tuple[int | str, ...]
    is_ids: bool


def verify_served(
    plan: Plan,
    builds: Mapping[Arm, Build],
    observation: str,
    *,
    logs: Path,
    prompts: int = PROMPTS,
    say: Say = lambda text: None,
) -> Equivalence:
    """Ask before, after and before again. A server that cannot be asked is a row that says why, never a pass.

    Raises `RecordError` for an observation that is not planned.
    """
    recipe = plan.recipe
    if observation not in {o.id for o in plan.observations}:
        choices = ", ".join(o.id for o in plan.observations)
        raise RecordError(f"observation {observation!r} is not in the plan", fix=f"choose from: {choices}")
    planned, lives = plan.observation(observation), ("before", "after", "before again")
    answers: dict[str, list[Answer]] = {}
    problem = ""
    for life in lives:
        arm: Arm = "after" if life == "after" else "before"
        say(f"{observation}: {prompts} prompts to {life}")
        try:
            log = logs / f"verify-{observation}-{life.replace(' ', '-')}.log"
            answers[life] = ask_arm(served_arm(recipe, planned, builds, arm, logs.parent), plan, prompts, log)
        except ServingError as error:
            problem = f"{life}: {error}"
            break
    if problem:
        return not_asked(plan, builds, observation, problem, prompts=prompts)
    rows = judge(*(answers[life] for life in lives))
    return _record(plan, builds, observation, rows, prompts, "token ids" if _by_ids(answers) else "characters")


def not_asked(
    plan: Plan, builds: Mapping[Arm, Build], observation: str, problem: str, *, prompts: int = PROMPTS
) -> Equivalence:
    """One row that says why nothing could be asked."""
    row = {"kind": "greedy", "status": "not_run", "what": "greedy tokens, before | after", "reason": problem}
    return _record(plan, builds, observation, [row], prompts, "nothing")


def _record(
    plan: Plan,
    builds: Mapping[Arm, Build],
    observation: str,
    rows: Sequence[Mapping[str, object]],
    prompts: int,
    compared: str,
) -> Equivalence:
    engine, policies = plan.recipe.engine, f"{builds['before'].policy} | {builds['after'].policy}"
    shared = {"preset": engine.preset, "policy": policies, "batch": 1, "prompts": prompts}
    return Equivalence(
        campaign=plan.recipe.name,
        observation=observation,
        builds={arm: build.identity for arm, build in builds.items()},
        device=f"{device_of(engine)} {platform.machine()}",
        versions={"aiohttp": metadata.version("aiohttp"), "python": platform.python_version()},
        settings={"compared": compared},
        measured=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        rows=tuple(EquivalenceRow.model_validate(shared | dict(row)) for row in rows),
    )


def ask_arm(arm: ServedArm, plan: Plan, prompts: int, log: Path) -> list[Answer]:
    """One life of an arm's server, or a visit to a running one. Raises `ServingError`."""
    if arm.endpoint:
        return _ask(arm, arm.endpoint, plan, prompts)
    server = arm.start(log)
    try:
        if other := arm.sources(server.base_url)[1]:
            raise ServingError(other, where=server.base_url)
        return _ask(arm, server.base_url, plan, prompts)
    finally:
        server.stop()


def _ask(arm: ServedArm, base_url: str, plan: Plan, prompts: int) -> list[Answer]:
    workload, (target, vocab) = plan.recipe.workload, arm.target(base_url)
    seed = f"{plan.recipe.seed}/verify"
    chosen = random_prompts(prompts, isl_tokens=workload.isl_tokens, vocab=vocab, seed=seed)
    return asyncio.run(_answers(target, chosen, workload.osl_tokens))


async def _answers(target: Target, prompts: Sequence[Prompt], osl_tokens: int) -> list[Answer]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        return [await _answer(session, target, prompt, osl_tokens) for prompt in prompts]


async def _answer(session: aiohttp.ClientSession, target: Target, prompt: Prompt, osl_tokens: int) -> Answer:
    recording = Recording(0, keeps_text=True)
    await read_answer(session, target, target.body(prompt, osl_tokens), recording)
    text, ids = "".join(recording.texts), recording.token_ids
    if recording.error is not None or not recording.done or not text:
        said = recording.error or "the stream ended early or empty"
        raise ServingError(f"a prompt was not answered: {said}", where=target.url)
    return Answer(tuple(ids), True) if ids else Answer(tuple(text), False)


def judge(before: list[Answer], after: list[Answer], again: list[Answer]) -> list[dict[str, object]]:
    """Three rows: does `before` repeat itself, does `after` agree with it, and would a difference be seen at all."""
    repeats, agrees = differences(before, again), differences(before, after)
    control = differences(before, [*before[1:], before[0]])
    units = [unit for answer in before for unit in answer.units]
    counts: dict[str, object] = {
        "steps": max(len(a.units) for a in before),
        "tokens": len(units),
        "distinct_tokens": len(set(units)),
    }
    unsure = (
        f"before does not repeat itself ({len(repeats)} of {len(before)} prompts), so this difference means nothing"
    )
    status = "pass" if not agrees else "not_run" if repeats else "fail"
    return [
        _row(
            "greedy", "pass" if not repeats else "fail", "greedy tokens, before | before again", repeats, before, counts
        ),
        _row("greedy", status, "greedy tokens, before | after", agrees, before, counts)
        | ({"reason": unsure} if status == "not_run" else {}),
        _row(
            "control",
            "pass" if len(control) == len(before) else "fail",
            "answers to other prompts are told apart",
            control,
            before,
            counts,
        ),
    ]


def _row(
    kind: str, status: str, what: str, found: dict[int, int], answers: list[Answer], counts: dict[str, object]
) -> dict[str, object]:
    """One comparison; `first_difference` is the earliest place, counted in tokens or characters from 0."""
    reason = f"{len(found)} of {len(answers)} prompts differ" if found and kind == "greedy" else ""
    first = min(found.values()) if found else None
    return {"kind": kind, "status": status, "what": what, "reason": reason, "first_difference": first, **counts}


def differences(left: list[Answer], right: list[Answer]) -> dict[int, int]:
    """Prompt -> first place at which its two answers differ."""
    found: dict[int, int] = {}
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.units != b.units:
            pairs = enumerate(zip(a.units, b.units, strict=False))
            found[index] = next((i for i, (x, y) in pairs if x != y), min(len(a.units), len(b.units)))
    return found


def _by_ids(answers: Mapping[str, list[Answer]]) -> bool:
    return all(a.is_ids for found in answers.values() for a in found)
