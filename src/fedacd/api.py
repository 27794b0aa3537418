"""What a program calls: `run` trains and returns a `Result`; `Result.load` reads a run folder again."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedacd.config import Config
from fedacd.data import Dataset
from fedacd.engine.crew import Crew, Loop, Trainer
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import Setup, arithmetic, prepare
from fedacd.engine.spread import World, forked, joined
from fedacd.engine.together import AT_ONCE, Say, groups, trainer_for, uses_slots, workers_for
from fedacd.errors import ConfigError, RecordError, UpdateError, unknown
from fedacd.inference import GlobalModel
from fedacd.methods import Method, Shared
from fedacd.models import Factory
from fedacd.records import MODEL, RunFolder, holds_model, read_config, read_rounds, summary

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

SECONDS_AT_RISK, SHARE_FOR_SAVING = 5, 0.05
"""Where `run.save_every` is not set: the work that a kill may cost, unless saving would take too much of the time."""

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

    @classmethod
    def load(cls, folder: str | Path, *, model: Factory | None = None, method: Method | None = None) -> "Result":
        """Read a finished run's folder. A model or method of one's own is given again where its name is not enough."""
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
    dataset: str | Dataset | None = None,
    model: str | Factory | None = None,
    method: str | Method | None = None,
    partition: Sequence[NDArray[np.int64]] | None = None,
    on_round: OnRound | None = None,
    **options: Any,
) -> Result:
    """Train, or go on training, and return the result.

    Options have the names of the command line's (`beta=0.3`, `rounds=50`, `batch_size=32` ...); `settings` takes
    everything else as `section.key`, such as `{"partition.scheme": "iid"}`. `dataset`, `model` and `method` are names,
    or a `Dataset`, a callable that makes a `torch.nn.Module`, a `Method`. `partition` is a list of index arrays, one a
    client. `on_round` is called with every round's record.
    """
    for name, value, kind in (("dataset", dataset, Dataset), ("method", method, Method)):
        if not isinstance(value, str | kind | None):
            what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} is {what}: must be a name or an object of fedacd.{kind.__name__}.")
    names = {"dataset": dataset, "model": model, "method": method}
    options |= {name: value for name, value in names.items() if isinstance(value, str)}
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(unknown("option", name, OPTIONS))
    values = {**(settings or {}), **{OPTIONS[name]: value for name, value in options.items()}}
    setup = prepare(
        values,
        dataset=None if isinstance(dataset, str) else dataset,
        model=None if isinstance(model, str) else model,
        method=None if isinstance(method, str) else method,
        members=partition,
    )
    return train(setup, on_round)


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
    results: dict[int, Result | Exception] = {}
    with joined(setups[0].device) as world:
        for group in groups(setups):
            config = group[0].config
            workers = workers_for(group[0]) if world.size == 1 else 1
            if uses_slots(group[0]) and world.size < (config.run.workers or 1):
                raise ConfigError(
                    f"run.workers = {config.run.workers}: several GPUs take torchrun --nproc-per-node="
                    f"{config.run.workers} -m fedacd run ..., slots on a CPU one process."
                )
            threads = config.run.threads or (1 if workers > 1 else None)
            with arithmetic(config.run.precision, threads, config.run.deterministic), on_device(group[0].device):
                results |= _train_group(group, world, workers, on_round, say)
    return [results[id(setup)] for setup in setups]


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _train_group(
    group: Sequence[Setup],
    world: World,
    workers: int,
    on_round: Callable[[Setup, dict[str, Any]], None] | None,
    say: Say,
) -> dict[int, Result | Exception]:
    images = None
    results: dict[int, Result | Exception] = {}
    waiting, live = deque(group), dict[Simulation, Live]()
    at_once = AT_ONCE if world.size == 1 else 1  # ranks must agree on whose round comes next
    try:
        crew = Crew(trainer_for(group, say, at_once, world.size))
        while waiting or live:
            while waiting and len(live) < at_once:
                setup = waiting.popleft()
                try:
                    simulation = Simulation(setup, images, world)
                    images = simulation.images
                    run = Live(setup, simulation, crew.trainer, workers, say)
                    if run.complete:
                        results[id(setup)] = run.end()
                    else:
                        live[simulation] = run
                        crew.add(simulation)
                except Exception as error:
                    if world.size > 1 and not isinstance(error, UpdateError):
                        raise  # the other ranks do not know of it: all end together
                    results[id(setup)] = error
            for simulation, event in crew.turn():
                if simulation not in live:
                    continue
                run = live[simulation]
                try:
                    if isinstance(event, Exception):
                        raise event
                    run.take(event)
                    if on_round and world.rank == 0:
                        on_round(run.setup, event)
                    if run.complete:
                        results[id(run.setup)] = run.end()
                        crew.drop(simulation)
                        del live[simulation]
                except Exception as error:
                    if world.size > 1 and not isinstance(error, UpdateError):
                        raise
                    crew.drop(simulation)
                    run.stop(error)
                    results[id(run.setup)] = error
                    del live[simulation]
    except BaseException as error:
        for run in live.values():
            run.stop(error)
        if not isinstance(error, Exception) or (world.size > 1 and not isinstance(error, UpdateError)):
            raise
        for setup in group:
            results.setdefault(id(setup), error)
    return results


class Live:
    """A run in training and, on rank 0, its open folder."""

    def __init__(self, setup: Setup, simulation: Simulation, trainer: Trainer, workers: int, say: Say) -> None:
        self.setup, self.simulation = setup, simulation
        self.history: list[dict[str, Any]] = []
        self._folder: RunFolder | None = None
        with contextlib.ExitStack() as stack:
            if simulation.world.rank == 0:
                self._folder = stack.enter_context(RunFolder(setup.out))
                self._folder.start(setup.config, setup.members)
                if state := self._folder.resume(setup.config, say):
                    simulation.restore(state)
                self.history = read_rounds(self._folder.path)
            simulation.agree()
            self._recorded = self._saved = simulation.state
            self._saved_at, self._save_took = time.monotonic(), 0.0
            self._to_do = not self.complete or (self._folder is not None and not holds_model(self._folder.path))
            if self._to_do and self._folder:
                workers = 1 if self.complete else workers
                engine = lambda: trainer.about() | {"workers": max(workers, simulation.world.size)}  # noqa: E731
                stack.enter_context(self._folder.session(setup.device, simulation.state.round, engine))
                if workers > 1:
                    simulation.world = stack.enter_context(forked(workers, self._follow))
            self._open = stack.pop_all()

    @property
    def complete(self) -> bool:
        return self._recorded.round == self.setup.config.train.rounds

    def take(self, record: dict[str, Any]) -> None:
        """Keep a round's record, and its state when it is time to."""
        if self._folder:
            self._folder.append(record)
        self.history.append(record)
        self._recorded = self.simulation.state
        if not self._folder:
            return
        every = self.setup.config.run.save_every
        at_risk, bearable = time.monotonic() - self._saved_at, max(SECONDS_AT_RISK, self._save_took / SHARE_FOR_SAVING)
        due = record["round"] % every == 0 if every else at_risk > bearable
        if self.complete:
            self._folder.save_matrices(self.simulation.matrices, record["round"])
        if due or self.complete:
            self._save()

    def _save(self) -> None:
        assert self._folder
        started = time.monotonic()
        self._folder.save_state(self._recorded, self.setup.config)
        self._saved, self._saved_at = self._recorded, time.monotonic()
        self._save_took = self._saved_at - started

    def end(self) -> Result:
        """Write the global model and close the folder."""
        setup, shared = self.setup, self.simulation.state.server.shared
        with self._open:
            if self._folder and self._to_do:
                self._folder.save_model(shared, _about(setup))
        model = GlobalModel(
            setup.net.to(setup.device),
            setup.method,
            Shared(*({name: value.to(setup.device) for name, value in group.items()} for group in shared)),
            shape=setup.dataset.shape,
            mean=setup.config.data.mean or (),
            std=setup.config.data.std or (),
            class_names=setup.dataset.class_names,
        )
        return Result(
            folder=setup.out, config=setup.config, history=self.history, final=summary(self.history), model=model
        )

    def stop(self, error: BaseException) -> None:
        """Save what is recorded, unless the folder itself is the trouble, and close it."""
        can_save = isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, RecordError)
        with contextlib.suppress(BaseException), self._open:
            if can_save and self._folder and self._saved is not self._recorded:
                self._save()
            raise error

    def _follow(self, world: World) -> None:
        """What the other processes of a run do: all of the same, but for the records."""
        self.simulation.world = world
        crew = Crew(Loop())
        crew.add(self.simulation)
        while crew.busy:
            for _, event in crew.turn():
                if isinstance(event, Exception):
                    raise event


def _about(setup: Setup) -> dict[str, Any]:
    """What inference needs beside the weights."""
    config = setup.config
    return {
        "model": config.model.name,
        "model_options": config.model.options,
        "method": config.method.name,
        "method_options": config.method.options,
        "shape": setup.dataset.shape,
        "mean": config.data.mean,
        "std": config.data.std,
        "class_names": setup.dataset.class_names,
    }
