"""A run's folder: written atomically, resumable, readable by other tools.

    config.toml         the whole resolved config
    env.json            versions, device, git commit; start and end of every session of the run
    partition.npz       which samples each client holds: client_0, client_1, ...
    rounds.jsonl        one line a round
    state.safetensors   Server, Clients and round: the checkpoint, replaced as a whole
    model.safetensors   the global model at the end; its metadata says all that inference needs
    matrices.safetensors  what the last round's local models took each class for, and the clients' class counts
    .lock               held by the process that writes

A round's line is on the disk before its checkpoint. A run killed between the two has one line too many; it is dropped
on resume and the round is done again. Where the last line is cut and the checkpoint is of its round all the same, which
no kill does but a copy may, nothing is left to go on from: the run begins afresh, and ends in the same bits.

A round does not depend on how many are to come, so a run can be given more, and is then as if it had been begun so.
"""

import contextlib
import fcntl
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedacd.checkpoint import State, load_state, save_state, saved_round
from fedacd.config import Config
from fedacd.environment import environment
from fedacd.errors import RecordError
from fedacd.files import (
    read_json,
    read_safetensors,
    sync,
    write_atomically,
    write_safetensors,
    writing,
)
from fedacd.methods import Shared, Tensors
from fedacd.metrics import LATE, METRICS
from fedacd.models.net import Net
from fedacd.toml import read_toml

CONFIG, ENV, PARTITION, ROUNDS = "config.toml", "env.json", "partition.npz", "rounds.jsonl"
STATE, MODEL, MATRICES, LOCK = "state.safetensors", "model.safetensors", "matrices.safetensors", ".lock"
CONSTANTS = "constants"
"""In a model's file, beside the parts of `Shared`: buffers and frozen parameters."""


