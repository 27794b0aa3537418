"""What a program calls: `run` trains and returns a `Result`; `Result.load` reads a run folder again."""

import contextlib
import copy
import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedacd.config import Config
from fedacd.data import Dataset
from fedacd.engine.setup import Setup, arithmetic, prepare
from fedacd.engine.spread import joined
from fedacd.engine.together import Say, groups, uses_slots, workers_for
from fedacd.errors import ConfigError, RecordError, unknown
from fedacd.inference import GlobalModel
from fedacd.methods import Method, Shared
from fedacd.models import Factory
from fedacd.records import MODEL, read_config, read_rounds, summary
from fedacd.training import Finished, train_group

_TRAINING = threading.RLock()
"""Held while this process trains; the thread that has it may begin a run inside another's `on_round`."""

OPTIONS: Mapping[str, str] = {
    "dataset": "data.name",
    "method": "method.name",
    "beta": "partition.beta",
    "clients": "partition.clients",
    "participation": "train.participation",
    "rounds": "train.rounds",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "lr": "train.lr",
    "seed": "run.seed",
    "mixup": "train.mixup",
    "model": "model.name",
    "device": "run.device",
    "precision": "run.precision",
    "slots": "run.slots",
    "workers": "run.workers",
    "deterministic": "run.deterministic",
    "out": "run.out",
}
"""The settings with a short name of their own, in Python and on the command line."""

OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run."""

    folder: Path
    config: Config
    history: list[dict[str, Any]]
    """One record a round, as in rounds.jsonl."""
    final: dict[str, float]
    """Every metric's mean over the last ten rounds; accuracy_last and accuracy_best."""
    model: GlobalModel
    """The global model, ready for inference."""

    def __repr__(self) -> str:
        final = {key: round(value, 4) for key, value in self.final.items()}
        return f"Result(folder={str(self.folder)!r}, rounds={len(self.history)}, final={final})"

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        model: str | Factory | None = None,
        method: str | Method | type[Method] | None = None,
    ) -> "Result":
        """Read a finished run's folder. A model or method of one's own is given again, itself or by its name: no file
        chooses what is run."""
        path = Path(folder)
        config, history = read_config(path), read_rounds(path)
        if not (path / MODEL).exists():
            raise RecordError(
                f"{path} is not finished: {len(history)} of {config.train.rounds} rounds. The command that started it "
                "goes on."
            )
        model_ = GlobalModel.load(path / MODEL, model=model, method=method)
        return cls(folder=path, config=config, history=history, final=summary(history), model=model_)


def run(
    settings: Mapping[str, Any] | None = None,
    *,
    dataset: str | Path | Dataset | None = None,
    model: str | Factory | None = None,
    method: str | Method | None = None,
    partition: Sequence[NDArray[np.int64]] | None = None,
    on_round: OnRound | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Result:
    """Train, or go on training, and return the result.

    Options have the names of the command line's (`beta=0.3`, `rounds=50`, `batch_size=32` ...); `settings` takes
    everything else as `section.key`, such as `{"partition.scheme": "iid"}`. `dataset`, `model` and `method` are names,
    or a `Dataset`, a callable that makes a `torch.nn.Module`, a `Method`. `partition` is a list of index arrays, one
    per client. `on_round` is called with every round's record. `progress` shows a line on stderr; by default only in a
    terminal or notebook.
    """
    if settings is not None and not isinstance(settings, Mapping):
        hint = " The data set is dataset=..." if isinstance(settings, str | Path | Dataset) else ""
        hint = " Give config.flat()." if isinstance(settings, Config) else hint
        what = repr(settings) if isinstance(settings, str) else f"a {type(settings).__name__}"
        raise ConfigError(f"settings is {what}: must be a mapping, such as {{'train.clip': 5}}.{hint}")
    if isinstance(partition, str):
        hint = f"a scheme goes into settings: {{'partition.scheme': {partition!r}}}"
        raise ConfigError(f"partition is {partition!r}: must be a list of index arrays, one per client; {hint}.")
    if isinstance(dataset, Path):
        dataset = str(dataset)
    for name, value, kind in (("dataset", dataset, Dataset), ("method", method, Method)):
        if not isinstance(value, str | kind | None):
            what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} is {what}: must be a name or an object of fedacd.{kind.__name__}.")
    names = {"dataset": dataset, "model": model, "method": method}
    options |= {name: value for name, value in names.items() if isinstance(value, str)}
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(unknown("option", name, OPTIONS))
    values = {OPTIONS[name]: value for name, value in options.items()}
    if twice := sorted(values.keys() & (settings or {}).keys()):
        raise ConfigError(f"{twice[0]} is given twice, by its option and in settings.")
    values |= settings or {}
    setup = prepare(
        values,
        dataset=None if isinstance(dataset, str) else dataset,
        model=None if isinstance(model, str) else model,
        method=None if isinstance(method, str) else method,
        members=partition,
    )
    calls = [on_round] if on_round else []
    if progress or (progress is None and (sys.stderr.isatty() or "ipykernel" in sys.modules)):
        calls.append(_progress(setup.config.train.rounds))

    def each_round(record: dict[str, Any]) -> None:
        for call in calls:
            call(copy.deepcopy(record))  # theirs to change

    return train(setup, each_round)


