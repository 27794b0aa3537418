"""Where run folders and summaries are."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedacd.errors import FedacdError, RecordError
from fedacd.records import CONFIG
from fedacd.tables.found import Found, read_summary

DEPTH = 4
"""How deep below a given folder run folders are looked for."""


def find(paths: Sequence[Path], notes: list[str]) -> dict[Path, Found | None]:
    """Run folders, and summaries with what they hold, each once."""
    found: dict[Path, tuple[Path, Found | None]] = {}
    for path in paths:
        if not path.exists():
            raise RecordError(f"{path} does not exist: name run folders, summaries, or folders that hold some.")
        said = len(notes)
        here = _below(path, notes) if path.is_dir() else _summaries([path], notes)
        if not here and len(notes) == said:
            why = "it holds no fedacd run" if path.is_dir() else "it is neither a run folder nor a summary"
            notes.append(f"{path} is left out: {why}")
        for place, summary in here.items():
            found.setdefault(place.resolve(), (place, summary))
    return dict(found.values())


def _summaries(files: Iterable[Path], notes: list[str]) -> dict[Path, Found | None]:
    """The summaries among these."""
    found: dict[Path, Found | None] = {}
    for file in files:
        if file.suffix == ".json" and not file.name.startswith(".") and file.is_file():
            try:
                found |= {summary.path: summary for summary in read_summary(file)}
            except FedacdError as error:
                notes.append(f"{file} is left out: {error}")
    return found


def _below(path: Path, notes: list[str]) -> dict[Path, Found | None]:
    """The run that a folder is, or the summaries in it and the runs below it."""
    found: dict[Path, Found | None] = {}

    def refused(error: OSError) -> None:
        notes.append(f"{error.filename} is left out: {error.strerror}")

    for place, names, files in os.walk(path, onerror=refused, followlinks=True):
        folder = Path(place)
        is_run = CONFIG in files or CONFIG in names
        if is_run:
            found[folder] = None
        elif folder == path:
            found |= _summaries((folder / name for name in sorted(files)), notes)
        deep = len(folder.relative_to(path).parts) >= DEPTH
        names[:] = [] if is_run or deep else sorted(name for name in names if not name.startswith("."))
    return found