class RunFolder:
    """An open run folder. Holds the lock until it is closed."""

    def __init__(self, path: Path) -> None:
        """Take the folder, made if need be. Refused: one in use, or one with something else in it."""
        self.path = path
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            sync(path.parent)
            foreign = [entry.name for entry in path.iterdir() if entry.name != LOCK]
        if foreign and not (path / CONFIG).exists() and not _half_made(foreign):
            raise RecordError(
                f"{path} is not empty and holds no fedacd run (it has {min(foreign)}): choose another run.out."
            )
        with writing(path):
            self._lock = (path / LOCK).open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RecordError(f"{path} is in use by another process: wait for it, or choose another run.out.") from None
        except OSError as error:
            self._lock.close()
            raise RecordError(f"{path} cannot be locked: {error.strerror}. Choose another run.out.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def start(self, config: Config, partition: Sequence[NDArray[np.int64]]) -> None:
        """Write down a new run, or make sure that the folder holds this very run, whose number of rounds may change."""
        if (self.path / CONFIG).exists():
            there = _require_same(self.path, config, partition)
            if there.train.rounds != config.train.rounds:
                self._set_rounds(there, config)
            return
        write_atomically(self.path / PARTITION, _npz({f"client_{i}": members for i, members in enumerate(partition)}))
        # The config comes last: a folder that has one is complete.
        write_atomically(self.path / CONFIG, config.to_toml().encode())

    def _set_rounds(self, there: Config, config: Config) -> None:
        """Let the run end in another round, which is still to come. What was written at its former end goes."""
        rounds = config.train.rounds
        state = load_state(self.path / STATE, there) if (self.path / STATE).exists() else None
        if state and rounds <= state.round:
            raise RecordError(
                f"{self.path} has {state.round} of {there.train.rounds} rounds: train.rounds = {rounds} must be more "
                "than it has. Choose another run.out, or remove the folder to start afresh."
            )
        if state:
            self.save_state(state, there)  # one of before there was a course has the digest of what changes now
        write_atomically(self.path / CONFIG, there.replace({"train.rounds": rounds}).to_toml().encode())
        self._remove(MODEL, MATRICES)

    def resume(self, config: Config, say: Callable[[str], None]) -> State | None:
        """The checkpoint, and rounds.jsonl cut back to it; None for a run that has none yet, or begins afresh.

        `say` is told of a line that was cut short.
        """
        state = load_state(self.path / STATE, config) if (self.path / STATE).exists() else None
        path, lines = self.path / ROUNDS, read_rounds(self.path)
        cut, done = _lines_before_a_cut(self.path), state.round if state else 0
        if state and cut == done - 1:
            say(f"{path}: the last line is cut short, and {STATE} is of that round: the run begins afresh")
            self._remove(MODEL, MATRICES, STATE)  # until the checkpoint is gone, this is found and done again
            state, done = None, 0
        elif len(lines) < done:
            raise RecordError(f"{path} is damaged: it has {len(lines)} whole lines, but {STATE} is of round {done}.")
        elif cut is not None:
            say(f"{path}: the last line is cut short; it is dropped and the round run again")
        kept = "".join(_line(_as_measured(line, config)) for line in lines[:done]).encode()
        if not path.exists() or path.read_bytes() != kept:  # a line too many, half a line, or a former end
            write_atomically(path, kept)
        return state

    def _remove(self, *names: str) -> None:
        """One after the other, in this order whenever a crash comes."""
        with writing(self.path):
            for name in names:
                (self.path / name).unlink(missing_ok=True)
                sync(self.path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a round's line, out of reach of whatever happens to this process."""
        path = self.path / ROUNDS
        with writing(path), path.open("ab") as file:
            file.write(_line(record).encode())

    def save_state(self, state: State, config: Config) -> None:
        """On the disk, and before it the lines of the rounds that led there."""
        rounds = self.path / ROUNDS
        if rounds.exists():
            with writing(rounds):
                sync(rounds)
        save_state(self.path / STATE, state, config)

    def save_model(self, net: Net, shared: Shared, about: Mapping[str, Any]) -> None:
        parts = {**shared._asdict(), CONSTANTS: net.constants()}
        tensors = {f"{part}/{name}": t for part, group in parts.items() for name, t in group.items()}
        write_safetensors(self.path / MODEL, tensors, {"holds": "model", **about})

    def save_matrices(self, tensors: Tensors, round_: int) -> None:
        write_safetensors(self.path / MATRICES, tensors, {"holds": "matrices", "round": round_})

    @contextlib.contextmanager
    def session(self, device: torch.device, done: int, engine: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
        """Note in env.json who works on the run from which round on, and when; `ended` stays null after a kill.

        `engine` tells at the end how the work was done.
        """
        path = self.path / ENV
        sessions: list[Any] = []
        with contextlib.suppress(RecordError, KeyError, TypeError):  # it only informs: damage is no reason to stop
            sessions = [*read_json(path)["sessions"]]
        now = {"from_round": done, "started": _time(), "ended": None, **environment(device)}

        def write() -> None:
            write_atomically(path, (json.dumps({"sessions": [*sessions, now]}, indent=2) + "\n").encode())

        write()
        try:
            yield
        except (Exception, KeyboardInterrupt):
            with contextlib.suppress(RecordError):  # what went wrong matters more than the time of it
                now |= {"ended": _time(), "engine": engine()}
                write()
            raise
        now |= {"ended": _time(), "engine": engine()}
        write()


def _time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _half_made(names: Sequence[str]) -> bool:
    """Whether a folder without a config holds only what `start` writes before it."""
    return {name.removesuffix(".partial") for name in names} <= {PARTITION, CONFIG}


def _npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _as_measured(line: dict[str, Any], config: Config) -> dict[str, Any]:
    """Without metrics where only the run's former end was measured."""
    if line.get("accuracy") is None or config.measured_in(line["round"]):
        return line
    return line | dict.fromkeys((*METRICS, "per_class"))


def _require_same(path: Path, config: Config, partition: Sequence[NDArray[np.int64]]) -> Config:
    """The config there, which may have another number of rounds."""
    known = read_config(path)
    there, here = known.identity(), config.identity()
    for key in there | here:
        if there.get(key) != here.get(key) and key != "train.rounds":
            raise RecordError(
                f"{path} holds another run: {key} is {there.get(key)!r} there and {here.get(key)!r} here. "
                "Choose another run.out, or remove the folder to start afresh."
            )
    held = read_partition(path)
    if len(held) != len(partition) or not all(np.array_equal(a, b) for a, b in zip(held, partition, strict=True)):
        raise RecordError(f"{path} holds another run: its clients have other samples. Choose another run.out.")
    return known


def saved_rounds(folder: Path) -> int | None:
    """The round of the checkpoint of a folder, from its metadata alone; None where there is none."""
    try:
        return saved_round(folder / STATE)
    except OSError as error:
        raise RecordError(f"cannot read {folder}: {error.strerror}. Choose another run.out.") from None


def finished_rounds(folder: Path) -> int | None:
    """After how many rounds a run goes on; None where it begins, or begins afresh."""
    saved = saved_rounds(folder)
    return None if saved and _lines_before_a_cut(folder) == saved - 1 else saved


def _lines_before_a_cut(folder: Path) -> int | None:
    """Of a record that ends in half a line, how many there are before it."""
    path = folder / ROUNDS
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}.") from None
    return content.count(b"\n") if content and not content.endswith(b"\n") else None


def holds_model(folder: Path) -> bool:
    """Whether a run's global model is there and whole."""
    with contextlib.suppress(RecordError):
        return bool(read_safetensors(folder / MODEL, "model"))
    return False


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of rounds.jsonl; a last line that a crash cut short is left out."""
    path = folder / ROUNDS
    try:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {path}: {error}.") from None


def read_partition(folder: Path) -> list[NDArray[np.int64]]:
    path = folder / PARTITION
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return [arrays[f"client_{i}"] for i in range(len(arrays.files))]
    except Exception as error:  # numpy raises whatever its parsers do on a damaged file
        raise RecordError(f"cannot read {path}: {type(error).__name__}: {error}.") from None


def read_config(folder: Path) -> Config:
    """The config of a run folder."""
    if not (folder / CONFIG).exists():
        raise RecordError(f"{folder} holds no fedacd run: there is no {CONFIG}.")
    return Config.build(read_toml(folder / CONFIG))


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean over the last ten rounds of every metric, and the last and the best accuracy."""
    measured = [line for line in rounds if line.get("accuracy") is not None]
    if not measured:
        return {}
    late = [line for line in measured if line["round"] > rounds[-1]["round"] - LATE] or measured[-1:]
    known = [key for key in METRICS if all(line.get(key) is not None for line in late)]
    means = {key: sum(line[key] for line in late) / len(late) for key in known}
    accuracies = [line["accuracy"] for line in measured]
    return means | {"accuracy_last": accuracies[-1], "accuracy_best": max(accuracies)}
