"""Summaries beside run folders and in place of them."""

import functools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedacd.errors import RecordError
from fedacd.report import collect
from fedacd.report.compare import late_mean
from fedacd.report.read import read_runs
from fedacd.report.series import records
from tests.report.made import make_run, make_summary, ramp


def damage(path: Path, **parts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def raised(record: dict[str, Any], by: float) -> dict[str, Any]:
    return record | {"accuracy": record["round"] / 100 + by}


def test_a_summary_reads_as_a_run(tmp_path: Path) -> None:
    path = make_summary(tmp_path / "cifar-beta0.1", rounds=25, seed=3, change=ramp)
    (run,), notes = read_runs([path])
    assert [(line["round"], line["accuracy"]) for line in run.rounds] == [(10, 0.1), (20, 0.2)]
    assert (run.name, run.seed, run.done, run.unfinished) == ("cifar-beta0.1", 3, 25, None)
    assert (run.counts, run.matrices, run.session) == (None, {}, {"seconds": 12.5})
    assert [note.split(":")[0] for note in notes] == ["1 of 1 runs is a summary"]


def test_those_directly_in_a_folder_are_found(tmp_path: Path) -> None:
    make_summary(tmp_path / "results" / "a")
    make_summary(tmp_path / "results" / "trials" / "b", seed=1)
    make_run(tmp_path / "results" / "runs" / "c", seed=2)
    runs, notes = read_runs([tmp_path / "results"])
    assert [run.name for run in runs] == ["a", "c"]
    assert [note.split(":")[0] for note in notes] == ["1 of 2 runs is a summary"]
    runs, notes = read_runs([tmp_path / "results" / "trials", tmp_path / "results", tmp_path / "results" / "a.json"])
    assert [run.name for run in runs] == ["b", "a", "c"]
    assert [note.split(":")[0] for note in notes] == ["2 of 3 runs are summaries"]


def test_foreign_files_are_passed_over_unless_they_are_named(tmp_path: Path) -> None:
    path = make_summary(tmp_path / "results" / "a")
    foreign = [path.with_name("other.json"), path.with_name("text.txt")]
    foreign[0].write_text('{"holds": "something else"}')
    foreign[1].write_text(path.read_text())
    assert len(read_runs([tmp_path / "results"])[1]) == 1
    (run,), notes = read_runs([path, *foreign])
    assert run.folder == path
    assert notes[:2] == [f"{file} is left out: it is neither a run folder nor a summary" for file in foreign]
    path.unlink()
    with pytest.raises(RecordError, match=r"it holds no fedacd run.*a summary is a \.json file"):
        read_runs([tmp_path / "results"])


@pytest.mark.parametrize(
    "parts",
    [
        {"final": {}},
        {"curve": None},
        {"curve": {"round": [10, 20], "accuracy": [0.5]}},
        {"curve": {"round": [10], "accuracy": [None]}},
        {"curve": {"round": [math.inf], "accuracy": [0.5]}},
        {"rounds": math.inf},
        {"rounds": -3},
        {"classes": "12"},
        {"made": 3},
        {"config": {}},
        {"config": {"method.name": "fedavg", "train.lr": "fast"}},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_a_damaged_summary_is_left_out(parts: dict[str, Any], tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    damage(make_summary(tmp_path / "bad", seed=1), **parts)
    (run,), (note,) = read_runs([tmp_path])
    assert run.name == "good"
    assert note.startswith(f"{tmp_path / 'bad.json'} is left out: ")


def test_a_number_that_is_not_finite_is_damage_too(tmp_path: Path) -> None:
    path = make_summary(tmp_path / "bad")
    final = json.loads(path.read_text())["final"]
    damage(path, final=final | {"risk": {"late": float("nan"), "last": 0.5, "best": 0.5}})
    with pytest.raises(RecordError, match=r"no run to report.*damaged summary.*not finite"):
        read_runs([tmp_path])


def test_a_file_cut_short_is_the_only_thing_said_of_its_folder(tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    path = make_summary(tmp_path / "results" / "bad", seed=1)
    path.write_text(path.read_text()[:-9])
    _, (note,) = read_runs([tmp_path / "good", tmp_path / "results"])
    assert note.startswith(f"{path} is left out: cannot read")


def test_of_a_folder_and_its_summary_the_folder_counts(tmp_path: Path) -> None:
    summary, folder = make_summary(tmp_path / "a"), make_run(tmp_path / "runs" / "a")
    for paths in ([summary, folder], [folder, summary]):
        (run,), notes = read_runs(paths)
        assert run.folder == folder
        assert notes == []


def test_a_summary_counts_before_a_folder_that_has_not_come_so_far(tmp_path: Path) -> None:
    summary, folder = make_summary(tmp_path / "a"), make_run(tmp_path / "runs" / "a", done=5)
    (run,), notes = read_runs([folder, summary])
    assert run.folder == summary
    assert notes[0] == f"{folder} is left out: {summary} holds the same run"


def test_the_late_mean_is_exact(tmp_path: Path) -> None:
    (run,), _ = read_runs([make_summary(tmp_path / "a", rounds=25, change=ramp)])
    assert late_mean(run, "accuracy") == late_mean(run, "accuracy", 25) == pytest.approx(0.205)  # rounds 16 to 25
    assert [late_mean(run, "accuracy", end) for end in (20, 19, 9)] == [0.2, 0.1, None]


def test_the_row_is_exact(tmp_path: Path) -> None:
    make_summary(tmp_path / "a", rounds=25, change=ramp)
    (group,) = collect([tmp_path])["groups"]
    row = group["row"]
    assert [row[key]["mean"] for key in ("accuracy", "last", "best", "seconds")] == [20.5, 25, 90, 0.5]
    assert row["megabytes"] is None


@pytest.mark.parametrize("summary", [False, True])
def test_the_same_run_with_other_numbers_is_named(summary: bool, tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=25, change=functools.partial(raised, by=0))
    make = make_summary if summary else make_run
    twins = [make(tmp_path / f"{by}", rounds=25, change=functools.partial(raised, by=by)) for by in (0, 0.01)]
    (run,), notes = read_runs([tmp_path / "a", *twins])
    same, other = (f"{twin} is left out: {tmp_path / 'a'} holds the same run" for twin in twins)
    assert run.name == "a"
    assert notes == ([] if summary else [same]) + [f"{other} with other numbers"]


def test_unknown_seconds_stay_unknown(tmp_path: Path) -> None:
    damage(make_summary(tmp_path / "a"), made={"device": "cpu"})
    data = collect([tmp_path])
    assert data["groups"][0]["row"]["seconds"] is None
    assert (data["runs"][0]["device"], data["runs"][0]["name"], data["runs"][0]["state"]) == ("cpu", "a", "12 rounds")


def test_differences_are_those_of_the_folders(tmp_path: Path) -> None:
    for seed in range(3):
        change = functools.partial(raised, by=0.01 + seed / 1000)
        make_run(tmp_path / "folders" / f"a{seed}", seed=seed, rounds=25, change=change)
        make_summary(tmp_path / "summaries" / f"a{seed}", seed=seed, rounds=25, change=change)
        for place in ("folders", "summaries"):
            make_run(tmp_path / place / f"b{seed}", method="fedavg", seed=seed, rounds=25, change=ramp)
    (folders,), (summaries,) = (collect([tmp_path / place])["pairs"] for place in ("folders", "summaries"))
    assert summaries["mean"] == folders["mean"] == pytest.approx(1.1)
    assert summaries == folders | {"p": pytest.approx(folders["p"]), "holm": pytest.approx(folders["holm"])}


def test_beside_an_unfinished_run_the_curve_has_to_do(tmp_path: Path) -> None:
    make_summary(tmp_path / "a", rounds=25, change=ramp)
    make_run(tmp_path / "b", method="fedavg", rounds=25, done=20, change=lambda record: record | {"accuracy": 0.15})
    (found,) = collect([tmp_path])["pairs"]
    assert (found["end"], found["mean"]) == (20, pytest.approx(5))


def test_few_rounds_have_numbers_and_no_curve(tmp_path: Path) -> None:
    for method, by in (("fedacd", 0.02), ("fedavg", 0.0)):
        make_summary(tmp_path / method, method=method, rounds=4, change=functools.partial(raised, by=by))
    data = collect([tmp_path])
    assert data["pairs"][0]["mean"] == pytest.approx(2)
    assert [group["curves"] for group in data["groups"]] == [None, None]
    assert data["groups"][0]["row"]["accuracy"]["mean"] == 4.5


def test_the_smooth_curve_ends_in_the_tables_number(tmp_path: Path) -> None:
    make_summary(tmp_path / "a", rounds=25, change=ramp)
    (group,) = collect([tmp_path])["groups"]
    curves = group["curves"]
    assert (curves["round"], curves["seconds"], curves["megabytes"]) == ([10, 20], [None] * 2, [None] * 2)
    assert curves["accuracy"] == {"mean": [10, 20], "sd": None, "smooth": [10, 20.5], "smooth_sd": None}
    assert "train_loss" not in curves


def test_a_mixed_group_is_drawn_where_all_are_measured(tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=20, change=functools.partial(raised, by=0))
    make_summary(tmp_path / "b", rounds=20, seed=1, change=functools.partial(raised, by=0.1))
    (group,) = collect([tmp_path])["groups"]
    curves = group["curves"]
    assert (curves["round"], curves["seconds"]) == ([10, 20], [5, 10])
    assert curves["accuracy"]["mean"] == [15, 25]
    # The folder's mean of rounds 1 to 10 is 5.5, the summary knows round 10 alone: 20. At the end: 15.5 and 25.5.
    assert curves["accuracy"]["smooth"] == [12.75, 20.5]
    assert group["row"]["accuracy"]["mean"] == 20.5


def test_an_unfinished_run_does_not_cut_a_mixed_group(tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=30, done=15)
    make_summary(tmp_path / "b", rounds=30, seed=1)
    (group,) = collect([tmp_path])["groups"]
    assert group["curves"]["round"] == [10, 20, 30]


def test_the_cost_of_an_accuracy_counts_points(tmp_path: Path) -> None:
    (run,), _ = read_runs([make_summary(tmp_path / "a", rounds=25, change=ramp)])
    assert records(run) == [[10, None, None, 10.0], [20, None, None, 20.0]]


def test_the_accuracy_of_each_class_is_the_runs(tmp_path: Path) -> None:
    classes = [0.5, 0.25, None]

    def change(record: dict[str, Any]) -> dict[str, Any]:
        values = [None if value is None else value + record["round"] / 250 for value in classes]
        return record | {"per_class": values}

    path = make_summary(tmp_path / "a", rounds=25, change=change)
    # Rounds 16 to 25: 20.5/250 on average.
    assert json.loads(path.read_text())["classes"] == [0.582, 0.332, None]
    from_run = collect([make_run(tmp_path / "run", rounds=25, change=change)])
    assert collect([path])["groups"][0]["per_class"] == from_run["groups"][0]["per_class"] == [58.2, 33.2, None]
    damage(path, classes=["x"])
    with pytest.raises(RecordError, match="damaged summary"):
        read_runs([path])


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_summary(tmp_path / "a")
    closed = tmp_path / "closed"
    closed.mkdir()

    def refusing(ask: Callable[[Any], Any], path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return ask(path)

    for name in ("scandir", "listdir"):  # what os.walk and pathlib ask; root may read everything
        monkeypatch.setattr(os, name, functools.partial(refusing, getattr(os, name)))
    runs, notes = read_runs([tmp_path / "a.json", closed])
    assert ([run.name for run in runs], notes[0]) == (["a"], f"{closed} is left out: Permission denied")
