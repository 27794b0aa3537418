"""What a program calls: `run` trains and returns a `Result`; `Result.load` reads a run folder again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedacd.config import Config
from fedacd.data import Dataset
from fedacd.engine.rounds import Simulation, arithmetic
from fedacd.engine.setup import Setup, prepare
from fedacd.errors import ConfigError, RecordError, unknown
from fedacd.inference import GlobalModel
from fedacd.methods import Method
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


def train(setup: Setup, on_round: OnRound | None = None) -> Result:
    """Train a prepared run from where its folder stands. Ctrl-C saves the last finished round on its way out."""
    config = setup.config
    with RunFolder(setup.out) as folder, arithmetic(config.run.precision, config.run.threads):
        folder.start(config, setup.members)
        state = folder.resume(config)
        simulation = Simulation(setup)
        if state:
            simulation.restore(state)
        if simulation.state.round < config.train.rounds or not holds_model(folder.path):
            with folder.session(setup.device, simulation.state.round):
                _advance_to_the_end(simulation, folder, on_round)
                folder.save_model(simulation.state.server.shared, _about(setup))
        history = read_rounds(folder.path)
        model = GlobalModel(
            setup.net.to(setup.device),
            setup.method,
            simulation.state.server.shared,
            shape=setup.dataset.shape,
            mean=setup.config.data.mean or (),
            std=setup.config.data.std or (),
            class_names=setup.dataset.class_names,
        )
        return Result(folder=folder.path, config=config, history=history, final=summary(history), model=model)


def _advance_to_the_end(simulation: Simulation, folder: RunFolder, on_round: OnRound | None) -> None:
    config = simulation.config
    saved = recorded = simulation.state
    try:
        while recorded.round < config.train.rounds:
            record = simulation.advance()
            folder.append(record)
            recorded = simulation.state
            if recorded.round % config.run.save_every == 0 or recorded.round == config.train.rounds:
                folder.save_state(recorded, config)
                saved = recorded
            if on_round:
                on_round(record)
    except (Exception, KeyboardInterrupt) as error:
        if saved is not recorded and not isinstance(error, RecordError):
            folder.save_state(recorded, config)
        raise


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
