"""Which found run is which wanted one; what does not fit is named, never mixed in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedacd.errors import ConfigError, RecordError
from fedacd.tables.declare import TABLES
from fedacd.tables.found import Found, differences
from fedacd.tables.wanted import CHOSEN, FROM_DATA, Want, Wanted, key_of, not_own, resolve


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The wanted runs by how far they are, in the order of their names."""

    done: Mapping[str, Found]
    """By the key of a wanted run, as is `partly`."""
    partly: Mapping[str, Found]

    def missing(self, runs: Sequence[Want]) -> list[Want]:
        return [want for want in runs if want.key not in self.done]


def match(wanted: Wanted, found: Sequence[Found]) -> Matched:
    """Find every wanted run. Two different records of one run, and data that changed between runs, are refused."""
    by_key: dict[str, list[Found]] = {}
    for run in found:
        by_key.setdefault(run.key, []).append(run)
    best = {want.key: _furthest(by_key[want.key]) for want in wanted.runs if want.key in by_key}
    _require_same_data(list(best.values()))
    return Matched(
        done={key: run for key, run in best.items() if run.finished},
        partly={key: run for key, run in best.items() if not run.finished},
    )


def _furthest(runs: Sequence[Found]) -> Found:
    # A folder before a summary of the same run: it has all of the rounds.
    _require_same_data(runs)
    first, *others = sorted(runs, key=lambda run: (-run.done, run.summary is not None, str(run.path)))
    for other in others:
        if not other.finished:
            continue
        numbers = other.numbers()
        if any(
            abs(numbers[key]["late"] - its["late"]) > 1e-9 for key, its in first.numbers().items() if key in numbers
        ):
            raise RecordError(
                f"{first.path} and {other.path} are records of the same run with different numbers: keep one of them."
            )
    return first


def _require_same_data(runs: Sequence[Found]) -> None:
    first: dict[str, Found] = {}
    for run in runs:
        one = first.setdefault(str(run.settings["data.name"]), run)
        for difference in differences(one.settings, run.settings, sorted(FROM_DATA)):
            raise RecordError(
                f"{one.path} and {run.path} cannot stand in one table, they were trained on different data: "
                f"{difference}."
            )


def precision_of(table_runs: Wanted, found: Sequence[Found]) -> str | None:
    """The one precision of the runs that fit the table otherwise, or else of all runs; None where they have several."""
    loose = {key_of(want.identity, ["run.precision"]) for want in table_runs.runs}
    fitting: dict[str, Found] = {}
    for run in found:
        if key_of(run.settings, ["run.precision"]) in loose:
            fitting.setdefault(str(run.settings["run.precision"]), run)
    if len(fitting) > 1:
        (one, run), (other, another), *_ = sorted(fitting.items())
        raise ConfigError(
            f"runs of different settings cannot be mixed into one table: run.precision is {one!r} in {run.path} and "
            f"{other!r} in {another.path}. Choose with --precision."
        )
    all_ = {str(run.settings["run.precision"]) for run in found}
    return next(iter(fitting), None) or (all_.pop() if len(all_) == 1 else None)


def elsewhere(wanted: Wanted, found: Sequence[Found]) -> list[str]:
    """Hints at runs that fit but for what the options choose: other rounds, another precision."""
    loose = {key_of(want.identity, CHOSEN) for want in wanted.runs}
    numbers: dict[tuple[int, str], int] = {}
    for run in found:
        rounds, precision = int(run.settings["train.rounds"]), str(run.settings["run.precision"])
        if (rounds, precision) != (wanted.rounds, wanted.precision) and key_of(run.settings, CHOSEN) in loose:
            numbers[rounds, precision] = numbers.get((rounds, precision), 0) + 1
    return [
        f"{number} other {'run fits' if number == 1 else 'runs fit'} the table but for --rounds {rounds} "
        f"--precision {precision}"
        for (rounds, precision), number in sorted(numbers.items())
    ]


def strangers(wanted: Wanted, matched: Matched, found: Sequence[Found]) -> list[str]:
    """Runs that would be in the table but for settings that neither it nor another table names; with the difference."""
    missing: dict[tuple[str, ...], list[Want]] = {}
    for want in wanted.runs:
        if want.key not in matched.done:
            missing.setdefault(_place(want.identity), []).append(want)
    near: list[tuple[Found, str]] = []
    for run in found:
        for want in missing.get(_place(run.settings), []):
            identity = {**want.identity, **not_own(run.settings)}
            keys = [key for key in identity if run.settings.get(key) != identity[key]]
            if keys and not (want.declared | CHOSEN) & set(keys):
                told = ", ".join(differences(run.settings, identity, keys))
                near.append((run, f"{run.path} is not the run {want.name}: {told}"))
                break
    known = _of_all_tables() if near else set()
    return [message for run, message in near if key_of(run.settings, CHOSEN) not in known]


def _place(settings: Mapping[str, object]) -> tuple[str, ...]:
    keys = ("data.name", "method.name", "partition.beta", "run.seed")
    return tuple(str(settings.get(key)) for key in keys)


def _of_all_tables() -> set[str]:
    cells = [table.settings(row, column) for table in TABLES.values() for row in table.rows for column in table.columns]
    return {key_of(resolve(settings), CHOSEN) for settings in cells}
