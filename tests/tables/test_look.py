"""Which runs are a table's, and what is said of those that are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedacd.errors import ConfigError, RecordError
from fedacd.records import CONFIG, ROUNDS, STATE
from fedacd.tables.declare import TABLES, Table
from fedacd.tables.estimate import Session, estimate, shared_seconds
from fedacd.tables.look import Look, look_in, read_from
from fedacd.tables.summaries import write_summaries
from fedacd.tables.wanted import OWN, Wanted
from tests.tables.conftest import made_run, made_session


def reading(small: Table, *folders: Path, precision: str | None = None, rounds: int = 2) -> Look:
    return read_from(lambda chosen: Wanted(small, seeds=[0, 1, 2], rounds=rounds, precision=chosen), folders, precision)


def test_done_partly_done_and_missing(wanted: Wanted, tmp_path: Path) -> None:
    done, partly, *missing = wanted.runs
    made_run(tmp_path, done, [0.5, 0.6])
    made_run(tmp_path, partly, [0.5])
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "pictures").mkdir()
    seen = look_in(wanted, tmp_path)
    assert [seen.matched.done[done.key].name, seen.matched.partly[partly.key].done] == [done.name, 1]
    assert seen.matched.missing(wanted.runs) == [partly, *missing]
    assert list(seen.notes) == []


def test_a_folder_that_is_not_there_has_no_runs(wanted: Wanted, tmp_path: Path) -> None:
    assert len(look_in(wanted, tmp_path / "runs").matched.missing(wanted.runs)) == 12


def test_out_must_hold_runs_and_not_be_one(wanted: Wanted, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it is a run itself"):
        look_in(wanted, made_run(tmp_path, wanted.runs[0], [0.5, 0.6]))
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot read .*file: Not a directory"):
        look_in(wanted, tmp_path / "file")


def test_a_line_cut_short_is_not_counted_and_is_named(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    (run / ROUNDS).write_text((run / ROUNDS).read_text()[:-9])
    seen = look_in(wanted, tmp_path)
    assert seen.matched.partly[wanted.runs[0].key].done == 1
    assert seen.notes[0].endswith("rounds.jsonl is cut short and not counted: the run has to go on from round 1.")


def test_long_lines_are_counted_too(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    (run / ROUNDS).write_text((run / ROUNDS).read_text().replace("[0.5]", f"[{'0.5, ' * 20000}0.5]"))
    assert wanted.runs[0].key in look_in(wanted, tmp_path).matched.done


def test_damaged_runs_are_left_out_and_named(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    (made_run(tmp_path, wanted.runs[1], [0.5, 0.6]) / CONFIG).write_text("[train\n")
    (made_run(tmp_path, wanted.runs[2], [0.5, 0.6]) / ROUNDS).write_text("no json\n")
    seen = look_in(wanted, tmp_path)
    assert len(seen.matched.done) == 1
    assert ["is left out: " in note for note in seen.notes] == [True, True]


def test_a_run_of_other_settings_is_named_and_left_out_of_training(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[0], [0.5, 0.6], {"train.lr": 0.5})
    seen = look_in(wanted, tmp_path)
    assert not seen.matched.done
    assert "train.lr is 0.5 there and 0.01 here" in seen.notes[0]


def test_a_run_of_other_settings_is_refused_where_runs_are_shown(small: Table, wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[1], [0.5, 0.6])
    made_run(tmp_path, wanted.runs[0], [0.5, 0.6], {"train.lr": 0.5})
    with pytest.raises(ConfigError, match=r"cannot be mixed into one table: .*train.lr is 0.5 there and 0.01 here"):
        reading(small, tmp_path)


def test_runs_of_another_table_are_no_mistake(tmp_path: Path) -> None:
    seven, one = (Wanted(TABLES[number], seeds=[0], rounds=2, precision="fp32") for number in (7, 1))
    for want in seven.runs:
        made_run(tmp_path, want, [0.5, 0.6])
    seen = read_from(lambda precision: one, [tmp_path], None)
    assert [run.settings["method.lam"] for run in seen.matched.done.values()] == [1.0]


def test_data_that_changed_are_refused(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    made_run(tmp_path, wanted.runs[1], [0.5, 0.6], {"data.fingerprint": "other"})
    with pytest.raises(RecordError, match=r"different data: data.fingerprint is 'abc' there and 'other' here"):
        look_in(wanted, tmp_path)


def test_two_records_of_a_run_must_agree(wanted: Wanted, small: Table, tmp_path: Path) -> None:
    made_run(tmp_path / "a", wanted.runs[0], [0.5, 0.6])
    made_run(tmp_path / "b", wanted.runs[0], [0.5, 0.6])
    made_run(tmp_path / "c", wanted.runs[0], [0.5, 0.7])
    assert len(reading(small, tmp_path / "a", tmp_path / "b").matched.done) == 1
    with pytest.raises(RecordError, match=r"records of the same run with different numbers"):
        reading(small, tmp_path / "a", tmp_path / "c")


def test_the_precision_is_that_of_the_runs(wanted: Wanted, small: Table, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[0], [0.5, 0.6], {"run.precision": "bf16"})
    assert reading(small, tmp_path).wanted.precision == "bf16"
    made_run(tmp_path, wanted.runs[1], [0.5, 0.6])
    with pytest.raises(ConfigError, match=r"run.precision is 'bf16' in .* and 'fp32' in .* Choose with --precision"):
        reading(small, tmp_path)
    other = made_run(tmp_path / "other", wanted.runs[2], [0.5, 0.6], {"run.precision": "bf16", "train.lr": 0.5})
    with pytest.raises(ConfigError, match=r"is not the run .*: train.lr is 0.5 there and 0.01 here"):
        reading(small, other)
    seen = reading(small, tmp_path, precision="fp32")
    assert len(seen.matched.done) == 1
    assert seen.notes == ["left out: 1 other run fits the table but for --rounds 2 --precision bf16."]


def test_no_runs(small: Table, wanted: Wanted, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no fedacd runs and no summaries"):
        reading(small, tmp_path)
    with pytest.raises(RecordError, match=r"cannot read .*nowhere: No such file"):
        reading(small, tmp_path / "nowhere")
    made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    with pytest.raises(RecordError, match=r"no finished run of table 1 in .*; 1 other run fits .* --rounds 2 "):
        reading(small, tmp_path, rounds=200)


def test_why_there_is_no_run_is_said(small: Table, wanted: Wanted, tmp_path: Path) -> None:
    """Nothing of the table is left: its run's summary is damaged, and the other run is of another table."""
    (tmp_path / "broken.json").write_text('{"holds"')
    other = Wanted(TABLES[7], seeds=[0], rounds=2, precision="fp32").runs[0]
    made_run(tmp_path, other, [0.5, 0.6])
    with pytest.raises(RecordError) as refused:
        reading(small, tmp_path)
    begins, reason = str(refused.value).split("; ")
    assert begins == f"there is no finished run of table 1 in {tmp_path}"
    assert reason.startswith(f"{tmp_path / 'broken.json'} is left out: ")
    assert not reason.endswith("..")


