"""A tracker is a copy of rounds.jsonl: every number once, also over a resumed run."""

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from fedacd import track
from fedacd.api import train_all
from fedacd.engine.setup import Setup, prepare
from fedacd.errors import ConfigError
from fedacd.records import STATE, read_rounds
from fedacd.track import Tracker, scalars, series

# Their libraries' warnings are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")


def setup(rounds: int = 3) -> Setup:
    return prepare(
        {"data.name": "digits", "method.name": "fedacd", "train.rounds": rounds, "train.epochs": 1, "run.seed": 0}
        | {"partition.clients": 4, "train.participation": 0.5, "run.out": "run", "run.workers": 1, "run.save_every": 1}
    )


def test_a_record_as_numbers() -> None:
    record: dict[str, Any] = {
        "round": 2,
        "accuracy": 0.5,
        "risk": None,
        "seconds": 1,
        "participants": [1, 7],
        "weights": [0.4, 0.6],
    }
    record |= {"told": {"V": [0.1, 0.2]}, "per_class": [1.0, None], "lr": float("nan")}
    assert scalars(record) == {"accuracy": 0.5, "seconds": 1.0}
    assert series(record) == {
        "weights": {"client_001": 0.4, "client_007": 0.6},
        "told_V": {"client_001": 0.1, "client_007": 0.2},
        "per_class": {"class_000": 1.0},
    }


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown tracker 'tensorbord'\. Did you mean 'tensorboard'\?"):
        Tracker("tensorbord")


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("mlflow", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ConfigError, match=rf"pip install 'fedacd\[{kind}\]'"):
        Tracker(kind)


class Notes:
    """A tracker in memory that outlives sessions, as a server does."""

    steps: list[int]
    ended: list[bool]
    fail_at: int | None = None

    def __init__(self) -> None:
        self.steps, self.ended = [], []

    def last(self) -> int:
        return max(self.steps, default=0)

    def log(self, record: Any) -> None:
        if record["round"] == self.fail_at:
            raise OSError("no route to host")
        self.steps.append(record["round"])

    def close(self, finished: bool) -> None:
        self.ended.append(finished)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    made = Notes()
    monkeypatch.setattr(track, "SINKS", {"notes": ("json", lambda _: made)})
    return made


def test_a_killed_run_goes_on_without_a_step_twice(notes: Notes) -> None:
    class Stop(BaseException):
        pass

    seen = itertools.count(1)
    with Tracker("notes") as tracker, pytest.raises(Stop):

        def twice(setup: Setup, record: dict[str, Any]) -> None:
            tracker.on_round(setup, record)
            if next(seen) == 2:
                raise Stop

        train_all([setup()], twice)
    assert (notes.steps, notes.ended) == ([1, 2], [False])
    with Tracker("notes") as tracker:
        train_all([setup()], tracker.on_round)
    assert (notes.steps, notes.ended) == ([1, 2, 3], [False, True])


def test_rounds_from_before_tracking_are_filled_in(notes: Notes) -> None:
    train_all([setup(2)])
    with Tracker("notes") as tracker:
        tracker.follow(setup(2))
        tracker.follow(setup(2))
    assert (notes.steps, notes.ended) == ([1, 2], [True])


def test_a_tracker_that_fails_does_not_stop_the_run(notes: Notes) -> None:
    notes.fail_at, said = 2, list[str]()
    with Tracker("notes", say=said.append) as tracker:
        (result,) = train_all([setup()], tracker.on_round)
    assert not isinstance(result, Exception)
    assert len(result.history) == 3
    assert notes.steps == [1]
    assert len(said) == 1
    assert "no route to host" in said[0]


def run_in_two_sessions(kind: str) -> Setup:
    """Three rounds, the last two of them done again after a crash."""
    with Tracker(kind) as tracker:
        states = list[bytes]()

        def keep(setup: Setup, record: dict[str, Any]) -> None:
            tracker.on_round(setup, record)
            states.append((setup.out / STATE).read_bytes() if (setup.out / STATE).exists() else b"")

        train_all([setup()], keep)
    (setup().out / STATE).write_bytes(states[0])
    with Tracker(kind) as tracker:
        train_all([setup()], tracker.on_round)
    return setup()


def test_tensorboard_has_every_round_once() -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = run_in_two_sessions("tensorboard")
    events = EventAccumulator(str(run.out / track.FOLDER)).Reload()
    rounds = read_rounds(run.out)
    logged = events.Scalars("accuracy")
    assert [event.step for event in logged] == [1, 2, 3]
    assert [event.value for event in logged] == pytest.approx([record["accuracy"] for record in rounds])
    assert set(scalars(rounds[0])) <= set(events.Tags()["scalars"])
    assert {"per_class", "weights", "told_V"} <= set(events.Tags()["histograms"])
    assert len(list((run.out / track.FOLDER).iterdir())) == 1


def test_mlflow_has_every_round_once() -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow import MlflowClient

    run = run_in_two_sessions("mlflow")
    client, rounds = MlflowClient(), read_rounds(run.out)
    experiment = client.get_experiment_by_name(track.EXPERIMENT)
    assert experiment
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["train.rounds"] == "3"
    for key in ("accuracy", "round", "per_class/class_003"):
        assert [metric.step for metric in client.get_metric_history(found.info.run_id, key)] == [1, 2, 3]
    accuracies = [metric.value for metric in client.get_metric_history(found.info.run_id, "accuracy")]
    assert accuracies == pytest.approx([record["accuracy"] for record in rounds])
    client_ = f"weights/client_{rounds[0]['participants'][0]:03}"
    assert client.get_metric_history(found.info.run_id, client_)
    with Tracker("mlflow") as tracker:  # more rounds are the same run
        train_all([setup(4)], tracker.on_round)
    (found,) = client.search_runs([experiment.experiment_id])
    assert [metric.step for metric in client.get_metric_history(found.info.run_id, "round")] == [1, 2, 3, 4]
