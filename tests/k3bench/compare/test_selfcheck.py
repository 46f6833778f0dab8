"""Golden cases: the file's format is the interface, every quantity of it a row."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS

from k3bench.compare.selfcheck import check_case, selfcheck
from k3bench.errors import StatisticsError


def test_every_golden_case_is_within_its_tolerance(shared_data: Path) -> None:
    """All quantities of all shared cases, none left out."""
    rows = selfcheck(json.loads((shared_data / "stats_cases.json").read_text()))
    misses = [f"{r.id} {r.quantity}: expected {r.expected}, got {r.got} ({r.tolerance})" for r in rows if not r.ok]
    assert len(rows) > 500
    assert not misses


def test_a_wrong_expectation_is_a_miss(shared_data: Path) -> None:
    """Every numeric quantity of every case, nudged beyond its tolerance, is caught."""
    document = json.loads((shared_data / "stats_cases.json").read_text())
    for case in document["cases"]:
        nudged = copy.deepcopy(case)
        nudged["expected"] = _nudge(case["expected"])
        numeric = [r for r in check_case(nudged) if not isinstance(r.expected, (str, bool)) and r.expected is not None]
        assert numeric
        assert not [r for r in numeric if r.ok and _has_size(r.expected)], case["id"]


def _nudge(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _nudge(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_nudge(v) for v in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return value * 1.2 + 0.11 if isinstance(value, float) else value + 1


def _has_size(value: Any) -> bool:
    return not isinstance(value, list) or any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value)


RUNS = [13.0, 13.4, 13.1, 13.6, 13.5, 13.3, 13.2, 13.9, 13.7, 13.4, 13.8, 14.0, 13.9, 14.1, 13.6, 14.2]


def _drifting_runs() -> list[dict[str, Any]]:
    arms = ["before", "after", "after", "before"] * 4
    return [
        {"block": i // 4 + 1, "pos": i + 1, "arm": arm, "tpot_ms": value}
        for i, (arm, value) in enumerate(zip(arms, RUNS, strict=True))
    ]


def _pair_logs() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    values = np.log(RUNS).reshape(-1, 2)
    order = np.array([1, -1] * 4)
    return (values[:, 1] - values[:, 0]) * order, order


def test_a_case_of_one_observation_knows_its_order_adjusted_line() -> None:
    """Names of branches vary from file to file; the numbers are those of statsmodels' least squares and Welch's t."""
    d, order = _pair_logs()
    fit = OLS(d, np.column_stack([np.ones(len(d)), order])).fit()
    low, high = fit.conf_int(0.05)[0]
    welch = stats.ttest_ind(d[order > 0], d[order < 0], equal_var=False)
    case = {
        "id": "P",
        "input": {"runs": _drifting_runs()},
        "expected": {
            "estimate": float(d.mean()),
            "welch_p": float(welch.pvalue),
            "order_test": {"t": float(welch.statistic), "p": float(welch.pvalue)},
            "ols": {
                "estimate": float(fit.params[0]),
                "se": float(fit.bse[0]),
                "df": 6,
                "ci95": [float(low), float(high)],
            },
            "order_adjusted": {"ci95": [float(low), float(high)], "p": float(fit.pvalues[0])},
        },
        "tolerance": "rel 1e-6",
    }
    rows = check_case(case)
    assert len(rows) == 10
    assert all(r.ok for r in rows), [r for r in rows if not r.ok]


def test_a_case_with_too_few_pairs_has_no_verdict() -> None:
    """One block an observation is insufficient replication, whatever it shows."""
    runs = _drifting_runs()[:4]
    case = {"id": "F", "input": {"observations": [runs, runs]}, "expected": {"verdict": "insufficient_replication"}}
    assert [r.ok for r in check_case(case)] == [True]


def test_dependent_metrics_as_rows_or_columns() -> None:
    """Identities and the effective number come out of either way of writing the runs."""
    tpot = [10.0, 10.2, 10.1, 10.3, 9.9, 10.4]
    expected = {"itl_ms": {"ratio": 10.0, "r2": 1.0}, "effective_number": 1.0}
    columns = {"metrics": {"tpot_ms": tpot, "itl_ms": [10 * t for t in tpot]}}
    rows = {"runs": [{"arm": "before", "tpot_ms": t, "itl_ms": 10 * t} for t in tpot]}
    for given in (columns, rows):
        assert all(r.ok for r in check_case({"id": "D", "input": given, "expected": expected})), given


def test_a_case_of_an_unknown_kind_is_a_miss_and_no_pass() -> None:
    """Nothing is skipped silently."""
    rows = selfcheck({"cases": [{"id": "Z", "input": {"moon": 1}, "expected": {"x": 1.0}}]})
    assert [r.ok for r in rows] == [False]
    assert "no kind" in str(rows[0].got)


def test_a_quantity_nobody_computes_is_a_miss() -> None:
    """A name we do not know has no number of ours behind it."""
    case = {"id": "H", "input": {"p": [0.01, 0.2]}, "expected": {"holm": [0.02, 0.2], "moon": 1.0}}
    assert [(r.quantity, r.ok) for r in check_case(case)] == [("holm", True), ("moon", False)]


@pytest.mark.parametrize("document", [{}, {"cases": []}, {"cases": [{"id": "x"}]}])
def test_a_file_that_is_no_cases_file_is_refused(document: dict[str, Any]) -> None:
    """The message says what a cases file holds."""
    with pytest.raises(StatisticsError):
        selfcheck(document)


def test_tolerances_hold_the_numbers_they_name() -> None:
    """A relative tolerance is relative, an absolute one absolute, and neither lets a NaN through."""
    for tolerance, got, ok in (
        ("rel 1e-2", 0.0203, False),
        ("rel 1e-2", 0.0201, True),
        ("abs 1e-2", 0.0289, True),
        ("abs 1e-2", 0.0311, False),
        ("rel 1e-2", math.nan, False),
    ):
        from k3bench.compare.selfcheck import limit_for

        assert limit_for(tolerance, ("x",), 0.02).holds(0.02, got) is ok
