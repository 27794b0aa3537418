"""What a person sees: progress, tables. The only module that draws on a terminal."""

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedacd.environment import rank_and_size

ONE_OF_MANY = rank_and_size()[0] > 0
"""Whether this is a process of torchrun other than the first, which speaks for all."""

console = Console(highlight=False, quiet=ONE_OF_MANY)
if not console.is_terminal:
    console.width = 1000  # a pipe or a file has no edge to wrap at


def print_table(table: Table) -> None:
    """Print a table in its full width: a cut number is worse than a line that the terminal folds."""
    width = max(console.width, table_width(table))
    Console(highlight=False, width=width, quiet=ONE_OF_MANY).print(table)


def table_width(table: Table) -> int:
    """Of a table that nothing limits."""
    return Console(width=1000).measure(table).maximum


METRIC_COLUMNS = {
    "accuracy": "acc %",
    "accuracy_last": "last %",
    "accuracy_best": "best %",
    "accuracy_client": "client %",
    "risk": "risk",
    "kl_local": "KL own",
    "kl_test": "KL test",
}


LEGEND = """\
acc, client, risk, KL: means over the last 10 rounds; last, best: one round.
client: accuracy on the clients' own label mixes.
risk: error of one client's model on all of these mixes.
KL of P||Q: of local models, on their own data and on the test set."""


class RoundsProgress:
    """Runs side by side: on a terminal a bar for each from its first round to its last, elsewhere a line a round."""

    def __init__(self, runs: Mapping[str, tuple[int, int]]) -> None:
        """`runs` by label: rounds done, and of how many."""
        self._runs = dict(runs)
        self._started: dict[str, float] = {}
        self._accuracy: dict[str, str] = {}
        self._tasks: dict[str, TaskID] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),  # on a CPU a round may take minutes
            TextColumn("{task.fields[status]}"),
        )
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._bar.start()
        if len(self._runs) == 1:
            self._task(next(iter(self._runs)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        console.print(text, markup=False)

    def __call__(self, label: str, record: Mapping[str, Any]) -> None:
        first, rounds = self._runs[label]
        done = record["round"]
        started = self._started.setdefault(label, self._began)
        each = (time.monotonic() - started) / (done - first)
        if record["accuracy"] is not None:
            self._accuracy[label] = f"{100 * record['accuracy']:.2f} %"
        left = clock(each * (rounds - done))
        status = f"accuracy {self._accuracy.get(label, '-')}, {each:.2f} s/round, {left} left"
        if console.is_terminal:
            self._bar.update(self._task(label), completed=done, status=status)
        else:
            console.print(f"{label}: round {done}/{rounds}, {status}", markup=False)
        if done == rounds:
            self._began = time.monotonic()

    def _task(self, label: str) -> TaskID:
        if label not in self._tasks:
            done, rounds = self._runs[label]
            self._tasks[label] = self._bar.add_task(label, total=rounds, completed=done, status="first round under way")
        return self._tasks[label]


def clock(seconds: float) -> str:
    """Seconds as 0:42, 12:05 or 3:07:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def in_words(seconds: float) -> str:
    """As exact as an estimate is: '40 seconds', '48 minutes', '18 hours', '12 days'."""
    for most, unit, name in ((100, 1, "second"), (100 * 60, 60, "minute"), (48 * 3600, 3600, "hour")):
        if seconds < most:
            return counted(round(seconds / unit), name)
    return counted(round(seconds / 86400), "day")


def counted(number: int, what: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_metrics(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, float]]]) -> None:
    """A row a run: what sets it apart, then its metrics."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for key in rows[0][0]:
        table.add_column(key.removesuffix(".name").split(".")[-1], no_wrap=True)
    for title in METRIC_COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for names, final in rows:
        table.add_row(*map(str, names.values()), *(_cell(key, final.get(key)) for key in METRIC_COLUMNS))
    console.print()
    print_table(table)
    console.print(f"\n{LEGEND}\n", style="dim", markup=False)


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2f}" if key.startswith("accuracy") else f"{value:.3f}"


def plain_table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


class TransferProgress:
    """Bytes of a download, images of a conversion: what `fedacd.data` reports as (label, done, total)."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskID] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if label not in self._tasks:
            self._tasks[label] = self._bar.add_task(label, total=total)
        self._bar.update(self._tasks[label], completed=done, total=total)
