"""From Flower's run config to everything the server needs.

The run config has the keys of `fedacd run` (`train.rounds`, `method.name` ...) and those of the section `flower`. It
holds no lists, so that a list is written as a text: `data.mean = "[0.5]"`, `flower.class_names = "['cat', 'dog']"`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedacd import data
from fedacd.config import Config, Settings, setting
from fedacd.data import NAMED, Dataset
from fedacd.data.dataset import numbered
from fedacd.engine.plan import num_participants
from fedacd.engine.setup import build_net, fill_open
from fedacd.errors import ConfigError
from fedacd.methods import Method, find
from fedacd.models.net import Net
from fedacd.toml import parse_value


@dataclass(frozen=True, kw_only=True)
class Flower(Settings):
    """What only a deployment has."""

    section: ClassVar[str] = "flower"
    evaluate: bool = setting(True, "the server holds data.name and measures the global model on its test part")
    shape: list[int] | None = setting(None, "channels, height and width, where the server holds no data", above=0)
    classes: int | None = setting(None, "number of classes, where the server holds no data", at_least=2)
    class_names: list[str] | None = setting(
        None, "names of the classes, label 0 first, where the server's data have none or it holds none", items=str
    )
    round_seconds: float = setting(600.0, "how long a round waits for its sites", above=0)
    join_seconds: float = setting(60.0, "how long a round waits for sites that are not connected", above=0)
    patience_seconds: float = setting(3600.0, "how long too few sites are waited for before the run stops", above=0)
    min_replies: int = setting(1, "usable replies below which a round is repeated", at_least=1)
    max_samples: int = setting(10_000_000, "the largest number of samples that a site may claim", at_least=1)
    dp_noise: float = setting(0.0, "noise multiplier of central differential privacy; 0: none", at_least=0)
    dp_clip: float = setting(1.0, "largest norm of a site's update under differential privacy", above=0)
    dp_delta: float = setting(1e-5, "delta at which epsilon is reported", above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.class_names
        if names is None:
            return
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(f"flower.class_names = {names}: must be 2 names or more, each of them once.")
        if self.classes not in (None, len(names)):
            raise ConfigError(
                f"flower.classes = {self.classes}: flower.class_names has {len(names)} names; leave flower.classes out."
            )

    @property
    def num_classes(self) -> int | None:
        return len(self.class_names) if self.class_names else self.classes


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A deployment that is ready to start; every mistake in its settings has been found by now."""

    config: Config
    flower: Flower
    method: Method
    net: Net
    dataset: Dataset
    """The server's own; without `flower.evaluate` only its shape and classes mean anything."""


def deployment_of(run_config: Mapping[str, Any]) -> Deployment:
    """Resolve Flower's run config; whatever is left open takes the data set's or the method's value."""
    values = {key: _listed(value) for key, value in run_config.items()}
    prefix = f"{Flower.section}."
    flower = Flower.build({key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)})
    config = Config.build({key: value for key, value in values.items() if not key.startswith(prefix)})
    kind = find(config.method.name)
    kind.build(config.method.options)
    if config.run.out is None:
        raise ConfigError("run.out is not set: a deployment needs a folder of the server's for its record.")

    dataset = _named(data.load(config.data.name) if flower.evaluate else _stand_in(config, flower), flower.class_names)
    config, method = fill_open(config, kind, dataset)
    for key, constants in (("mean", config.data.mean), ("std", config.data.std)):
        if len(constants or ()) != dataset.shape[0]:
            raise ConfigError(f"data.{key} = {constants}: must have {dataset.shape[0]} values, one a channel.")
    config, net = build_net(config, kind, dataset.shape, dataset.num_classes)
    taking_part = num_participants(config.partition.clients, config.train.participation)
    if flower.min_replies > taking_part:
        raise ConfigError(f"flower.min_replies = {flower.min_replies}: only {taking_part} sites train in a round.")
    return Deployment(config=config, flower=flower, method=method, net=net, dataset=dataset)


def _listed(value: Any) -> Any:
    return parse_value(value) if isinstance(value, str) and value.startswith("[") else value


def _named(dataset: Dataset, names: list[str] | None) -> Dataset:
    """The server's data with the names that the run gives their classes; they may not change names that there are."""
    if names is None or tuple(names) == dataset.class_names:
        return dataset
    if len(names) != dataset.num_classes:
        raise ConfigError(
            f"flower.class_names = {names}: {len(names)} names, and {dataset.name} has {dataset.num_classes} classes."
        )
    if dataset.class_names != numbered(dataset.num_classes):
        raise ConfigError(
            f"flower.class_names = {names}: {dataset.name} has names of its own, {', '.join(dataset.class_names)}; "
            "leave it out."
        )
    return dataclasses.replace(dataset, class_names=tuple(names))


def _stand_in(config: Config, flower: Flower) -> Dataset:
    """A data set of black images that has the right shape and classes, for a server without data."""
    told = flower.shape is not None or flower.classes is not None
    named = None if told else NAMED.get(config.data.name)
    shape = named.shape if named else flower.shape
    num_classes = named.num_classes if named else flower.num_classes
    if shape is None or num_classes is None or len(shape) != 3:
        raise ConfigError(
            f"flower.shape = {flower.shape}, flower.classes = {flower.classes}: a server without data "
            '(flower.evaluate = false) needs both, such as flower.shape = "[3, 32, 32]"; flower.class_names says the '
            "number of classes, too."
        )
    if config.data.mean is None or config.data.std is None:
        raise ConfigError(
            "data.mean and data.std are not set: a server without data (flower.evaluate = false) cannot find them, and "
            'a site must not. Give what suits all sites, such as data.mean = "[0.5]" and data.std = "[0.25]".'
        )
    channels, height, width = shape
    black = np.zeros((num_classes, height, width, channels), np.uint8)
    return Dataset.from_arrays(
        black,
        np.arange(num_classes),
        black,
        np.arange(num_classes),
        class_names=numbered(num_classes),
        name=config.data.name,
        defaults=named.defaults if named else None,
    )
