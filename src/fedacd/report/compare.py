"""What the report says in numbers and words: a row for each group, a difference for each pair, a sentence."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from fedacd.metrics import LATE, METRICS
from fedacd.report.group import Group, Grouped, Problem
from fedacd.report.read import Run
from fedacd.report.student import SURE, Paired, holm, paired

ENOUGH = 3
"""Seeds that a verdict 'sure' takes: two of them agree too easily."""

TIE = 9
"""Digits of a difference in points: what is below them is of adding up, not of the runs."""

PERCENT = ("accuracy", "accuracy_client")


def late_mean(run: Run, key: str, end: int | None = None) -> float | None:
    """The mean of the measured rounds among the last ten up to `end`; the last measured one where there is none.

    A summary knows it exactly at its own end; before that it has the points of its curve.
    """
    if key in run.final and end in (None, run.done):
        return run.final[key]["late"]
    lines = [(line["round"], line[key]) for line in run.rounds if line.get(key) is not None]
    end = run.done if end is None else end
    lines = [(number, value) for number, value in lines if number <= end]
    late = [value for number, value in lines if number > end - LATE] or [value for _, value in lines[-1:]]
    return statistics.fmean(late) if late else None


def spread(values: Iterable[float | None], scale: float = 1.0) -> dict[str, Any] | None:
    """Mean and standard deviation over seeds; None where nothing was recorded."""
    known = [value * scale for value in values if value is not None]
    if not known:
        return None
    sd = round(statistics.stdev(known), 6) if len(known) > 1 else None
    return {"mean": round(statistics.fmean(known), 6), "sd": sd, "n": len(known)}


def row(group: Group) -> dict[str, Any]:
    """The comparison table's numbers of one group."""
    runs = counted(group)
    numbers = {key: spread((late_mean(run, key) for run in runs), 100 if key in PERCENT else 1) for key in METRICS}
    ends = [_last_and_best(run) for run in runs]
    numbers["last"] = spread((last for last, _ in ends), 100)
    numbers["best"] = spread((best for _, best in ends), 100)
    numbers["seconds"] = spread(map(_seconds, runs))
    numbers["megabytes"] = spread((_mean(map(traffic, run.rounds)) for run in runs), 1e-6)
    return numbers


def _last_and_best(run: Run) -> tuple[float | None, float | None]:
    """The accuracy of the last and of the best measured round."""
    if "accuracy" in run.final:
        return run.final["accuracy"]["last"], run.final["accuracy"]["best"]
    curve = [line["accuracy"] for line in run.rounds if line.get("accuracy") is not None]
    return (curve[-1], max(curve)) if curve else (None, None)


def _seconds(run: Run) -> float | None:
    """Of a round, on average."""
    if not run.final:
        return _mean(line.get("seconds") for line in run.rounds)
    total = run.session.get("seconds")
    return total / run.done if isinstance(total, int | float) else None


def traffic(line: dict[str, Any]) -> float | None:
    """Bytes up and down of one participant in a round."""
    up, down = line.get("bytes_up"), line.get("bytes_down")
    return None if up is None or down is None else float(up + down)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def pairs(grouped: Grouped) -> list[dict[str, Any]]:
    """Every two methods on every problem: first less second in points of accuracy, paired by seed."""
    found: list[dict[str, Any]] = []
    for number, problem in enumerate(grouped.problems):
        groups = [group for group in grouped.groups if group.problem == number]
        both = [(a, b, _difference(a, b)) for i, a in enumerate(groups) for b in groups[i + 1 :]]
        tested = [(a, b, *difference) for a, b, difference in both if difference]
        corrected = holm([test.p for _, _, test, _ in tested])
        for (a, b, test, end), adjusted in zip(tested, corrected, strict=True):
            names = grouped.methods[a.method], grouped.methods[b.method]
            after = f" after {end} rounds" if end else ""
            words = {
                "words": sentence(*names, _where(problem) + after, test, adjusted),
                "short": sentence(*names, after, test, adjusted),
            }
            numbers = {"n": test.n, "mean": round(test.mean, 4), "low": _short(test.low), "high": _short(test.high)}
            chance = {"p": test.p, "holm": adjusted, "verdict": verdict(test, adjusted), "end": end}
            found.append({"problem": number, "a": a.method, "b": b.method, **numbers, **chance, **words})
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _difference(a: Group, b: Group) -> tuple[Paired, int | None] | None:
    """The paired test over the seeds that both have finished; where there is none, over all that both have begun, up to
    the round that every run has reached."""
    first, second = ({run.seed: run for run in counted(group)} for group in (a, b))
    if not first.keys() & second.keys():
        first, second = ({run.seed: run for run in group.runs if run.done} for group in (a, b))
    couples = [(first[seed], second[seed]) for seed in first if seed in second]
    end = min((run.done for couple in couples for run in couple), default=0)
    values = [[late_mean(run, "accuracy", end) for run in couple] for couple in couples]
    differences = [round(100 * (one - other), TIE) for one, other in values if one is not None and other is not None]
    if not differences:
        return None
    unfinished = any(run.unfinished for couple in couples for run in couple)
    return paired(differences), end if unfinished else None