def test_a_summary_is_taken_as_a_folder_of_them_is(small: Table, wanted: Wanted, tmp_path: Path) -> None:
    runs = [made_run(tmp_path / "runs", want, [0.5, 0.6]) for want in wanted.runs[:2]]
    first, second = write_summaries(runs, tmp_path)[0]
    assert len(reading(small, first).matched.done) == 1
    assert len(reading(small, first, second).matched.done) == 2
    assert len(reading(small, first, tmp_path / "runs").matched.done) == 2
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(RecordError, match=r"other.json holds no fedacd runs and no summaries of runs\.$"):
        reading(small, tmp_path / "other.json")
    first.write_text("{")
    with pytest.raises(RecordError, match=r"no summaries of runs; .* is left out: .*[^.]\.$"):
        reading(small, first)


def test_seconds_shared_on_a_device_are_divided() -> None:
    work = [Session(0, 10, 5, "gpu"), Session(5, 10, 5, "gpu"), Session(0, 10, 5, "cpu")]
    assert shared_seconds(work) == [7.5, 2.5, 10.0]


def test_time_is_estimated_from_runs_of_the_same_kind(wanted: Wanted, tmp_path: Path) -> None:
    first = wanted.runs[0]
    made_session(made_run(tmp_path, first, [0.5, 0.6]), "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:10+00:00")
    seen = look_in(wanted, tmp_path)
    guess = estimate(wanted.runs, seen.matched, seen.found, "cpu")
    assert guess.seconds == pytest.approx(5 * 2 * 11)  # 5 seconds a round, 2 rounds, 11 runs
    assert (guess.unknown, guess.device) == (0, "slow cpu")
    assert estimate(wanted.runs, seen.matched, seen.found, "cuda").device is None
    half = Wanted(wanted.table, seeds=[0, 1, 2], rounds=2, precision="bf16")
    assert estimate(half.runs, look_in(half, tmp_path).matched, seen.found, "cpu").unknown == 12


