"""Run folders in every state: whole, cut, foreign, twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedacd.errors import RecordError
from fedacd.records import CONFIG, MATRICES, PARTITION, ROUNDS
from fedacd.report import write
from fedacd.report.read import read_runs
from tests.report.made import flat, make_custom, make_run, summed_up


def test_runs_are_found_below_a_folder_and_by_name(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "demo" / "a")
    make_run(tmp_path / "b", seed=1)
    (tmp_path / "runs" / "log.txt").write_text("not a run")
    runs, notes = read_runs([tmp_path / "runs", tmp_path / "b", tmp_path / "runs" / "demo" / "a"])
    assert [run.folder.name for run in runs] == ["a", "b"]
    assert notes == []
    assert (runs[0].seed, runs[0].done, runs[0].unfinished) == (0, 12, None)
    assert runs[0].counts is not None
    assert runs[0].counts.shape == (5, 4)


def test_links_are_followed_and_count_once(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere" / "a")
    make_run(tmp_path / "runs" / "b", seed=1)
    for link, target in (("a", "elsewhere/a"), ("again", "elsewhere/a"), ("loop", "runs"), ("gone", "nowhere")):
        (tmp_path / "runs" / link).symlink_to(tmp_path / target)
    runs, notes = read_runs([tmp_path / "runs"])
    assert sorted(run.name for run in runs) == ["a", "b"]
    assert notes == []


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no run to report"):
        read_runs([tmp_path])
    with pytest.raises(RecordError, match="nowhere does not exist"):
        read_runs([tmp_path / "nowhere"])


def test_foreign_folders_and_files_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / CONFIG).write_text("[tool]\nx = 1\n")
    (tmp_path / "odd" / CONFIG).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    runs, notes = read_runs([tmp_path, tmp_path / "file", tmp_path / "empty"])
    assert [run.folder.name for run in runs] == ["good"]
    for name in ("foreign", "odd", "file", "empty"):
        assert sum(f"/{name} is left out" in note for note in notes) == 1


def test_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a") / ROUNDS
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3][:40], *lines[4:11], lines[11][:-5]]))
    (run,), notes = read_runs([tmp_path])
    assert [record["round"] for record in run.rounds] == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert run.unfinished == "unfinished: 11 of 12 rounds"
    assert [note.split(" of ")[0] for note in notes] == ["line 4", "line 12"]


def test_a_whole_line_without_its_end_is_not_trusted(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a") / ROUNDS
    path.write_text(path.read_text()[:-1])
    (run,), notes = read_runs([tmp_path])
    assert run.done == 11
    assert len(notes) == 1


def test_lines_that_are_no_records_are_dropped(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a") / ROUNDS
    path.write_bytes(path.read_bytes() + b'[1]\n{"round": "x"}\n\xff\xfe\n')
    (run,), notes = read_runs([tmp_path])
    assert run.done == 12
    assert len(notes) == 3


@pytest.mark.parametrize(
    "damage", [{"accuracy": "0.5"}, {"bytes_up": {}}, {"per_class": True}, {"weights": ["x"]}, {"round": None}], ids=str
)
def test_a_line_in_which_something_is_no_number_is_dropped(damage: dict[str, Any], tmp_path: Path) -> None:
    make_run(tmp_path / "a", change=lambda record: record | (damage if record["round"] == 3 else {}))
    data = write([tmp_path], tmp_path / "page.html")
    assert data["groups"][0]["curves"]["round"] == [1, 2, *range(4, 13)]
    (note,) = data["notes"]
    assert note == f"line 3 of {tmp_path / 'a' / ROUNDS} is cut short or no record: dropped"


def test_numbers_that_are_not_finite_count_as_absent(tmp_path: Path) -> None:
    make_run(tmp_path / "a", change=lambda record: record | {"risk": float("nan")})
    (run,), _ = read_runs([tmp_path])
    assert {record["risk"] for record in run.rounds} == {None}


def test_numbers_inside_lists_count_as_absent_too(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    make_run(
        tmp_path / "a",
        change=lambda record: (
            record | {"per_class": [0.5, nan]} | ({"weights": [inf, 0.5]} if record["round"] == 3 else {})
        ),
    )
    (run,), _ = read_runs([tmp_path])
    assert run.rounds[0]["per_class"] == [0.5, None]
    data = write([tmp_path], tmp_path / "page.html")
    assert data["groups"][0]["per_class"] == [50, None]
    assert data["shares"][0]["rounds"] == [1, 2, *range(4, 13)]


def test_damaged_matrices_are_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a") / MATRICES
    path.write_bytes(path.read_bytes()[:-10])
    (run,), notes = read_runs([tmp_path])
    assert (run.counts, run.matrices) == (None, {})
    assert "damaged" in notes[0]


def test_of_the_same_run_twice_the_longer_one_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "a", done=3)
    make_run(tmp_path / "b", done=7)
    (run,), notes = read_runs([tmp_path])
    assert run.folder.name == "b"
    assert "holds the same run" in notes[0]


def test_of_other_normalisation_is_another_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__mean=[0.5], data__std=[0.25])
    make_run(tmp_path / "b", data__mean=[0.4], data__std=[0.25])
    make_run(tmp_path / "c", data__mean=[0.49139967861519607], data__std=[1])
    make_run(tmp_path / "d", data__mean=[0.49139967861519701], data__std=[1.0])  # the last digits do not count
    runs, notes = read_runs([tmp_path])
    assert [run.name for run in runs] == ["a", "b", "c"]
    assert len(notes) == 1


def test_of_another_custom_partition_is_another_run(tmp_path: Path) -> None:
    for name, lists in (("a", ([0, 1], [2])), ("b", ([0], [1, 2])), ("c", ([0, 1], [2]))):
        make_custom(tmp_path / name, *lists)
    runs, notes = read_runs([tmp_path])
    assert [run.name for run in runs] == ["a", "b"]
    assert len(notes) == 1
    assert "/c is left out: " in notes[0]


def test_a_custom_partition_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a", partition__scheme="custom")
    (make_run(tmp_path / "b", partition__scheme="custom", seed=1) / PARTITION).write_bytes(b"cut")
    runs, notes = read_runs([tmp_path])
    assert [run.lists for run in runs] == [None, None]
    assert [PARTITION in note for note in notes] == [True]


@pytest.mark.parametrize("scheme", ["iid", "shards", "custom"])
def test_a_setting_that_the_scheme_does_not_use_makes_no_other_run(scheme: str, tmp_path: Path) -> None:
    make_run(tmp_path / "a", partition__scheme=scheme, partition__beta=0.1)
    make_run(tmp_path / "b", partition__scheme=scheme, partition__beta=0.5)
    runs, notes = read_runs([tmp_path])
    assert len(runs) == 1
    assert "holds the same run" in notes[0]


def test_where_the_data_lie_makes_no_other_run(tmp_path: Path) -> None:
    for folder, path in (("a", "mine.npz"), ("b", "/home/me/mine.npz")):
        for seed in (0, 1):
            make_run(tmp_path / f"{folder}{seed}", seed=seed, data__name=path, data__fingerprint="f00d")
    runs, notes = read_runs([tmp_path])
    assert [run.name for run in runs] == ["a0", "a1"]
    assert notes == [f"{tmp_path / f'b{i}'} is left out: {tmp_path / f'a{i}'} holds the same run" for i in (0, 1)]


def test_where_lists_lie_makes_no_other_run(tmp_path: Path) -> None:
    for name, lists, path in (("a", [0, 1], "l.json"), ("b", [0, 1], "/x/l.json"), ("c", [0], "l.json")):
        make_custom(tmp_path / name, lists, [2], partition__file=path)
    runs, (note,) = read_runs([tmp_path])
    assert [run.name for run in runs] == ["a", "c"]
    assert "/b is left out: " in note


def test_a_setting_written_as_another_kind_of_number_is_the_same(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="fedprox", method__mu=1)
    make_run(tmp_path / "b", method="fedprox", method__mu=1.0)
    assert len(read_runs([tmp_path])[0]) == 1


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("done", [12, 5])
def test_a_summary_beside_its_own_custom_run_is_the_same_run(older: bool, done: int, tmp_path: Path) -> None:
    for name, lists, change in (("a", [0, 1], flat(0.5)), ("b", [0], flat(0.6))):
        summary = summed_up(make_custom(tmp_path / name, lists, [2], change=change))
        content = json.loads(summary.read_text())
        assert len(content.pop("lists")) == 8
        if older:
            summary.write_text(json.dumps(content))
        make_custom(tmp_path / "runs" / name, lists, [2], change=change, done=done)
    runs, notes = read_runs([tmp_path])
    assert sorted(run.name for run in runs) == ["a", "b"]
    assert [bool(run.final) for run in runs] == [done < 12] * 2
    assert len({run.lists for run in runs} - {None}) == 2
    assert sum("left out" in note for note in notes) == (0 if done == 12 else 2)
    assert not any("other numbers" in note for note in notes)
