"""A run that is given another number of rounds in its own folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedacd import records
from fedacd.api import Result
from fedacd.checkpoint import State
from fedacd.config import Config
from fedacd.data import Dataset
from fedacd.engine.setup import prepare
from fedacd.errors import RecordError
from fedacd.files import read_safetensors, write_safetensors
from fedacd.records import RunFolder
from tests.test_records import TINY, Killed, copy, crashes_survived, numbers, train


@pytest.fixture(scope="module")
def reference(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(digits, tmp_path_factory.mktemp("reference") / "run").folder


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("eval_every", [1, 2])
@pytest.mark.parametrize("method", ["fedacd", "scaffold"])
def test_a_finished_run_that_is_given_more_rounds_is_as_one_begun_so(
    digits: Dataset, tmp_path: Path, first: int, eval_every: int, method: str
) -> None:
    options: dict[str, Any] = {"method.name": method, "run.eval_every": eval_every}
    train(digits, tmp_path / "a", **options)
    shorter = train(digits, tmp_path / "b", **options, **{"train.rounds": first})
    assert shorter.history[-1]["accuracy"] is not None
    longer = train(digits, tmp_path / "b", **options)
    assert numbers(tmp_path / "b") == numbers(tmp_path / "a")
    assert longer.final == Result.load(tmp_path / "a").final
    matrices = [(tmp_path / name / "matrices.safetensors").read_bytes() for name in "ab"]
    assert matrices[0] == matrices[1]
    assert records.read_config(tmp_path / "b").identity() == records.read_config(tmp_path / "a").identity()
    sessions = json.loads((tmp_path / "b" / "env.json").read_text())["sessions"]
    assert [session["from_round"] for session in sessions] == [0, first]


def test_an_unfinished_run_may_end_sooner(
    digits: Dataset, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, save = tmp_path / "run", RunFolder.save_state

    def dying(self: RunFolder, state: State, config: Config) -> None:
        save(self, state, config)
        if state.round == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_state", dying)
        with pytest.raises(Killed):
            train(digits, out, **{"train.rounds": 50})
    with pytest.raises(RecordError, match=r"has 2 of 50 rounds: train\.rounds = 2 must be more than it has"):
        train(digits, out, **{"train.rounds": 2})
    assert records.read_config(out).train.rounds == 50
    train(digits, out)
    assert numbers(out) == numbers(reference)


def test_a_crash_while_a_run_is_made_longer_loses_nothing(
    digits: Dataset, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(digits, tmp_path / "two", **{"train.rounds": 2})
    assert crashes_survived(digits, reference, tmp_path, monkeypatch, begun=tmp_path / "two") > 10


def test_a_longer_run_has_no_model_until_it_ends(digits: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(digits, out, **{"train.rounds": 1})
    setup = prepare(TINY, dataset=digits)
    with RunFolder(out) as folder:
        folder.start(setup.config, setup.members)
    assert not (out / "model.safetensors").exists()
    with pytest.raises(RecordError, match="is not finished: 1 of 3 rounds"):
        Result.load(out)


def test_a_finished_run_is_not_made_shorter(digits: Dataset, reference: Path) -> None:
    before = numbers(reference)
    for rounds in (1, 2):
        with pytest.raises(RecordError, match=rf"has 3 of 3 rounds: train\.rounds = {rounds} must be more than it has"):
            train(digits, reference, **{"train.rounds": rounds})
    with pytest.raises(RecordError, match=r"train\.lr is 0\.01 there and 0\.5 here"):
        train(digits, reference, **{"train.rounds": 5, "train.lr": 0.5})
    assert numbers(reference) == before
    assert records.read_config(reference).train.rounds == 3


def test_a_checkpoint_of_before_there_was_a_course(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    """It had the digest of the whole config."""
    train(digits, tmp_path / "one", **{"train.rounds": 1})
    for rounds in (1, 3):
        out = copy(tmp_path / "one", tmp_path / str(rounds))
        tensors, about = read_safetensors(out / "state.safetensors", "checkpoint")
        write_safetensors(out / "state.safetensors", tensors, about | {"config": records.read_config(out).digest()})
        assert len(train(digits, out, **{"train.rounds": rounds}).history) == rounds
    assert numbers(tmp_path / "3") == numbers(reference)
