"""The round as Flower sees it, with messages handed over by calls: who is asked, waited for, and asked again."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedacd.data import Dataset
from tests.flower.local import deployment, do_round

flwr = pytest.importorskip("flwr.app", reason="flwr is not installed: make test-flower")

from fedacd.errors import ConfigError, RecordError, WorkerError  # noqa: E402
from fedacd.flower import client, strategy  # noqa: E402
from fedacd.flower.central import Central  # noqa: E402
from fedacd.flower.server import serve  # noqa: E402
from fedacd.records import MODEL, read_rounds  # noqa: E402


class Grid:
    """Sites that answer at once, but for messages that `lost` says are; `nodes` maps node to client number."""

    def __init__(self, state: Path, nodes: dict[int, int]) -> None:
        self.nodes, self.state, self.data = nodes, state, "digits"
        self.lost: Callable[[int, Any], bool] = lambda client, message: False
        self.sent: list[tuple[int, str]] = []
        self._answers: dict[str, Any] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            node, number = message.metadata.dst_node_id, f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append((self.nodes[node], message.metadata.message_type))
            about = {"partition-id": self.nodes[node], "num-partitions": 4, "data": self.data, "state": str(self.state)}
            if not self.lost(self.nodes[node], message):
                context = flwr.Context(1, node, about, flwr.RecordDict(), {})
                self._answers[number] = client.app(message, context)
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        return [self._answers.pop(number) for number in list(message_ids) if number in self._answers]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a ServerApp's process has."""
    from flwr.supercore.task_identity import TaskIdentity

    for name, value in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value, raising=False)
    monkeypatch.setattr(strategy, "GREET_SECONDS", 0.0)
    monkeypatch.setattr(strategy, "POLL_SECONDS", 0.01)


def start(tmp_path: Path, nodes: dict[int, int], **settings: Any) -> tuple[Central, Grid, list[dict[str, Any]]]:
    limits = {"train__rounds": 2, "flower__round_seconds": 5, "flower__join_seconds": 0.2, "method__name": "scaffold"}
    central = Central(deployment(tmp_path / "run", **{**limits, **settings}))
    return central, Grid(tmp_path / "state", nodes), []


FOUR = {100: 2, 101: 0, 102: 3, 103: 1}


def deploy(central: Central, grid: Grid, lines: list[dict[str, Any]], class_names: str = "0123456789") -> None:
    strategy.Deployed(central, (1, 8, 8), tuple(class_names), lines.append).start(grid)


def test_messages_carry_a_run_to_the_same_weights(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, FOUR)
    deploy(central, grid, lines)
    other = Central(deployment(tmp_path / "other", method__name="scaffold", train__rounds=2))
    while not other.done:
        do_round(other, tmp_path / "others")
    for name, w in other.state.server.shared.params.items():
        assert torch.equal(w, central.state.server.shared.params[name])
    assert [line["participants"] for line in lines] == [[0, 1, 2, 3]] * 2


def test_who_does_not_answer_in_time_is_absent_and_asked_again_next_round(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, FOUR, flower__round_seconds=1.5)
    grid.lost = lambda client, message: client == 2 and message.metadata.group_id == "1"
    deploy(central, grid, lines)
    assert (lines[0]["participants"], lines[0]["absent"]) == ([0, 1, 3], [2])
    assert (lines[1]["participants"], lines[1]["absent"]) == ([0, 1, 2, 3], [])


def test_below_the_minimum_the_round_is_repeated_and_only_those_missing_are_asked(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, FOUR, flower__min_replies=4, flower__round_seconds=1.5)
    dropped: list[int] = []

    def lost(client: int, message: Any) -> bool:
        if message.metadata.message_type == "train" and client == 2 and not dropped:
            dropped.append(client)
            return True
        return False

    grid.lost = lost
    deploy(central, grid, lines)
    assert [line["attempts"] for line in lines] == [2, 1]
    assert lines[0]["participants"] == [0, 1, 2, 3] and lines[0]["absent"] == []
    trains = [client for client, kind in grid.sent if kind == "train"]
    assert sorted(trains) == [0, 0, 1, 1, 2, 2, 2, 3, 3]


def test_who_is_not_connected_is_waited_for_less_long(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, {100: 2, 101: 0}, flower__round_seconds=600)
    deploy(central, grid, lines)
    assert [(line["participants"], line["absent"]) for line in lines] == [([0, 2], [1, 3])] * 2
    assert all(line["seconds"] < 60 for line in lines)


def test_patience_ends_with_the_state_as_it_was(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, {}, flower__patience_seconds=0.1)
    with pytest.raises(WorkerError, match=r"0 usable replies after .* fewer than flower\.min_replies = 1"):
        deploy(central, grid, lines)
    assert lines == [] and central.state.round == 0


