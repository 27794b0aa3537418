import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedacd.errors import RecordError
from fedacd.records import CONFIG, PARTITION, ROUNDS
from fedacd.tables import render
from fedacd.tables.cells import fill
from fedacd.tables.declare import TABLES
from fedacd.tables.look import look_in, read_from
from fedacd.tables.summaries import MOST_BYTES, summarise, write_summaries
from fedacd.tables.wanted import Wanted
from tests.report.made import make_custom, make_run
from tests.tables.conftest import invoke, line, made_run, made_session


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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"accuracy_client": None, "risk": None, "kl_local": None}, ": accuracy_client was not measured"),
        ({"risk": float("nan")}, " is damaged (ValueError: "),
        ({"seconds": None}, " is damaged (TypeError: "),
        ({"accuracy": None}, ": no round of the run has been measured"),
        (5, " is damaged (AttributeError: "),
        ("no seconds", " is damaged (KeyError: 'seconds')"),
    ],
    ids=str,
)
def test_a_run_that_cannot_be_summed_up_is_left_out_and_named(
    wanted: Wanted, tmp_path: Path, changed: Any, message: str
) -> None:
    made_run(tmp_path / "runs", wanted.runs[1], [0.1, 0.2])
    lines = [changed if changed == 5 else line(i, 0.1) | (changed if isinstance(changed, dict) else {}) for i in (1, 2)]
    if changed == "no seconds":
        del lines[0]["seconds"]
    run = made_run(tmp_path / "runs", wanted.runs[0], [0.1, 0.2])
    (run / ROUNDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    written, (note,) = write_summaries([tmp_path / "runs"], tmp_path / "results")
    assert [path.stem for path in written] == [wanted.runs[1].name]
    assert note.startswith(f"left out: {run / ROUNDS}{message}")


@pytest.mark.parametrize("config", ["[train\n", '[train]\nrounds = "many"\n'])
def test_a_run_whose_config_cannot_be_read_is_left_out_and_named(wanted: Wanted, tmp_path: Path, config: str) -> None:
    made_run(tmp_path / "runs", wanted.runs[1], [0.1, 0.2])
    run = made_run(tmp_path / "runs", wanted.runs[0], [0.1, 0.2])
    (run / CONFIG).write_text(config)
    stdout, _ = invoke("summaries", tmp_path / "results", tmp_path / "runs")
    assert stdout.startswith(f"note: left out: {run}: ")
    assert len(list((tmp_path / "results").iterdir())) == 1


@pytest.mark.parametrize("damage", ['{"holds": "fedacd run summary"}', '{"holds"'])
def test_a_damaged_summary_stays_and_is_named(wanted: Wanted, tmp_path: Path, damage: str) -> None:
    for want in wanted.runs[:2]:
        made_run(tmp_path / "runs", want, [0.1, 0.2])
    path = tmp_path / f"{wanted.runs[0].name}.json"
    path.write_text(damage)
    written, (note,) = write_summaries([tmp_path / "runs"], tmp_path)
    assert [path.stem for path in written] == [wanted.runs[1].name]
    assert note == f"left out: {path} is a damaged summary: remove it to write it anew."
    assert path.read_text() == damage


def test_who_holds_what_is_told_by_a_digest_of_custom_partitions_alone(tmp_path: Path) -> None:
    lists = ([0, 1], [2]), ([0], [1, 2]), ([0, 1], [2])
    one, other, same = (
        summarise(make_custom(tmp_path / str(number), *own))["lists"] for number, own in enumerate(lists)
    )
    assert one == same != other
    assert len(one) == 8
    plain = make_run(tmp_path / "plain")
    shutil.copy(tmp_path / "0" / PARTITION, plain)
    assert "lists" not in summarise(plain)


@pytest.mark.parametrize("content", [b"cut", None])
def test_a_partition_that_cannot_be_read_is_not_told(content: bytes | None, tmp_path: Path) -> None:
    path = make_custom(tmp_path / "a", [0]) / PARTITION
    path.unlink()
    if content:
        path.write_bytes(content)
    assert "lists" not in summarise(tmp_path / "a")
