"""One run over several processes: the same numbers, whoever trains whom; no process left behind, however it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import fedacd
from fedacd.api import Result, train
from fedacd.config import setting
from fedacd.data import Dataset
from fedacd.engine import spread
from fedacd.engine.setup import Setup, prepare
from fedacd.engine.spread import World
from fedacd.engine.together import workers_for
from fedacd.errors import ConfigError, UpdateError, WorkerError
from fedacd.methods import Client, Did, FedAvg, Shared, Tensors, Trained
from fedacd.records import finished_rounds, read_rounds
from tests.engine.test_slots import assert_same_records, some

SMALL: dict[str, Any] = {
    "partition.clients": 6,
    "partition.scheme": "dirichlet",
    "train.participation": 0.85,  # five of them
    "train.epochs": 1,
    "train.batch_size": 16,
    "train.rounds": 3,
    "run.device": "cpu",
    "run.threads": 1,
    "run.save_every": 1,
}
SOON = 60
"""Seconds within which a run must end when one of its processes has died."""


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedacd.engine.setup.cores", lambda: 4)


def a_run(data: Dataset, out: Path, workers: int, name: str = "fedavg", **options: Any) -> Setup:
    values = SMALL | {"method.name": name, "run.out": out, "run.workers": workers}
    if name == "creff":
        values |= {"method.match_steps": 3, "method.head_steps": 5}
    return prepare(values | {key.replace("__", "."): value for key, value in options.items()}, dataset=data)


def children(of: int | None = None) -> list[int]:
    """The processes that a process has started and that are still there, dead or alive."""
    parent, found = os.getpid() if of is None else of, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def _nobody_is_left_behind() -> Iterator[None]:
    before = set(children())
    yield
    assert set(children()) <= before


# Who trains whom.


@given(st.dictionaries(st.integers(0, 999), st.integers(1, 10_000), min_size=1), st.integers(1, 9))
def test_every_job_goes_to_one_rank_the_longest_first_and_loads_are_even(work: dict[int, int], size: int) -> None:
    shares = [World(rank, size).share(work) for rank in range(size)]
    assert sorted(number for share in shares for number in share) == sorted(work)
    for share in shares:
        assert [work[number] for number in share] == sorted((work[number] for number in share), reverse=True)
    loads = [sum(work[number] for number in share) for share in shares]
    for share, load in zip(shares, loads, strict=True):
        # Nobody would have been better off without its last job: it was given to whoever had the least.
        assert not share or load - work[share[-1]] <= min(loads)
    assert all(shares) or len(work) < size


def test_alone_nothing_is_exchanged() -> None:
    tree = {"a": object()}
    assert World().sum(tree) is tree
    assert World().same(tree) is tree


# The same numbers.


@pytest.mark.parametrize("name", ["fedavg", "fedacd", "scaffold", "fedrod", "creff"])
def test_two_workers_equal_one(name: str, data: Dataset, tmp_path: Path) -> None:
    one, two = (train(a_run(data, tmp_path / str(count), count, name)) for count in (1, 2))
    assert_same_records(two.history, one.history, rel=1e-6)
    assert_same_tensors(tmp_path / "2" / "state.safetensors", tmp_path / "1" / "state.safetensors")


def assert_same_tensors(found: Path, expected: Path) -> None:
    mine, theirs = load_file(found), load_file(expected)
    assert mine.keys() == theirs.keys()
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_three_workers_and_a_round_without_measuring(data: Dataset, tmp_path: Path) -> None:
    one, three = (train(a_run(data, tmp_path / str(count), count, run__eval_every=2)) for count in (1, 3))
    assert [record["accuracy"] is None for record in three.history] == [True, False, False]
    assert [r["train_loss"] for r in three.history] == pytest.approx([r["train_loss"] for r in one.history], rel=1e-6)
    assert three.final == pytest.approx(one.final, rel=1e-6)


class Stopped(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("name", ["fedacd", "scaffold", "fedrod"])
def test_a_checkpoint_resumes_with_another_number_of_workers(name: str, data: Dataset, tmp_path: Path) -> None:
    """What a client keeps is in the checkpoint, whichever process trained it."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Stopped

    whole = train(a_run(data, tmp_path / "whole", 1, name))
    for first, then in ((2, 1), (1, 2)):
        out = tmp_path / f"{first} then {then}"
        with pytest.raises(Stopped):
            train(a_run(data, out, first, name), stop)
        assert finished_rounds(out) == 2
        resumed = train(a_run(data, out, then, name))
        assert_same_records(resumed.history, whole.history, rel=1e-6)
        assert_same_tensors(out / "state.safetensors", tmp_path / "whole" / "state.safetensors")


# Processes that fail.


def kill_a_child(record: dict[str, Any]) -> None:
    """After the first round."""
    if record["round"] == 1:
        (child,) = children()
        os.kill(child, signal.SIGKILL)


def assert_resumes(data: Dataset, out: Path, **options: Any) -> None:
    done = finished_rounds(out)
    assert done
    assert done == len(read_rounds(out))
    result = train(a_run(data, out, 1, **options))
    assert isinstance(result, Result)
    assert result.history[-1]["round"] == result.config.train.rounds