def test_a_client_number_is_its_first_node_s_and_others_are_not_heard(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, {100: 0, 101: 0, 102: 9}, train__rounds=1)
    deploy(central, grid, lines)
    assert lines[0]["participants"] == [0] and lines[0]["absent"] == [1, 2, 3]
    assert [client for client, kind in grid.sent if kind == "train"] == [0]
    assert [client for client, kind in grid.sent if kind == "query"] == [0, 0, 9]


def test_a_site_that_cannot_train_says_why(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, FOUR)

    def lost(client: int, message: Any) -> bool:
        if message.metadata.group_id == "2" and client == 1:
            next(grid.state.glob("*client1*")).unlink()
        return False

    grid.lost = lost
    deploy(central, grid, lines)
    assert lines[1]["participants"] == [0, 2, 3]
    (refused,) = lines[1]["refused"]
    assert refused["client"] == 1 and "what it keeps between rounds cannot be used" in refused["reason"]


def test_a_site_is_told_the_names_of_the_classes(
    tmp_path: Path, digits: Dataset, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    central, grid, lines = start(tmp_path, FOUR, train__rounds=1)
    arrays = {key: getattr(digits, key) for key in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(tmp_path / "own.npz", **arrays, class_names=np.array(list("abcdefghij")))
    grid.data = str(tmp_path / "own.npz")
    with pytest.raises(WorkerError, match=r"no client can train\. Client 0: .*its data cannot be used"):
        deploy(central, grid, lines, "bcdefghijk")
    assert caplog.text.count("classes a are not known to the server") == 4
    central = start(tmp_path, FOUR, train__rounds=1)[0]
    deploy(central, grid, lines, "jihgfedcba")
    assert lines[0]["participants"] == [0, 1, 2, 3]


def test_a_run_that_no_site_can_train_stops_and_goes_on_once_that_is_mended(tmp_path: Path) -> None:
    central, grid, lines = start(tmp_path, FOUR)
    grid.data = "nowhere"
    with pytest.raises(WorkerError, match=r"round 1: no client can train. Client 0: the site refused: ") as raised:
        deploy(central, grid, lines)
    assert raised.value.exit_code == 1
    assert (lines, central.state.round) == ([], 0)
    grid.data, central = "digits", Central(deployment(tmp_path / "run", method__name="scaffold", train__rounds=2))
    deploy(central, grid, lines)
    assert [line["participants"] for line in lines] == [[0, 1, 2, 3]] * 2


def test_a_run_that_nobody_trained_has_no_model(tmp_path: Path) -> None:
    """Two of four take part in its only round, and cannot train."""
    ready = deployment(tmp_path / "run", train__participation=0.5, train__rounds=1)
    grid = Grid(tmp_path / "state", FOUR)
    grid.data = "nowhere"
    with pytest.raises(WorkerError, match="no reply was used in any round up to 1:"):
        serve(grid, ready)
    assert len(read_rounds(tmp_path / "run")) == 1
    assert not (tmp_path / "run" / MODEL).exists()


def test_what_privacy_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: make test-flower")
    grid, out = Grid(tmp_path / "state", FOUR), tmp_path / "run"
    settings = {"method.name": "fedacd", "train.rounds": 1}
    with pytest.raises(ConfigError, match="which the noise does not cover"):
        serve(grid, deployment(out, **settings, **{"flower.dp_noise": 1.0}))
    assert not out.exists()
    settings["method.weighting"] = "uniform"
    serve(grid, deployment(out, **settings, **{"flower.dp_noise": 1.0}))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(RecordError, match=r"flower.dp_noise = 9: round 1 of this run was done with 1,"):
        serve(grid, deployment(out, **{**settings, "train.rounds": 3, "flower.dp_noise": 9.0}))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    central = serve(grid, deployment(out, **{**settings, "train.rounds": 2, "flower.dp_noise": 1.0}))
    epsilons = [line["privacy"]["epsilon"] for line in read_rounds(out)]
    assert central.state.round == 2 and 0 < epsilons[0] < epsilons[1]


def test_the_order_of_classes_stays_as_it_was(tmp_path: Path) -> None:
    """Without it a restart would go on with the outputs of a class under another name."""
    grid, out = Grid(tmp_path / "state", FOUR), tmp_path / "run"
    blind = {"flower.evaluate": False, "flower.shape": "[1, 8, 8]", "data.mean": "[0.5]", "data.std": "[0.25]"}
    settings = {**blind, "model.name": "small-cnn", "data.name": "ab", "partition.clients": 4}
    ready = [
        deployment(out, **settings, **{"train.rounds": rounds, "flower.class_names": names})
        for rounds, names in ((1, "['a', 'b']"), (2, "['b', 'a']"))
    ]
    with pytest.raises(WorkerError):
        serve(grid, ready[0])  # the sites have ten classes
    with pytest.raises(RecordError, match="the classes are b, a, and this run was begun with a, b: "):
        serve(grid, ready[1])
