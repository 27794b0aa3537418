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
from fedacd.engine.setup import Factory, Setup, prepare
from fedacd.errors import ConfigError, unknown
from fedacd.inference import GlobalModel
from fedacd.methods import Method
from fedacd.records import MODEL, RunFolder, read_config, read_rounds, summary

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
    def load(cls, folder: str | Path, *, model: Factory | None = None) -> "Result":
        """Read a finished run's folder; a model that was given as a Python callable must be given again."""
        path = Path(folder)
        history = read_rounds(path)
        return cls(
            folder=path,
            config=read_config(path),
            history=history,
            final=summary(history),
            model=GlobalModel.load(path / MODEL, model=model),
        )


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
    with RunFolder(setup.out) as folder, arithmetic(config.run.precision):
        folder.start(config, setup.members)
        state = folder.resume()
        simulation = Simulation(setup)
        if state:
            simulation.restore(state)
        if simulation.state.round < config.train.rounds or not (folder.path / MODEL).exists():
            with folder.session(setup.device, simulation.state.round):
                _advance_to_the_end(simulation, folder, on_round)
            folder.save_model(simulation.state.server.shared, _about(setup))
        history = read_rounds(folder.path)
        model = GlobalModel(
            simulation.net,
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
                folder.save_state(recorded)
                saved = recorded
            if on_round:
                on_round(record)
    except KeyboardInterrupt:
        if saved is not recorded:
            folder.save_state(recorded)
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