def counted(group: Group) -> list[Run]:
    """The runs that a group's numbers are made of: the finished ones, or all that have begun where none is finished."""
    return [run for run in group.runs if run.done and not run.unfinished] or [run for run in group.runs if run.done]


def verdict(test: Paired, adjusted: float | None) -> str:
    """How sure a difference is: 'sure' also among all pairs of its problem, 'likely' taken alone or of two seeds."""
    if test.p is None or adjusted is None:
        return "one seed"
    if adjusted < SURE and test.n >= ENOUGH:
        return "sure"
    return "likely" if test.p < SURE else "unsure"


def _where(problem: Problem) -> str:
    return f" on {problem.dataset} at {problem.skew}" + (f" ({problem.rest})" if problem.rest else "")


def sentence(first: str, second: str, where: str, test: Paired, adjusted: float | None) -> str:
    """A difference in words, no surer than the test. `where` is empty, or begins with a space."""
    if test.mean < 0:
        first, second = second, first
    facts = f"{test.n} seeds, {show_p(test.p)}" if test.p is not None else ""
    if round(test.mean, TIE) == 0:
        equal = f"{first} and {second} are equal{where}"
        return f"{equal} ({facts})." if facts else f"{equal}, in one seed: that proves nothing yet."
    points = f"{abs(test.mean):.1f} point{'' if f'{abs(test.mean):.1f}' == '1.0' else 's'}"
    if f"{abs(test.mean):.1f}" == "0.0":
        points = f"{abs(test.mean):.2f} points"
    if test.p is None:
        return f"{first} is ahead of {second}{where} by {points}, in one seed: that proves nothing yet."
    how_sure = verdict(test, adjusted)
    if how_sure == "sure":
        return f"{first} is better than {second}{where} by {points} ({facts})."
    if how_sure == "likely":
        assert adjusted is not None
        but = "two seeds are few" if test.n < ENOUGH else f"{show_p(adjusted)} when all pairs here are counted"
        return f"{first} is probably better than {second}{where} by {points} ({facts}; {but})."
    return f"{first} is ahead of {second}{where} by {points}, which may be chance ({facts})."


def show_p(p: float) -> str:
    """With as many digits as it takes to see on which side of 0.05 it lies."""
    if p < 0.001:
        return "p < 0.001"
    digits = 3 if p < 0.01 or 0.045 <= p < 0.055 else 2
    while p < SURE <= round(p, digits):
        digits += 1
    return f"p = {p:.{digits}f}"


def rankings(grouped: Grouped, rows: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> list[list[int]]:
    """For each problem its methods, best first. By the mean over a method's own seeds, but nobody comes before one that
    is ahead of it in the seeds that both have, unless they go round in a circle. A part of the order is in order too.
    """
    behind = {(pair["problem"], pair["b"], pair["a"]) for pair in found if pair["mean"] > 0}
    behind |= {(pair["problem"], pair["a"], pair["b"]) for pair in found if pair["mean"] < 0}
    ranked = []
    for number in range(len(grouped.problems)):
        entries = [(g.method, entry) for g, entry in zip(grouped.groups, rows, strict=True) if g.problem == number]
        left = [method for method, entry in entries if entry["accuracy"]]
        means = {method: entry["accuracy"]["mean"] for method, entry in entries if entry["accuracy"]}
        left.sort(key=means.__getitem__, reverse=True)
        order: list[int] = []
        while left:
            free = (method for method in left if not any((number, method, other) in behind for other in left))
            order.append(next(free, left[0]))
            left.remove(order[-1])
        ranked.append(order)
    return ranked


def headlines(grouped: Grouped, ranked: Sequence[Sequence[int]], found: Sequence[dict[str, Any]]) -> list[str]:
    """For each problem the sentence on its two best methods."""
    words = {(pair["problem"], frozenset((pair["a"], pair["b"]))): pair["words"] for pair in found}
    lines = []
    for number, (problem, order) in enumerate(zip(grouped.problems, ranked, strict=True)):
        if len(order) < 2:
            continue
        first, second = (grouped.methods[method] for method in order[:2])
        apart = f"{first} comes first{_where(problem)}, {second} next, with no seed in common: "
        lines.append(words.get((number, frozenset(order[:2])), apart + "they cannot be compared in pairs."))
    return lines