def test_time_is_estimated_from_summaries_too(small: Table, wanted: Wanted, tmp_path: Path) -> None:
    """Two side by side for 3 seconds, 1.5 a round: 4.5 seconds of the device in all, as the second began 1.5 later."""
    runs, results = tmp_path / "runs", tmp_path / "results"
    for want, end in zip(wanted.runs, ("00:00:03", "00:00:04.5"), strict=False):
        made_session(made_run(runs, want, [0.5, 0.6]), "2026-01-01T00:00:00+00:00", f"2026-01-01T{end}+00:00")
    write_summaries([runs], results)
    seen = reading(small, results)
    guess = estimate(wanted.runs, seen.matched, seen.found, "cpu")
    assert guess.seconds == pytest.approx(4.5 / 4 * 2 * 10)
    assert (guess.unknown, guess.device) == (0, "slow cpu")
    assert estimate(wanted.runs, seen.matched, seen.found, "cuda").device is None
    assert estimate(wanted.runs, seen.matched, seen.found, None).device == "slow cpu"
    both = reading(small, results, runs)  # a run and its summary are one stretch of work: that of the folder
    assert estimate(wanted.runs, both.matched, both.found, "cpu").seconds == pytest.approx(4.5 / 4 * 2 * 10)


@pytest.mark.parametrize(
    "made",
    [5, {}, {"seconds": float("nan")}, {"seconds": -1}, {"ended": None}, {"ended": "now"}, {"device": None}],
    ids=str,
)
def test_a_summary_that_does_not_say_how_long_it_took(small: Table, wanted: Wanted, tmp_path: Path, made: Any) -> None:
    run = made_run(tmp_path / "runs", wanted.runs[0], [0.5, 0.6])
    made_session(run, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:03+00:00")
    (path,), _ = write_summaries([run], tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"made": content["made"] | made if made and made != 5 else made}))
    seen = reading(small, path)
    guess = estimate(wanted.runs, seen.matched, seen.found, "cpu")
    assert (guess.seconds, guess.unknown, guess.device) == (0, 11, None)


def test_two_folders_of_a_run_before_its_first_round(wanted: Wanted, small: Table, tmp_path: Path) -> None:
    made_run(tmp_path / "a", wanted.runs[0], [])
    made_run(tmp_path / "b", wanted.runs[0], [])
    made_run(tmp_path / "b", wanted.runs[1], [0.5, 0.6])
    seen = reading(small, tmp_path / "a", tmp_path / "b")
    assert (len(seen.matched.done), len(seen.matched.partly)) == (1, 1)


def test_a_cut_line_beside_a_damaged_checkpoint_is_named(wanted: Wanted, small: Table, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[1], [0.5, 0.6])
    run = made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    (run / ROUNDS).write_text((run / ROUNDS).read_text()[:-9])
    (run / STATE).write_text("damaged")
    (note,) = reading(small, tmp_path).notes
    assert note.startswith(
        f"{run}: the last line of {ROUNDS} is cut short and not counted, and {run / STATE} is damaged"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("rounds", '"many"'), ("rounds", "0"), ("epochs", '"many"'), ("epochs", "true"), ("participation", "0.0")],
)
def test_a_setting_that_is_no_number(wanted: Wanted, tmp_path: Path, key: str, value: str) -> None:
    made_run(tmp_path, wanted.runs[1], [0.5, 0.6])
    run = made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    made_session(run, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:10+00:00")
    lines = (run / CONFIG).read_text().splitlines()
    (run / CONFIG).write_text("\n".join(f"{key} = {value}" if x.startswith(f"{key} =") else x for x in lines))
    seen = look_in(wanted, tmp_path)
    estimate(wanted.runs, seen.matched, seen.found, "cpu")
    assert len(seen.matched.done) == 1
    assert seen.notes[0].startswith(f"{run} is left out: {run / CONFIG}: train.{key} = ")


def test_time_is_estimated_beside_a_run_that_names_no_model(wanted: Wanted, tmp_path: Path) -> None:
    run = made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    made_session(run, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:10+00:00")
    (run / CONFIG).write_text((run / CONFIG).read_text().replace('[model]\nname = "small-cnn"\n', ""))
    seen = look_in(wanted, tmp_path)
    assert estimate(wanted.runs, seen.matched, seen.found, "cpu").unknown == 12


def test_a_run_with_statistics_of_its_own_is_not_the_tables(tmp_path: Path) -> None:
    one = Wanted(TABLES[1], seeds=[0], rounds=2, precision="fp32")
    want = next(want for want in one.runs if want.dataset == "cifar10")
    fingerprint = "601415ca8084038a"
    own = {**OWN[fingerprint], "data.fingerprint": fingerprint}
    made_run(tmp_path / "own", want, [0.5, 0.6], own)
    made_run(tmp_path / "other", want, [0.5, 0.6], own | {"data.mean": [0.5, 0.5, 0.5]})
    assert len(read_from(lambda _: one, [tmp_path / "own"], None).matched.done) == 1
    with pytest.raises(
        ConfigError, match=r"mixed into one table: .*other.*: data.mean is \[0.5, 0.5, 0.5\] there and "
    ):
        read_from(lambda _: one, [tmp_path / "other"], None)
    seen = look_in(one, tmp_path / "other")
    assert not seen.matched.done
    assert ": data.mean is [0.5, 0.5, 0.5] there and [0.4914, 0.48216, 0.44653] here" in seen.notes[0]
