"""Turns, medians, ratios and the timed window, with contestants that only pretend."""

from collections.abc import Sequence

import pytest

from fedacd.bench.measure import Event, Measured, Turn, summarise, take_turns, window


def measured(rate: float, **engine: float) -> Measured:
    memory = int(rate) * 10
    return Measured(samples=1000, seconds=1000 / rate, rounds=2, real_data=False, peak_memory=memory, engine=engine)


def test_contestants_take_turns() -> None:
    order: list[str] = []

    def measure(names: Sequence[str]) -> list[Turn]:
        order.extend(names)
        return [measured(ord(name)) for name in names]

    before: list[int] = []
    turns = take_turns([["a"], ["b", "c"]], 3, measure, before.append)
    assert order == ["a", "b", "c", "a", "c", "b", "a", "b", "c"]
    assert turns == {name: [measured(ord(name))] * 3 for name in "abc"}
    assert before == [0, 1, 2]


def test_one_that_failed_is_not_tried_again() -> None:
    calls: list[str] = []

    def measure(names: Sequence[str]) -> list[Turn]:
        calls.extend(names)
        return ["out of memory" if name == "b" else measured(1) for name in names]

    turns = take_turns([["a"], ["b", "c"]], 3, measure)
    assert calls == ["a", "b", "c", "a", "a"]
    assert turns["b"] == ["out of memory"] and turns["c"] == [measured(1)]


def test_medians_and_ratios_of_turns_that_belong_together() -> None:
    # The machine is half as fast in the second turn and twice as fast in the third: 3, 4 and 2.5 times the loop.
    turns: dict[str, list[Turn]] = {
        "plain": [measured(100), measured(50), measured(200)],
        "engine": [measured(300, occupancy=0.9, compile_seconds=30, slots=24), measured(200, occupancy=0.8),
                   measured(500, occupancy=0.97)],
    }  # fmt: skip
    plain, engine = summarise(turns, {"plain": "loop", "engine": "ours"}, ["plain"], full_run=6000)
    assert plain.rate == pytest.approx(100)
    assert plain.ratios == {"plain": 1.0}
    assert engine.title == "ours"
    assert engine.rate == pytest.approx(300)
    assert engine.rates == pytest.approx([300, 200, 500])
    assert engine.ratios["plain"] == pytest.approx(3)
    assert engine.full_run_seconds == pytest.approx(20)
    assert engine.occupancy == 0.9
    assert engine.compile_seconds == 30
    assert engine.slots == 24
    assert engine.peak_memory == 5000


def test_what_is_not_known_stays_open() -> None:
    turns: dict[str, list[Turn]] = {"plain": [measured(10), "it fell over"], "engine": ["no such kernel"]}
    plain, engine = summarise(turns, {"plain": "", "engine": ""}, ["plain", "plain-tf32"], 1)
    assert plain.error == "it fell over"
    assert plain.rate == pytest.approx(10)
    assert plain.occupancy is None
    assert (engine.rate, engine.ratios, engine.full_run_seconds, engine.peak_memory) == (None, {}, None, None)
    assert engine.error == "no such kernel"


def test_the_window_of_one_run_leaves_out_its_first_and_last_round() -> None:
    events = [Event(0, 1, 60.0, 7), Event(0, 2, 62.0, 10), Event(0, 3, 65.0, 20), Event(0, 4, 99.0, 1000)]
    assert window(events, last_round=4) == (30, 5.0)


def test_the_window_of_runs_one_after_the_other_leaves_out_what_lies_between() -> None:
    events = [
        *(Event(0, round_, at, 10) for round_, at in [(1, 5.0), (2, 6.0), (3, 7.0), (4, 50.0)]),
        *(Event(1, round_, at, 10) for round_, at in [(1, 80.0), (2, 82.0), (3, 84.0), (4, 99.0)]),
    ]
    assert window(events, last_round=4) == (40, 6.0)


def test_the_window_of_runs_at_a_time_counts_every_second_once() -> None:
    events = [
        *(Event(0, round_, at, 10) for round_, at in [(1, 10.0), (2, 12.0), (3, 14.0), (4, 16.0)]),
        *(Event(1, round_, at, 10) for round_, at in [(1, 11.0), (2, 13.0), (3, 15.0), (4, 17.0)]),
        *(Event(2, round_, at, 10) for round_, at in [(1, 11.5), (2, 12.0), (3, 12.5), (4, 13.0)]),
    ]
    assert window(reversed(events), last_round=4) == (60, 5.0)
