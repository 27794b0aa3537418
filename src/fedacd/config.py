"""Everything that decides a run, to and from TOML.

A setting is named `section.key` everywhere: in a TOML file, after `--set`, in error messages and in the record of a
run. `None` means that the data set, the model or the method decides; `Config.fill` puts their values in before a run
starts, so that what is written down has no hidden values.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedacd.errors import ConfigError, unknown
from fedacd.settings import Settings as Settings  # here, too, for methods of one's own
from fedacd.settings import plain
from fedacd.settings import setting as setting
from fedacd.toml import toml_value


@dataclass(frozen=True, kw_only=True)
class Data(Settings):
    section: ClassVar[str] = "data"
    name: str = setting("cifar10", "a known name, an .npz file or a folder of class folders")
    crop: int | None = setting(
        None, "random crop after padding by this many black pixels; the data set's own", at_least=0
    )
    flip: bool | None = setting(None, "random horizontal flip; the data set's own")
    mean: list[float] | None = setting(None, "mean of each channel, pixels from 0 to 1; of the training images")
    std: list[float] | None = setting(None, "standard deviation of each channel, likewise", above=0)
    fingerprint: str | None = setting(None, "hash of images and labels; filled in, and checked on resume")


@dataclass(frozen=True, kw_only=True)
class Partition(Settings):
    section: ClassVar[str] = "partition"
    scheme: str = setting(
        "capped-dirichlet",
        "how samples are dealt to clients",
        one_of=("capped-dirichlet", "two-class-dirichlet", "dirichlet", "equal-dirichlet", "shards", "iid", "custom"),
    )
    clients: int = setting(20, "number of clients", at_least=1)
    beta: float = setting(0.1, "concentration of the Dirichlet schemes; smaller is more skewed", above=0)
    classes_per_client: int = setting(2, "classes that a client holds under 'shards'", at_least=1)
    min_size: int = setting(10, "fewest samples of a client", at_least=1)
    file: str | None = setting(None, "index lists for 'custom': .json (a list of lists) or .npz (one array per client)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.file is not None and self.scheme != "custom":
            raise ConfigError(f"partition.file = {self.file!r}: goes with partition.scheme = 'custom' only.")


@dataclass(frozen=True, kw_only=True)
class Train(Settings):
    section: ClassVar[str] = "train"
    rounds: int = setting(200, "communication rounds", at_least=1)
    participation: float = setting(0.4, "share of the clients that train in a round", above=0, at_most=1)
    epochs: int = setting(5, "local epochs in a round", at_least=1)
    batch_size: int = setting(64, "samples in a local step", at_least=1)
    lr: float = setting(0.01, "learning rate of the first round", above=0)
    lr_decay: float = setting(0.99, "factor on the learning rate after each round", above=0, at_most=1)
    momentum: float = setting(0.9, "momentum of local SGD, started afresh every round", at_least=0, below=1)
    weight_decay: float | None = setting(None, "L2 penalty, added after clipping; the data set's own", at_least=0)
    clip: float = setting(
        10.0, "largest norm of a gradient, of shared and of private weights apart; 0: no limit", at_least=0
    )
    mixup: bool | None = setting(None, "input mixup; the method's own (on for FedACD)")
    mixup_alpha: float = setting(0.5, "mixing weight ~ Beta(alpha, alpha), one draw a batch", above=0)
    mixup_partners: str = setting(
        "random", "with whom in the batch: anybody, or each of its classes evenly", one_of=("random", "even")
    )
    mixup_batch: str = setting(
        "mixed",
        "a step's loss: of the mixed images, or the mean of the batch's own and theirs",
        one_of=("mixed", "both"),
    )

    @property
    def images(self) -> str:
        """Those of a step: `own`, `mixed` or `both`."""
        return self.mixup_batch if self.mixup else "own"

    def lr_in(self, round_: int) -> float:
        """The learning rate of a round."""
        return self.lr * self.lr_decay ** (round_ - 1)


@dataclass(frozen=True, kw_only=True)
class Run(Settings):
    section: ClassVar[str] = "run"
    seed: int = setting(0, "changes partition, initial weights and every draw", at_least=0, at_most=2**32 - 1)
    device: str = setting("auto", "where to train: cpu, cuda, cuda:N, or auto, which is cuda where there is one")
    precision: str = setting("fp32", "arithmetic of forward and backward passes", one_of=("fp32", "tf32", "bf16"))
    slots: int | None = setting(
        None,
        "clients trained at once by one program; on a GPU as many as there is use and memory for",
        at_least=1,
        at_most=4096,
    )
    workers: int | None = setting(
        None, "processes that share the clients of a run on a CPU; as many as there are cores", at_least=1
    )
    threads: int | None = setting(
        None,
        "CPU threads of a process; 1 beside a GPU or other workers, else torch's own choice",
        at_least=1,
        at_most=1024,
    )
    deterministic: bool = setting(False, "on a GPU: the same bits every time, alone or beside other runs; slower")
    eval_every: int = setting(1, "measure every k rounds, and after the last", at_least=1)
    save_every: int | None = setting(
        None,
        "write the checkpoint every k rounds, and after the last; once 5 seconds of work would be lost",
        at_least=1,
    )
    out: str | None = setting(None, "the run's folder; runs/NAME where it is not given")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Something chosen by name, with options that only it knows: a model or a method."""

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)


