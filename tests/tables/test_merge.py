"""Joining records: copied whole, kept where longer, refused where they disagree."""

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
import torch

from fedacd.errors import RecordError
from fedacd.files import write_safetensors
from fedacd.records import CONFIG, LOCK, ROUNDS, STATE, read_rounds
from fedacd.tables.declare import Table
from fedacd.tables.merge import merge
from fedacd.tables.wanted import Wanted
from tests.tables.conftest import invoke, line, made_run


def made_checkpoint(run: Path, round_: int) -> None:
    write_safetensors(run / STATE, {"w": torch.zeros(1)}, {"holds": "checkpoint", "round": round_})


def test_new_runs_are_copied_and_the_longer_record_stays(wanted: Wanted, tmp_path: Path) -> None:
    a, b, into = tmp_path / "a", tmp_path / "b", tmp_path / "all"
    made_run(a, wanted.runs[0], [0.1])
    made_run(a, wanted.runs[1], [0.1, 0.2])
    made_run(b, wanted.runs[0], [0.1, 0.2])
    made_run(b, wanted.runs[1], [0.1])
    merged = merge(into, [a, b])
    assert (len(merged.new), merged.longer, merged.same) == (2, [], [wanted.runs[1].name])
    for want in wanted.runs[:2]:
        assert len(read_rounds(into / want.name)) == 2
    again = merge(into, [a, b])
    assert (again.new, again.longer, len(again.same)) == ([], [], 4)
    assert sorted(path.name for path in into.iterdir()) == sorted(want.name for want in wanted.runs[:2])


def test_a_shorter_record_is_replaced(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path / "all", wanted.runs[0], [0.1])
    source = made_run(tmp_path / "a", wanted.runs[0], [0.1, 0.2])
    (source / "model.safetensors").write_text("weights")
    (source / LOCK).touch()
    assert merge(tmp_path / "all", [source]).longer == [wanted.runs[0].name]
    there = tmp_path / "all" / wanted.runs[0].name
    assert {path.name for path in there.iterdir()} == {CONFIG, ROUNDS, "model.safetensors"}
    assert [path.name for path in (tmp_path / "all").iterdir()] == [wanted.runs[0].name]


def test_times_may_differ(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path / "all", wanted.runs[0], [0.1])
    run = made_run(tmp_path / "a", wanted.runs[0], [0.1])
    (run / ROUNDS).write_text(json.dumps(line(1, 0.1, seconds=99)) + "\n")
    assert merge(tmp_path / "all", [tmp_path / "a"]).same == [wanted.runs[0].name]


def test_other_numbers_are_refused_and_nothing_is_written(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path / "all", wanted.runs[1], [0.1, 0.2])
    made_run(tmp_path / "a", wanted.runs[0], [0.1])
    made_run(tmp_path / "a", wanted.runs[1], [0.1, 0.3])
    with pytest.raises(RecordError, match=r"conflicts with .*: in round 2 accuracy is 0.2 there and 0.3 here"):
        merge(tmp_path / "all", [tmp_path / "a"])
    assert [path.name for path in (tmp_path / "all").iterdir()] == [wanted.runs[1].name]


def test_another_config_of_the_same_name_is_refused(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path / "a", wanted.runs[0], [0.1])
    made_run(tmp_path / "b", wanted.runs[0], [0.1], {"train.lr": 0.5})
    with pytest.raises(RecordError, match=r"train.lr is 0.01 there and 0.5 here"):
        merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"])


