"""The command line of the report: parse, call, print."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, summaries, or folders that hold some.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one page that compares runs: which method is better, by how much, how surely, and why."""
    from fedacd.display import console, counted
    from fedacd.report import write

    data = write(runs, out)
    for note in data["notes"]:
        print(f"note: {note}", file=sys.stderr)
    for line in data["headlines"]:
        console.print(line, markup=False)
    console.print(f"Report of {counted(len(data['runs']), 'run')}: {out}", markup=False)