def test_a_worker_that_is_killed_ends_the_run_and_the_checkpoint_is_whole(data: Dataset, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerError, match="a worker process of this run has died"):
        train(a_run(data, tmp_path / "run", 2, train__rounds=20), kill_a_child)
    assert time.monotonic() - started < SOON
    assert children() == []
    assert_resumes(data, tmp_path / "run", train__rounds=20)


def test_a_worker_that_dies_before_it_has_joined_ends_the_run(data: Dataset, tmp_path: Path) -> None:
    """In a process of its own: this one would wait with it."""
    script = (
        "import datetime, os, sys, fedacd, fedacd.engine.spread as spread\n"
        "before, group = os.getpid(), spread._world\n"
        "def dying(rank, *rest, **named):\n"
        "    if os.getpid() != before: os._exit(1)\n"
        "    return group(rank, *rest, **named)\n"
        "spread._world, spread.JOINING = dying, datetime.timedelta(seconds=2)\n"
        "fedacd.run(dataset='digits', clients=4, participation=1.0, rounds=1, epochs=1, workers=2, out=sys.argv[1])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert result.returncode == 1
    assert "fedacd.errors.WorkerError: " in result.stderr


@dataclass(frozen=True, kw_only=True)
class Refusing(FedAvg):
    """Fails on clients of some size."""

    n: float = setting(0.0, "the size", at_least=0)
    error: str = setting("value", "what is raised", one_of=("value", "update"))

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        if float(did.n) == self.n:
            raise {"value": ValueError, "update": UpdateError}[self.error]("this client is not to my liking")
        return super().finish(now, shared, client, did)


@pytest.mark.parametrize("error", ["value", "update"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_method_that_raises_in_one_process_ends_the_run_and_the_reason_is_told(
    rank: int, error: str, data: Dataset, tmp_path: Path
) -> None:
    values = SMALL | {"run.workers": 2, "train.participation": 1.0}
    sizes = {number: len(members) for number, members in enumerate(prepare(values, dataset=data).members)}
    (number, *_) = (n for n in World(rank, 2).share(sizes) if list(sizes.values()).count(sizes[n]) == 1)
    started = time.monotonic()
    with pytest.raises((ValueError, WorkerError), match="this client is not to my liking"):
        fedacd.run(values, dataset=data, method=Refusing(n=sizes[number], error=error), out=tmp_path / "run")
    assert time.monotonic() - started < SOON
    assert children() == []


def test_ctrl_c_ends_the_workers_too(data: Dataset, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def interrupt(record: dict[str, Any]) -> None:
        seen.append(children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(a_run(data, tmp_path / "run", 3, run__save_every=1000), interrupt)
    assert [len(found) for found in seen] == [2]
    assert children() == []
    assert_resumes(data, tmp_path / "run")


def test_workers_go_when_the_run_is_done(data: Dataset, tmp_path: Path) -> None:
    seen: list[int] = []
    train(a_run(data, tmp_path / "run", 3), lambda record: seen.append(len(children())))
    assert seen == [2, 2, 2]
    assert children() == []


WATCHED = """
import sys, time
from fedacd.engine import spread

rank, meeting, end = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with spread._world(rank, 2, f"file://{meeting}"), spread._watching(0.1):
    print("here", flush=True)
    if rank == 1:
        time.sleep(1)
        if end == "dies":
            spread.os._exit(3)
    elif end == "dies":
        time.sleep(600)  # as if it waited for a GPU
"""


@pytest.mark.parametrize("end", ["dies", "ends"])
def test_a_rank_that_waits_for_a_gpu_ends_with_one_that_dies(end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WATCHED]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting"), end], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    (_, said), _ = [rank.communicate(timeout=SOON) for rank in ranks]
    assert [rank.returncode for rank in ranks] == ([1, 3] if end == "dies" else [0, 0])
    assert said.startswith("error: a process of this run has died") == (end == "dies")


def test_connections_are_watched_for_machines_that_vanish() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        spread._watch_connections()
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        gone_after = [
            ours.getsockopt(socket.IPPROTO_TCP, option) for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
        ]
        assert gone_after[0] + 6 * gone_after[1] <= 40
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 40_000


def test_threads_and_workers_exclude_each_other(data: Dataset) -> None:
    """A fork loses the threads of the process that it came from."""
    with pytest.raises(ConfigError, match=r"run\.threads = 2: 2 workers have one each"):
        prepare({"run.workers": 2, "run.threads": 2}, dataset=data)
    assert workers_for(prepare(SMALL | {"run.workers": None, "run.threads": 2}, dataset=data)) == 1


def test_a_run_inside_another_stays_in_its_process(data: Dataset, tmp_path: Path) -> None:
    def nested(_: object) -> None:
        fedacd.run(SMALL | {"run.workers": None, "train.rounds": 1}, dataset=data, out=str(tmp_path / "inner"))

    outer = SMALL | {"run.workers": 2, "train.rounds": 1}
    fedacd.run(outer, dataset=data, out=str(tmp_path / "outer"), on_round=nested)
    assert len(read_rounds(tmp_path / "inner")) == 1
