"""A report as a person reads it."""

from collections.abc import Iterator

from rich.table import Table as Columns

from fedacd.bench import Report, Row, Table
from fedacd.bench.workload import FULL_RUN
from fedacd.display import clock, console, plain_table, print_table


def show(report: Report) -> None:
    """Print the tables, and what one must know to read them."""
    for table in report.tables:
        console.print(f"\n{table.workload}: {table.what}\n", markup=False)
        print_table(columns(table))
        console.print()
        for line in notes(table, report):
            console.print(line, markup=False)
    console.print()
    for line in about(report):
        console.print(line, markup=False)


def columns(table: Table) -> Columns:
    ratios = [f"x {base}" for base in table.baselines]
    titles = ["", "samples/s", *ratios, f"{FULL_RUN} rounds", "occupancy", "memory", "compile", "at work"]
    return plain_table(titles, [_cells(row, table.baselines) for row in table.rows])


def _cells(row: Row, baselines: list[str]) -> list[str]:
    def cell(value: float | None, form: str) -> str:
        return "-" if value is None else form.format(value)

    return [
        row.title,
        "failed" if row.error else cell(row.rate, "{:,.0f}"),
        *(cell(row.ratios.get(base), "{:.2f}") for base in baselines),
        "-" if row.full_run_seconds is None else _duration(row.full_run_seconds),
        cell(None if row.occupancy is None else 100 * row.occupancy, "{:.0f} %"),
        cell(None if row.peak_memory is None else row.peak_memory / 2**20, "{:,.0f} MiB"),
        cell(row.compile_seconds, "{:.0f} s"),
        row.how or "-",
    ]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else clock(seconds)


def notes(table: Table, report: Report) -> Iterator[str]:
    """What one must know of a table, a line each."""
    for row in table.rows:
        if row.error:
            yield f"{row.name} failed: {row.error}"
    yield from table.left_out
    yield (
        f"Data: {table.dataset}."
        if table.real_data
        else "Data: random images and labels from a seed"
        + ("." if report.quick else f" ({table.dataset} is not here: fedacd data get {table.dataset}).")
    )
    turns = "one turn" if report.repeats == 1 else f"the median of {report.repeats} turns, taken in rotation"
    yield f"samples/s: {turns}; ratios likewise, turn by turn."
    if "plain-tf32" in table.baselines:
        yield "torch computes convolutions in tf32 unless told otherwise; the ratio that counts is x plain-tf32."
    timed = {name: count for name, count in _timed(table).items() if count}
    words = " and ".join(f"{name} over {count} round{'s' * (count > 1)}" for name, count in timed.items())
    share = f"; one run's share of {table.runs_at_a_time} at a time" if table.runs_at_a_time > 1 else ""
    if words:
        yield f"Timed after a warm-up, {words}, and extrapolated to {FULL_RUN} rounds{share}."


def _timed(table: Table) -> dict[str, int]:
    plain = [row.rounds for row in table.rows if row.name in ("plain", "plain-tf32") and row.rounds]
    others = [row.rounds for row in table.rows if row.name not in ("plain", "plain-tf32") and row.rounds]
    return {"the plain loop": max(plain, default=0), "the others" if plain else "all": max(others, default=0)}


def about(report: Report) -> Iterator[str]:
    """The machine, whether it was idle, and whether the numbers mean anything."""
    found = report.machine
    device = f"{found['device']}, " if report.device != "cpu" else ""
    bf16 = "with" if found["cpu_bf16"] else "without"
    yield (
        f"{device}{found['cpu']} ({found['cores']} cores, {bf16} bf16 instructions); Python {found['python']}, "
        f"torch {found['torch']}, fedacd {found['fedacd']} ({found['commit'] or 'no commit'}), {found['date']}."
    )
    if report.not_idle:
        yield f"The machine was NOT idle, so these numbers cannot be trusted: {'; '.join(report.not_idle)}."
    else:
        yield "The machine was otherwise idle."
    if report.quick:
        yield "QUICK: tiny sizes, to see that everything works; the numbers mean nothing."