def test_where_a_run_was_made_is_no_conflict(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path / "a", wanted.runs[0], [0.1])
    made_run(tmp_path / "b", wanted.runs[0], [0.1], {"run.out": "elsewhere", "run.device": "cuda:0"})
    assert len(merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"]).new) == 1


def test_a_line_cut_short_is_dropped_and_named(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", wanted.runs[0], [0.1, 0.2])
    (run / ROUNDS).write_text((run / ROUNDS).read_text()[:-9])
    made_run(tmp_path / "all", wanted.runs[0], [0.1])
    merged = merge(tmp_path / "all", [tmp_path / "a"])
    assert merged.same == [wanted.runs[0].name]
    assert "the last line is cut short" in merged.notes[0]


def test_foreign_folders(wanted: Wanted, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot read .*nowhere: No such file"):
        merge(tmp_path / "all", [tmp_path / "nowhere"])
    (tmp_path / "a" / "pictures").mkdir(parents=True)
    with pytest.raises(RecordError, match=r"a holds no fedacd run: no folder in it has a config.toml"):
        merge(tmp_path / "all", [tmp_path / "a"])
    run = made_run(tmp_path / "a", wanted.runs[0], [0.1])
    assert "pictures is passed over" in merge(tmp_path / "all", [tmp_path / "a"]).notes[0]
    with pytest.raises(RecordError, match=r"must be a folder in which runs have theirs"):
        merge(run, [tmp_path / "a"])
    (run / CONFIG).write_text("[train\n")
    with pytest.raises(RecordError, match=r"there is no run to merge\. .*pictures is passed over.* .*not valid TOML"):
        merge(tmp_path / "new", [tmp_path / "a"])


@pytest.mark.parametrize("damaged", ["a", "all"])
def test_a_config_that_cannot_be_read_does_not_stop_the_rest(wanted: Wanted, tmp_path: Path, damaged: str) -> None:
    for name in ("all", "a"):
        made_run(tmp_path / name, wanted.runs[0], [0.1] * (1 + (name == "a")))
    made_run(tmp_path / "a", wanted.runs[1], [0.1])
    bad = tmp_path / damaged / wanted.runs[0].name
    (bad / CONFIG).write_text("[train\n")
    stdout, _ = invoke("merge", tmp_path / "all", tmp_path / "a")
    note, end = stdout.splitlines()
    assert note.startswith(f"note: {bad} is left out: ")
    assert end == f"{tmp_path / 'all'}: 1 new run, 0 replaced by a longer record, 0 already there"
    assert len(read_rounds(tmp_path / "all" / wanted.runs[0].name)) == 1


def test_a_folder_that_may_not_be_read_does_not_stop_the_rest(
    wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made up, because permissions do not stop root."""
    closed, _ = (made_run(tmp_path / "a", want, [0.1]) for want in wanted.runs[:2])
    exists = Path.exists

    def refuse(path: Path) -> bool:
        if path.parent == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    merged = merge(tmp_path / "all", [tmp_path / "a"])
    assert merged.new == [wanted.runs[1].name]
    assert merged.notes == [f"{closed} is left out: Permission denied."]


def test_a_run_in_use_is_refused(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", wanted.runs[0], [0.1])
    with (run / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RecordError, match=r"is in use by another process"):
            merge(tmp_path / "all", [tmp_path / "a"])
    assert not (tmp_path / "all" / run.name).exists()


def test_a_merge_that_was_killed_loses_nothing(wanted: Wanted, tmp_path: Path) -> None:
    old = made_run(tmp_path / "all", wanted.runs[0], [0.1])
    old.rename(old.with_name(f".replaced-{old.name}"))
    old.with_name(f".merging-{old.name}").mkdir()
    made_run(tmp_path / "a", wanted.runs[1], [0.1])
    merge(tmp_path / "all", [tmp_path / "a"])
    assert len(read_rounds(old)) == 1


@pytest.mark.parametrize(
    ("here", "there", "replaced"),
    [
        ((4, 4), (5, None), False),
        ((5, None), (4, 4), True),
        ((4, 4), (5, 3), False),
        ((4, 4), (5, 4), True),
        ((5, 5), (6, None), True),  # it is finished
        ((6, 6), (6, None), False),
        ((3, 5), (4, 3), True),  # a checkpoint without its lines is of no use
    ],
)
def test_a_checkpoint_is_worth_more_than_a_line(
    small: Table, tmp_path: Path, here: tuple[int, int], there: tuple[int, int | None], replaced: bool
) -> None:
    want = Wanted(small, seeds=[0], rounds=6, precision="fp32").runs[0]
    for name, (lines, checkpoint) in (("all", here), ("a", there)):
        run = made_run(tmp_path / name, want, [0.1] * lines)
        if checkpoint:
            made_checkpoint(run, checkpoint)
    assert merge(tmp_path / "all", [tmp_path / "a"]).longer == [want.name] * replaced
    assert (tmp_path / "all" / want.name / STATE).exists() == bool((there if replaced else here)[1])


def test_a_damaged_checkpoint_counts_for_nothing(wanted: Wanted, tmp_path: Path) -> None:
    (made_run(tmp_path / "all", wanted.runs[0], [0.1]) / STATE).write_text("damaged")
    made_checkpoint(made_run(tmp_path / "a", wanted.runs[0], [0.1]), 1)
    assert merge(tmp_path / "all", [tmp_path / "a"]).longer == [wanted.runs[0].name]


def test_rounds_that_cannot_be_read(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", wanted.runs[0], [0.1])
    (run / ROUNDS).unlink()
    (run / ROUNDS).mkdir()  # as good as one without the right to read it, also for root
    _, stderr = invoke("merge", tmp_path / "all", tmp_path / "a", code=2)
    assert stderr.startswith(f"error: cannot read {run / ROUNDS}")
    assert stderr.count("\n") == 1


def test_a_line_that_is_no_object(wanted: Wanted, tmp_path: Path) -> None:
    for name in ("all", "a"):
        (made_run(tmp_path / name, wanted.runs[0], [0.1]) / ROUNDS).write_text("5\n")
    _, stderr = invoke("merge", tmp_path / "all", tmp_path / "a", code=2)
    assert stderr == f"error: {tmp_path / 'all' / wanted.runs[0].name / ROUNDS} is damaged: line 1 is no object.\n"
