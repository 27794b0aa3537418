"""What a group's rounds look like over rounds, seconds and megabytes; the cost of an accuracy; who weighs how much.

Shapes: S seeds, T rounds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedacd.metrics import LATE, METRICS, class_means
from fedacd.report.compare import PERCENT, counted, traffic
from fedacd.report.group import Group
from fedacd.report.read import Run

POINTS = 400
"""The most points of a curve; a longer one is thinned."""

CURVES = (*METRICS, "train_loss")

Table = np.ma.MaskedArray[Any, np.dtype[np.float64]]


def thin(length: int) -> list[int]:
    """Which of so many points are shown: evenly spaced, the first and the last among them."""
    if length <= POINTS:
        return list(range(length))
    return [round(i * (length - 1) / (POINTS - 1)) for i in range(POINTS)]


def curves(group: Group) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every metric, plain and as the mean of the last ten rounds."""
    runs = [run for run in group.runs if run.rounds]
    rounds = _drawn(runs)
    shown = thin(len(rounds))
    shape: dict[str, Any] = {"round": [rounds[i] for i in shown]}
    for name, of_run in (("seconds", cumulative_seconds), ("megabytes", cumulative_megabytes)):
        shape[name] = _listed(_table(rounds, [of_run(run) for run in runs]).mean(0), shown, 2)
    for key in CURVES:
        scale, digits = (100.0, 2) if key in PERCENT else (1.0, 3)
        values = scale * _table(rounds, [{line["round"]: line.get(key) for line in run.rounds} for run in runs])
        if values.mask.all():
            continue
        smooth = scale * _table(rounds, [_trailing(run, key) for run in runs])
        shape[key] = {}
        for middle, sd, table in (("mean", "sd", values), ("smooth", "smooth_sd", smooth)):
            shape[key][middle] = _listed(table.mean(0), shown, digits)
            shape[key][sd] = _listed(table.std(0, ddof=1), shown, digits) if len(runs) > 1 else None
    return shape


def _drawn(runs: Sequence[Run]) -> list[int]:
    """The rounds that any run has measured. Beside a summary a round must be measured by all that have come so far: a
    mean over more runs at every tenth round than between would zigzag."""
    measured = [{line["round"] for line in run.rounds if _measured(line)} for run in runs]
    rounds = sorted(set[int]().union(*measured))
    if not any(run.final for run in runs):
        return rounds
    return [r for r in rounds if all(r in own or r > run.done for run, own in zip(runs, measured, strict=True))]


def _measured(line: dict[str, Any]) -> bool:
    return any(line.get(key) is not None for key in METRICS)


def _table(rounds: Sequence[int], runs: Sequence[dict[int, float | None]]) -> Table:
    """[S, T], masked where a run has no such round or value."""
    values = [[np.nan if (v := run.get(r)) is None else v for r in rounds] for run in runs]
    return np.ma.masked_invalid(np.array(values, dtype=np.float64))


def _trailing(run: Run, key: str) -> dict[int, float | None]:
    """The mean of the values of the last ten rounds, at every round; a summary's own at the end of its curve."""
    lines = [line for line in run.rounds if line.get(key) is not None]
    if not lines:
        return {}
    rounds = np.array([line["round"] for line in lines])
    sums = np.concatenate([[0.0], np.cumsum([line[key] for line in lines])])
    start, end = np.searchsorted(rounds, rounds - LATE, side="right"), np.arange(len(lines)) + 1
    smooth = dict(zip(rounds.tolist(), ((sums[end] - sums[start]) / (end - start)).tolist(), strict=True))
    return smooth | ({lines[-1]["round"]: run.final[key]["late"]} if key in run.final else {})


def _listed(values: Table, shown: Sequence[int], digits: int) -> list[float | None]:
    """None where it is masked."""
    return [None if value is None else round(value, digits) for value in values[shown].tolist()]


def cumulative_seconds(run: Run) -> dict[int, float | None]:
    return _cumulative(run, lambda line: line.get("seconds"))


def cumulative_megabytes(run: Run) -> dict[int, float | None]:
    """Of all participants together, up and down."""

    def sent(line: dict[str, Any]) -> float | None:
        each = traffic(line)
        return None if each is None else each * len(line.get("participants") or ()) / 1e6

    return _cumulative(run, sent)


def _cumulative(run: Run, value: Any) -> dict[int, float | None]:
    """Sums up to each round, unknown from the first unknown on."""
    total: float | None = 0.0
    sums: dict[int, float | None] = {}
    for line in run.rounds:
        step = value(line)
        total = None if total is None or step is None else total + step
        sums[line["round"]] = total
    return sums


def records(run: Run) -> list[list[float | None]]:
    """[round, seconds, megabytes, accuracy %] wherever a run beat its best: from these the cost of any accuracy."""
    seconds, megabytes, best, steps = cumulative_seconds(run), cumulative_megabytes(run), -1.0, []
    for line in run.rounds:
        accuracy = line.get("accuracy")
        if accuracy is not None and accuracy > best:
            best, number = accuracy, line["round"]
            time, size = seconds[number], megabytes[number]
            steps.append([number, _rounded(time), _rounded(size), round(100 * accuracy, 3)])
    return steps


def coarse(run: Run) -> bool:
    """Whether it was not measured every round: then a record came in the round where it stands, or before."""
    return sum(line.get("accuracy") is not None for line in run.rounds) < run.done


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def per_class(group: Group) -> list[float | None] | None:
    """Test accuracy of each class in percent: mean of the last ten rounds, then over seeds."""
    rows: list[list[float | None]] = []
    for run in counted(group):
        lines = [{"round": line["round"], "per_class": line.get("per_class")} for line in run.rounds]
        known = [line for line in lines if line["per_class"]]
        if not known:
            continue
        late = [line["per_class"] for line in known if line["round"] > run.done - LATE] or [known[-1]["per_class"]]
        rows.append(class_means(late))
    return [None if v is None else round(100 * v, 1) for v in class_means(rows)] if rows else None


def weights(run: Run) -> dict[str, Any] | None:
    """Who took part in a round, and each share times their number: 1 is an equal share."""
    lines = [line for line in run.rounds if line.get("participants") and line.get("weights")]
    lines = [line for line in lines if None not in line["weights"]]
    if not lines:
        return None
    lines = [lines[i] for i in thin(len(lines))]
    return {
        "rounds": [line["round"] for line in lines],
        "participants": [line["participants"] for line in lines],
        "shares": [[round(w * len(line["weights"]), 4) for w in line["weights"]] for line in lines],
        "clients": run.config.partition.clients,
    }
