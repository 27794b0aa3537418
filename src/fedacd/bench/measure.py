"""From measurements to medians and ratios.

Contestants take turns (A, B, C, A, B, C ...), so that a machine that grows warm or busy does so for all of them. Those
that share a process change places from turn to turn. A contestant's rate is the median over its turns; a ratio is the
median of the ratios of turns that belong together.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A run has finished a round."""

    run: int
    round: int
    at: float
    """Seconds on some clock."""
    samples: int
    """Trained in that round."""


def window(events: Iterable[Event], last_round: int) -> tuple[int, float]:
    """Samples and seconds of the rounds from the second to the last but one, of one run or of several at a time.

    The first round, with compilation in it, and the last one, which is always evaluated, do not count. A run's window
    lasts from the end of its first round to the end of its last but one; the seconds are those that any run's window
    covers. So, where rounds are reported as they end, all work that is counted happened in the seconds that are
    counted, and with several runs at a time the rate is, if anything, too low.
    """
    runs: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.at):
        if event.round < last_round:
            runs.setdefault(event.run, []).append(event)
    samples = sum(event.samples for run in runs.values() for event in run[1:])
    seconds, covered = 0.0, float("-inf")
    for start, end in sorted((run[0].at, run[-1].at) for run in runs.values()):
        seconds += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return samples, seconds


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One turn of one contestant, as its process reports it."""

    samples: int
    """Trained in the timed rounds."""
    seconds: float
    rounds: int
    """That were timed."""
    real_data: bool
    peak_memory: int | None = None
    """Bytes: of the device on CUDA, of all processes that train on a CPU."""
    how: str = ""
    """Processes and threads."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """What this engine says of itself: occupancy, slots, seconds of compilation."""

    @property
    def rate(self) -> float:
        """Samples trained a second."""
        return self.samples / self.seconds


Turn = Measured | str
"""A measurement, or why there is none."""


def take_turns(
    groups: Sequence[Sequence[str]],
    repeats: int,
    measure: Callable[[Sequence[str]], Sequence[Turn]],
    before: Callable[[int], None] = lambda _: None,
) -> dict[str, list[Turn]]:
    """Measure every group of contestants once, then every one again. One in which something failed is not tried again.

    `measure` is given the names of a group, and in every other turn the last of them first.
    """
    turns: dict[str, list[Turn]] = {name: [] for group in groups for name in group}
    for repeat in range(repeats):
        before(repeat)
        for group in groups:
            if not any(isinstance(turn, str) for name in group for turn in turns[name]):
                order = group[::-1] if repeat % 2 else group
                for name, turn in zip(order, measure(order), strict=True):
                    turns[name].append(turn)
    return turns


@dataclass(frozen=True, kw_only=True)
class Row:
    """A contestant's line of the table."""

    name: str
    title: str
    rate: float | None
    """Samples a second: the median over its turns."""
    rates: list[float]
    ratios: dict[str, float]
    """How many times as fast as each of those that it is compared with: medians over turns."""
    full_run_seconds: float | None
    """Of 200 rounds, extrapolated; with several runs at a time one run's share."""
    rounds: int | None
    peak_memory: int | None
    occupancy: float | None
    compile_seconds: float | None
    """Of the first turn: later ones find compiled programs on the disk."""
    slots: int | None
    how: str
    error: str | None


def summarise(
    turns: Mapping[str, Sequence[Turn]], titles: Mapping[str, str], baselines: Sequence[str], full_run: float
) -> list[Row]:
    """One row a contestant; `full_run` is the number of samples of a whole run."""
    rows = []
    for name, all_turns in turns.items():
        done = [turn for turn in all_turns if isinstance(turn, Measured)]
        rate = statistics.median(turn.rate for turn in done) if done else None
        rows.append(
            Row(
                name=name,
                title=titles[name],
                rate=rate,
                rates=[turn.rate for turn in done],
                ratios={base: ratio for base in baselines if (ratio := _ratio(all_turns, turns.get(base, ())))},
                full_run_seconds=full_run / rate if rate else None,
                rounds=done[0].rounds if done else None,
                peak_memory=max((turn.peak_memory for turn in done if turn.peak_memory), default=None),
                occupancy=_middle(turn.engine.get("occupancy") for turn in done),
                compile_seconds=done[0].engine.get("compile_seconds") if done else None,
                slots=done[0].engine.get("slots") if done else None,
                how=done[0].how if done else "",
                error=next((turn for turn in all_turns if isinstance(turn, str)), None),
            )
        )
    return rows


def _ratio(turns: Sequence[Turn], baseline: Sequence[Turn]) -> float | None:
    pairs = zip(turns, baseline, strict=False)
    return _middle(a.rate / b.rate for a, b in pairs if isinstance(a, Measured) and isinstance(b, Measured))


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