def _progress(rounds: int) -> OnRound:
    """A line on stderr, in which every round takes the place of the one before."""
    began, accuracy, count = time.monotonic(), "", itertools.count(1)

    def show(record: dict[str, Any]) -> None:
        nonlocal accuracy
        if record["accuracy"] is not None:
            accuracy = f", accuracy {100 * record['accuracy']:.2f} %"
        each = (time.monotonic() - began) / next(count)
        done = record["round"]
        line = f"round {done}/{rounds}{accuracy}, {each:.2f} s a round"
        print(f"\r{line:<60}", end="\n" if done == rounds else "", file=sys.stderr, flush=True)

    return show


def train(setup: Setup, on_round: OnRound | None = None, *, say: Say = lambda _: None) -> Result:
    """Train a prepared run from where its folder stands. Ctrl-C saves the last finished round on its way out."""
    (result,) = train_all([setup], (lambda _, record: on_round(record)) if on_round else None, say=say)
    if isinstance(result, Exception):
        raise result
    return result


def train_all(
    setups: Sequence[Setup],
    on_round: Callable[[Setup, dict[str, Any]], None] | None = None,
    *,
    say: Say = lambda _: None,
) -> list[Result | Exception]:
    """Train prepared runs, together where they can share a program. A run that fails does not stop the others: what
    it failed of takes the place of its result. `say` is told what happens beside the rounds, such as compiling."""
    if not _TRAINING.acquire(blocking=False):
        raise ConfigError("another thread of this process trains: threads share torch's random numbers. Use processes.")
    try:
        return _train_all(setups, on_round, say)
    finally:
        _TRAINING.release()


def _train_all(
    setups: Sequence[Setup], on_round: Callable[[Setup, dict[str, Any]], None] | None, say: Say
) -> list[Result | Exception]:
    results: dict[int, Finished | Exception] = {}
    with joined(setups[0].device) as world:
        for group in groups(setups):
            config = group[0].config
            workers = workers_for(group[0]) if world.size == 1 else 1
            if uses_slots(group[0]) and world.size < (config.run.workers or 1):
                raise ConfigError(
                    f"run.workers = {config.run.workers}: several GPUs take torchrun --nproc-per-node="
                    f"{config.run.workers} -m fedacd run ..., slots on a CPU one process."
                )
            # The host of a GPU works on small tensors, for which threads only wait for each other.
            threads = config.run.threads or (1 if workers > 1 or group[0].device.type == "cuda" else None)
            with arithmetic(config.run.precision, threads, config.run.deterministic), on_device(group[0].device):
                results |= train_group(group, world, workers, on_round, say)
    return [_result(setup, results[id(setup)]) for setup in setups]


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _result(setup: Setup, finished: Finished | Exception) -> Result | Exception:
    if isinstance(finished, Exception):
        return finished
    model = GlobalModel(
        setup.net.to(setup.device),
        setup.method,
        Shared(*({name: value.to(setup.device) for name, value in group.items()} for group in finished.shared)),
        shape=setup.dataset.shape,
        mean=setup.config.data.mean or (),
        std=setup.config.data.std or (),
        class_names=setup.dataset.class_names,
    )
    history = finished.history
    return Result(folder=setup.out, config=setup.config, history=history, final=summary(history), model=model)
