"""Records that end in half a line: what is dropped, and when a run begins afresh."""

from pathlib import Path
from typing import Any

import pytest

import fedacd
import fedacd.api
from fedacd import records
from fedacd.api import Result
from fedacd.data import Dataset
from fedacd.engine.setup import prepare
from fedacd.errors import RecordError
from fedacd.records import RunFolder
from tests.test_records import TINY, Killed, copy, crash_at, numbers, train


@pytest.fixture(scope="module")
def reference(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(digits, tmp_path_factory.mktemp("runs") / "reference").folder


def test_a_line_that_a_crash_cut_short_is_dropped(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    """Killed while it wrote the line of round 3: two whole lines, the checkpoint of round 2, and half a line."""
    out = tmp_path / "run"

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        fedacd.run(TINY, dataset=digits, out=out, on_round=stop)
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    said: list[str] = []
    fedacd.api.train(prepare(TINY | {"run.out": str(out)}, dataset=digits), say=said.append)
    assert said == [f"{out / 'rounds.jsonl'}: the last line is cut short; it is dropped and the round run again"]
    assert numbers(out) == numbers(reference)


def cut_last_line(run: Path, number: int = 9) -> None:
    (run / "rounds.jsonl").write_bytes((run / "rounds.jsonl").read_bytes()[:-number])


@pytest.mark.parametrize("number", [1, 9], ids=["its end", "some of it"])
def test_a_run_whose_checkpoint_knows_of_the_cut_line_begins_afresh(
    digits: Dataset, reference: Path, tmp_path: Path, number: int
) -> None:
    out = copy(reference, tmp_path / "run")
    cut_last_line(out, number)
    assert (records.saved_rounds(out), records.finished_rounds(out)) == (3, None)
    said: list[str] = []
    fedacd.api.train(prepare(TINY | {"run.out": str(out)}, dataset=digits), say=said.append)
    assert said == [
        f"{out / 'rounds.jsonl'}: the last line is cut short, and state.safetensors is of that round: "
        "the run begins afresh"
    ]
    assert numbers(out) == numbers(reference)


def test_while_a_run_begins_afresh_it_is_not_finished(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    out = copy(reference, tmp_path / "run")
    cut_last_line(out)

    def stop(_: dict[str, Any]) -> None:
        raise Killed

    with pytest.raises(Killed):
        fedacd.run(TINY, dataset=digits, out=out, on_round=stop)
    with pytest.raises(RecordError, match="is not finished: 1 of 3 rounds"):
        Result.load(out)


@pytest.mark.parametrize("count", range(1, 7))
def test_a_crash_while_a_run_begins_afresh_loses_nothing(
    digits: Dataset, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Three files are removed, each with a write of the folder; then the record is emptied."""
    out = copy(reference, tmp_path / "run")
    cut_last_line(out)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        crash_at(patch, count)
        train(digits, out)
    train(digits, out)
    assert numbers(out) == numbers(reference)


def test_more_damage_than_a_cut_last_line_is_refused(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    for name, damage in (("gone", ["", "{"]), ("junk", ["no json\n", "{"])):
        out = copy(reference, tmp_path / name)
        first = (out / "rounds.jsonl").read_text().splitlines(keepends=True)[0]
        (out / "rounds.jsonl").write_text("".join([first, *damage]))
        with pytest.raises(RecordError, match=r"rounds\.jsonl( is damaged: it has 1 whole lines|: Expecting value)"):
            train(digits, out)
        assert (out / "state.safetensors").exists()


def test_an_interrupted_run_that_cannot_be_saved_says_so(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever presses Ctrl-C is told that all is saved, and must not be where it is not."""

    def full(*_: object) -> None:
        raise RecordError("cannot write state.safetensors: No space left on device.")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save_state", full)
    with pytest.raises(RecordError, match="No space left on device"):
        fedacd.run(dataset=digits, clients=3, rounds=2, epochs=1, on_round=interrupt, out=tmp_path / "run")


def test_a_second_interrupt_breaks_off_saving_and_that_is_said(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save_state", interrupt)
    with pytest.raises(
        RecordError, match=r"saving .*run was broken off \(KeyboardInterrupt\)\. What was saved before is"
    ):
        fedacd.run(dataset=digits, clients=3, rounds=2, epochs=1, on_round=interrupt, out=tmp_path / "run")
