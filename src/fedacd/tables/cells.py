"""The numbers of a table: ours, the paper's, and how far they are apart.

ours        mean over seeds of the mean over the last ten rounds, and the sample standard deviation over seeds (n - 1)
difference  ours - the paper's; its standard deviation is s * sqrt(1/n + 1/3), where s^2 is the variance pooled over
            our n seeds and the paper's 3: ((n - 1) s_ours^2 + 2 s_paper^2) / (n + 1). With one seed s is the paper's
differs     whether the difference is more than two such deviations, and half of the paper's last digit
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedacd.display import counted
from fedacd.errors import RecordError
from fedacd.tables.declare import METRICS, ROUNDS, SEEDS, Column, Metric, Row
from fedacd.tables.found import Found, Numbers
from fedacd.tables.match import Matched
from fedacd.tables.paper import Reported
from fedacd.tables.wanted import Want, Wanted

_WHICH = ("late", "last", "best")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Over seeds."""

    mean: float
    sd: float | None
    """None of one seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(mean=statistics.fmean(values), sd=statistics.stdev(values) if len(values) > 1 else None)


@dataclass(kw_only=True)
class Cell:
    row: Row
    column: Column
    paper: Reported
    runs: list[Found]
    """Those that are finished; of a cell without any, there is nothing of ours."""
    late: Spread | None = None
    last: Spread | None = None
    best: Spread | None = None
    rank: int | None = field(default=None, init=False)
    """1 the best, 2 the second best of its column (of its row, in a table of one row)."""

    @property
    def metric(self) -> Metric:
        return METRICS[self.column.metric]

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def seeds(self) -> list[int]:
        return [int(run.settings["run.seed"]) for run in self.runs]

    @property
    def difference(self) -> float | None:
        return self.late.mean - self.paper.mean if self.late else None

    @property
    def difference_sd(self) -> float | None:
        if not self.late:
            return None
        ours, paper, n = self.late.sd or 0.0, self.paper.sd, self.n
        variance = ((n - 1) * ours**2 + (SEEDS - 1) * paper**2) / (n + SEEDS - 2)
        return math.sqrt(variance * (1 / n + 1 / SEEDS))

    @property
    def differs(self) -> bool:
        if self.difference is None or self.difference_sd is None:
            return False
        return abs(self.difference) > 2 * self.difference_sd + self.paper.rounding


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A table with its numbers."""

    wanted: Wanted
    cells: list[list[Cell]]
    """By row and column."""
    notes: list[str]
    command: str = ""
    """What makes it."""

    @property
    def title(self) -> str:
        return f"Table {self.wanted.table.number}: {self.subject}"

    @property
    def subject(self) -> str:
        """What is shown, and in what it is less than the paper's."""
        parts = [self.wanted.table.title]
        if self.wanted.rounds != ROUNDS:
            parts.append(f"{counted(self.wanted.rounds, 'round')} (paper: {ROUNDS})")
        numbers = {cell.n for row in self.cells for cell in row if cell.n}
        if numbers and numbers != {SEEDS}:
            few, most = min(numbers), max(numbers)
            span = f"{few}" if few == most else f"{few} to {most}"
            parts.append(f"{span} seed{'s' if most > 1 else ''} (paper: {SEEDS})")
        if self.wanted.precision != "fp32":
            parts.append(self.wanted.precision)
        return ", ".join(parts)


def fill(wanted: Wanted, matched: Matched, command: str = "") -> Filled:
    """Read the finished runs of a table, which `command` was to make."""
    table, numbers = wanted.table, dict[str, Numbers]()
    own = [table.note] if table.note else []
    damaged = []
    for key, run in matched.done.items():
        try:
            numbers[key] = run.numbers()
        except RecordError as error:
            damaged.append(f"left out: {error} Remove {run.path} to run it again.")
    if not numbers:
        raise RecordError(" ".join([f"there is no finished run of table {table.number} to show.", *damaged]))

    def cell(row: Row, column: Column, wants: Sequence[Want]) -> Cell:
        keys = [want.key for want in wants if column.metric in numbers.get(want.key, {})]
        values, scale = [numbers[key][column.metric] for key in keys], METRICS[column.metric].scale
        ours = {which: Spread.of([value[which] * scale for value in values]) for which in _WHICH if values}
        runs, paper = [matched.done[key] for key in keys], table.reported(row, column)
        return Cell(row=row, column=column, paper=paper, runs=runs, **ours)

    cells = [
        [cell(row, column, wants) for column, wants in zip(table.columns, line, strict=True)]
        for row, line in zip(table.rows, wanted.cells, strict=True)
    ]
    for group in cells if table.along_rows else zip(*cells, strict=True):
        _rank(list(group))
    if unfinished := len(wanted.runs) - len(numbers):
        own.append(f"{unfinished} of {len(wanted.runs)} runs are not finished and left out.")
    return Filled(wanted=wanted, cells=cells, notes=[*own, *damaged], command=command)


def _rank(cells: Sequence[Cell]) -> None:
    """Equal ones share their rank. One alone is not the best of anything."""
    shown = [(cell, cell.late.mean * (-1 if cell.metric.lower_is_better else 1)) for cell in cells if cell.late]
    for cell, value in shown:
        rank = 1 + sum(other > value for _, other in shown)
        if len(shown) > 1 and rank <= 2:
            cell.rank = rank