# What may differ between two starts of one run: where it runs and how often it saves, not what it computes.
VOLATILE = frozenset(
    f"run.{key}" for key in ("out", "device", "slots", "workers", "threads", "deterministic", "save_every")
)


def without_effect(flat: Mapping[str, Any]) -> frozenset[str]:
    """Which settings do not matter for the numbers of a run: where there is no mixup, it may be of any kind."""
    mixing = {"train.mixup_alpha", "train.mixup_partners", "train.mixup_batch"}
    return VOLATILE | mixing if flat.get("train.mixup") is False else VOLATILE


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides a run."""

    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    model: Choice = field(default_factory=lambda: Choice(name=None))
    method: Choice = field(default_factory=lambda: Choice(name="fedacd"))
    train: Train = field(default_factory=Train)
    run: Run = field(default_factory=Run)

    @classmethod
    def build(cls, values: Mapping[str, Any]) -> "Config":
        """Make one from `section.key` -> value; whatever is not named keeps its default."""
        groups: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        for key, value in values.items():
            section, dot, name = key.partition(".")
            if not dot or not name:
                raise ConfigError(f"'{key}' is not the name of a setting: write section.key, such as train.lr.")
            if section not in groups:
                raise ConfigError(unknown("section", section, groups))
            groups[section][name] = value
        return cls(**{section: _build_section(section, group) for section, group in groups.items()})

    def flat(self) -> dict[str, Any]:
        """`section.key` -> value, in the order of the sections, unset ones included."""
        found: dict[str, Any] = {}
        for section in _SECTIONS:
            group = getattr(self, section)
            values = {"name": group.name, **group.options} if isinstance(group, Choice) else dataclasses.asdict(group)
            found |= {f"{section}.{name}": value for name, value in values.items()}
        return found

    def replace(self, values: Mapping[str, Any]) -> "Config":
        """A copy with some settings changed."""
        return Config.build(self.flat() | dict(values))

    def fill(self, defaults: Mapping[str, Any]) -> "Config":
        """A copy in which settings that were left open take these values."""
        flat = self.flat()
        return self.replace({key: value for key, value in defaults.items() if flat.get(key) is None})

    def measured_in(self, round_: int) -> bool:
        """Whether a round is evaluated."""
        return round_ % self.run.eval_every == 0 or round_ == self.train.rounds

    def identity(self) -> dict[str, Any]:
        """The settings that decide the numbers of a run."""
        flat = self.flat()
        return {key: value for key, value in flat.items() if key not in without_effect(flat)}

    def digest(self) -> str:
        """Eight hex digits that stand for `identity`."""
        return _digest(self.identity())

    def course(self) -> str:
        """The same but for the number of rounds: runs of one course agree as far as both go."""
        return _digest({key: value for key, value in self.identity().items() if key != "train.rounds"})

    def to_toml(self) -> str:
        lines: list[str] = []
        for key, value in self.flat().items():
            section, _, name = key.partition(".")
            if f"[{section}]" not in lines:
                lines += ["", f"[{section}]"]
            if value is not None:
                lines.append(f"{name} = {toml_value(value)}")
        return "\n".join(lines[1:]) + "\n"


def _digest(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


_SECTIONS: dict[str, Any] = {spec.name: spec.type for spec in dataclasses.fields(Config)}


def _build_section(section: str, values: dict[str, Any]) -> Any:
    kind = _SECTIONS[section]
    if issubclass(kind, Settings):
        return kind.build(values)
    name = values.pop("name", "fedacd" if section == "method" else None)
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"{section}.name = {name!r}: must be a text.")
    values = {key: plain(value) for key, value in values.items()}
    for key, value in values.items():
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, bool | int | float | str) for item in items):
            raise ConfigError(
                f"{section}.{key} = {value!r}: must be a number, a text, true or false, or a list of such."
            )
        if not all(math.isfinite(item) for item in items if isinstance(item, float)):
            raise ConfigError(f"{section}.{key} = {value!r}: must be finite.")
    return Choice(name=name, options=values)
