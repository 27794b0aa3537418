import json
from pathlib import Path

import pytest

from fedacd.errors import RecordError
from fedacd.records import ROUNDS
from fedacd.tables import render
from fedacd.tables.cells import fill
from fedacd.tables.declare import TABLES
from fedacd.tables.look import look_in, read_from
from fedacd.tables.summaries import MOST_BYTES, summarise, write_summaries
from fedacd.tables.wanted import Wanted
from tests.tables.conftest import made_run, made_session


def test_a_table_from_summaries_is_the_table_from_the_runs(wanted: Wanted, tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    for number, want in enumerate(wanted.runs):
        made_run(runs, want, [0.1, 0.123456789 + number / 97])
    written, notes = write_summaries([runs], results)
    assert (len(written), notes) == (12, [])
    seen = read_from(lambda precision: wanted, [results], None)
    from_runs = render.as_json(fill(wanted, look_in(wanted, runs).matched))
    assert render.as_json(fill(seen.wanted, seen.matched)) == from_runs
    both = read_from(lambda precision: wanted, [results, runs], None)
    assert render.as_json(fill(both.wanted, both.matched)) == from_runs


@pytest.mark.parametrize("rounds", [200, 1000])
def test_a_summary_is_small(rounds: int, tmp_path: Path) -> None:
    want = Wanted(TABLES[1], seeds=[0], rounds=rounds, precision="bf16").runs[0]
    run = made_run(tmp_path, want, [0.123456789 + i / 7000 for i in range(rounds)])
    made_session(run, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:10+00:00")
    (path,), _ = write_summaries([run], tmp_path / "results")
    assert path.stat().st_size <= MOST_BYTES
    content = json.loads(path.read_text())
    assert content["curve"]["round"][0] % 10 == 0
    assert len(content["curve"]["round"]) == len(content["curve"]["accuracy"])
    if rounds == 200:
        assert content["curve"]["round"] == list(range(10, 201, 10))
        assert content["curve"]["accuracy"][-1] == pytest.approx(0.1519, abs=1e-4)
    assert content["config"]["run.precision"] == "bf16"
    assert content["final"]["accuracy"]["last"] == pytest.approx(0.123456789 + (rounds - 1) / 7000)
    assert content["made"]["seconds"] == 1.5 * rounds


def test_unfinished_runs_are_left_out(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[0], [0.1])
    written, notes = write_summaries([tmp_path], tmp_path / "results")
    assert written == []
    assert "is not finished: 1 of 2 rounds" in notes[0]


def test_other_numbers_are_not_overwritten(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", wanted.runs[0], [0.1, 0.2])
    write_summaries([run], tmp_path)
    write_summaries([run], tmp_path)
    with pytest.raises(RecordError, match=r"is of a run with other numbers"):
        write_summaries([made_run(tmp_path / "b", wanted.runs[0], [0.1, 0.3])], tmp_path)


def test_damaged_and_foreign_files(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs", wanted.runs[0], [0.1, 0.2])
    write_summaries([run], tmp_path)
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "broken.json").write_text('{"holds"')
    content = {**summarise(run), "final": {}}
    (tmp_path / "damaged.json").write_text(json.dumps(content))
    seen = read_from(lambda precision: wanted, [tmp_path], None)
    assert len(seen.matched.done) == 1
    assert ["broken" in seen.notes[0], "damaged summary" in seen.notes[1]] == [True, True]


@pytest.mark.parametrize(("number", "kept"), [(200, True), (201, False)])
def test_the_accuracy_of_many_classes_is_left_out(number: int, kept: bool, tmp_path: Path) -> None:
    want = Wanted(TABLES[1], seeds=[0], rounds=200, precision="bf16").runs[0]
    run = made_run(tmp_path, want, [0.123456789 + i / 7000 for i in range(200)])
    lines = [
        json.loads(line) | {"per_class": [0.123456789] * number} for line in (run / ROUNDS).read_text().splitlines()
    ]
    (run / ROUNDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    content = summarise(run)
    assert ("classes" in content) == kept
    assert len(content["curve"]["round"]) == 20
