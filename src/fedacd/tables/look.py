"""What there is of a table: in the folder that it is trained into, or in folders that are only read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedacd.errors import ConfigError, RecordError
from fedacd.records import CONFIG
from fedacd.tables.found import Found, read_entries, scan
from fedacd.tables.match import Matched, elsewhere, match, precision_of, strangers
from fedacd.tables.wanted import Wanted


@dataclass(frozen=True, kw_only=True)
class Look:
    wanted: Wanted
    matched: Matched
    found: Sequence[Found]
    notes: Sequence[str]


def look_in(wanted: Wanted, out: Path) -> Look:
    """In the folder of trained runs, which may hold runs of other experiments: those are named and left alone."""
    notes: list[str] = []
    if (out / CONFIG).exists():
        raise ConfigError(f"out = {str(out)!r}: must be a folder in which runs have theirs, and it is a run itself.")
    found = scan(out, notes) if out.exists() else []
    matched = match(wanted, [run for run in found if run.summary is None])
    notes += [f"left out: {text}." for text in strangers(wanted, matched, found)]
    notes += [f"left out: {text}." for text in elsewhere(wanted, found)]
    return Look(wanted=wanted, matched=matched, found=found, notes=notes)


def read_from(make: Callable[[str], Wanted], places: Sequence[Path], precision: str | None) -> Look:
    """In folders and summaries that are to be shown: a run that is almost the table's is a mistake, and refused.

    `make` gives the wanted runs at a precision; that of the runs found is taken where none is asked for.
    """
    notes: list[str] = []
    found: list[Found] = []
    for place in places:
        runs = read_entries([place], notes) if place.is_file() else scan(place, notes)
        if not runs:
            raise RecordError(_joined(f"{place} holds no fedacd runs and no summaries of runs", notes))
        found += runs
    wanted = make(precision or precision_of(make("fp32"), found) or "fp32")
    matched = match(wanted, found)
    if wrong := strangers(wanted, matched, found):
        raise ConfigError(f"runs of different settings cannot be mixed into one table: {wrong[0]}.")
    hints = elsewhere(wanted, found)
    if not matched.done:
        where = ", ".join(map(str, places))
        begins = f"there is no finished run of table {wanted.table.number} in {where}"
        raise RecordError(_joined(begins, [*hints, *notes]))
    notes += [f"left out: {text}." for text in hints]
    return Look(wanted=wanted, matched=matched, found=found, notes=notes)


def _joined(text: str, reasons: Sequence[str]) -> str:
    return "; ".join(part.removesuffix(".") for part in (text, *reasons)) + "."
