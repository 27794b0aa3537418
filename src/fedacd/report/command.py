"""The command line of the report: parse, call, print."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedacd.tables.command import FileOption


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, summaries, or folders that hold some.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    markdown: FileOption = None,
    latex: FileOption = None,
    csv: FileOption = None,
    json: FileOption = None,
) -> None:
    """Write one page that compares runs: which method is better, by how much, how surely, and why."""
    from fedacd.display import console, counted
    from fedacd.errors import ConfigError
    from fedacd.report import write
    from fedacd.tables.options import check_files

    if out.is_dir():
        raise ConfigError(f"out = {str(out)!r}: is a folder; name a file, such as {out / 'report.html'}.")
    files = {"markdown": markdown, "latex": latex, "csv": csv, "json": json}
    check_files(files, {"out": out})
    data = write(runs, out, files)
    for note in data["notes"]:
        print(f"note: {note}", file=sys.stderr)
    for line in data["headlines"]:
        console.print(line, markup=False)
    console.print(f"Report of {counted(len(data['runs']), 'run')}: {out}", markup=False)
