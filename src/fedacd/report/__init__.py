"""`fedacd report`: any set of runs as one page that says which method is better, by how much, how surely, and why.

find.py       where run folders and summaries are
read.py       what they hold, whatever state they are in, each run once
group.py      which runs repeat each other, which compete, and their names
student.py    the paired test
compare.py    the comparison table, the differences, the sentences
series.py     curves, costs, per-class accuracies, weights
pictures.py   matrices and partitions, within a budget of bytes
page.py       one file of it all, with page.html, page.css and the scripts
texts.py      the comparison table for papers and programs
command.py    the command line
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedacd.files import write_atomically, writing
from fedacd.report import page, texts
from fedacd.report.group import group
from fedacd.report.read import read_runs


def collect(paths: Sequence[Path]) -> dict[str, Any]:
    """What the page of these runs shows; its `notes` say what was left out, its `headlines` who is better."""
    runs, notes = read_runs(paths)
    grouped = group(runs, notes)
    return page.payload(grouped, notes)


def write(paths: Sequence[Path], out: Path, files: Mapping[str, Path | None] | None = None) -> dict[str, Any]:
    """Write the page of these runs, and the files of `texts.FORMATS` that are wanted; return what the page shows."""
    data = collect(paths)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.render(data).encode())
    for name, path in (files or {}).items():
        if path:
            write_atomically(path, texts.FORMATS[name](data).encode())
    return data
