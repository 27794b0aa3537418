"""Settings: what is refused, with which words, and what comes back from TOML."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedacd.config import Config
from fedacd.errors import ConfigError
from fedacd.toml import parse_value, read_toml

BAD: list[tuple[str, Any, str]] = [
    ("partition.beta", 0, "partition.beta = 0.0: must be a number above 0."),
    ("partition.beta", -0.1, "partition.beta = -0.1: must be a number above 0."),
    ("train.participation", 1.5, "train.participation = 1.5: must be a number above 0 and at most 1."),
    ("train.participation", 0, "train.participation = 0.0: must be a number above 0 and at most 1."),
    ("train.rounds", 0, "train.rounds = 0: must be a whole number at least 1."),
    ("train.rounds", 2.5, "train.rounds = 2.5: must be a whole number at least 1."),
    ("train.rounds", True, "train.rounds = True: must be a whole number at least 1."),
    ("train.rounds", None, "train.rounds = None: must be a whole number at least 1."),
    ("train.lr", float("nan"), "train.lr = nan: must be a number above 0."),
    ("train.lr", float("inf"), "train.lr = inf: must be a number above 0."),
    ("train.lr", "fast", "train.lr = 'fast': must be a number above 0."),
    ("train.momentum", 1, "train.momentum = 1.0: must be a number at least 0 and below 1."),
    ("train.mixup", 1, "train.mixup = 1: must be true or false."),
    ("run.precision", "fp8", "run.precision = 'fp8': must be one of fp32, tf32, bf16."),
    ("partition.scheme", "dirichlett", "partition.scheme = 'dirichlett': must be one of capped-dirichlet, two-class"),
    ("run.seed", -1, "run.seed = -1: must be a whole number at least 0"),
    ("data.mean", 0.5, "data.mean = 0.5: must be a list of numbers."),
    ("method.name", 3, "method.name = 3: must be a text."),
    ("train.lrr", 1, "unknown setting 'train.lrr'. Did you mean 'train.lr'?"),
    ("tran.lr", 1, "unknown section 'tran'. Did you mean 'train'?"),
    ("lr", 1, "'lr' is not the name of a setting: write section.key, such as train.lr."),
]


@pytest.mark.parametrize(("key", "value", "message"), BAD)
def test_a_bad_setting_is_named_with_what_is_allowed(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.build({key: value})
    assert str(caught.value).startswith(message)


def test_defaults_are_the_papers() -> None:
    config = Config()
    train = config.train
    assert (train.rounds, train.epochs, train.batch_size, train.lr, train.momentum) == (200, 5, 64, 0.01, 0.9)
    assert (train.participation, train.lr_decay, train.clip, train.mixup_alpha) == (0.4, 0.99, 10, 0.5)
    assert (config.partition.clients, config.partition.scheme) == (20, "capped-dirichlet")
    assert config.method.name == "fedacd"


settings = st.fixed_dictionaries(
    {},
    optional={
        "train.lr": st.floats(1e-9, 1e3),
        "train.rounds": st.integers(1, 10**6),
        "train.mixup": st.booleans(),
        "data.name": st.text(min_size=1),
        "data.mean": st.lists(st.floats(0, 1), max_size=3),
        "method.lam": st.floats(0, 10),
        "model.head": st.text(),
    },
)


@given(settings)
def test_toml_round_trip(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    config = Config.build(values)
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_text(config.to_toml(), "utf-8")
    assert Config.build(read_toml(path)) == config


def test_fill_only_sets_what_was_left_open() -> None:
    config = Config.build({"data.crop": 2}).fill({"data.crop": 4, "data.flip": True, "train.lr": 9.0})
    assert (config.data.crop, config.data.flip, config.train.lr) == (2, True, 0.01)


def test_digest_ignores_where_a_run_runs_and_nothing_else() -> None:
    base = Config()
    assert base.replace({"run.out": "x", "run.device": "cuda", "run.save_every": 5}).digest() == base.digest()
    for change in ({"run.seed": 1}, {"train.lr": 0.02}, {"method.lam": 2.0}, {"run.precision": "bf16"}):
        assert base.replace(change).digest() != base.digest()
    longer = base.replace({"train.rounds": 500})
    assert longer.digest() != base.digest()
    assert longer.course() == base.course() != base.replace({"train.lr": 0.5}).course()


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("0.5", 0.5), (".5", 0.5), ("1e-5", 1e-5), ("true", True), ("False", False), ("fedavg", "fedavg"),
     ('"1"', "1"), ("[0.1, 0.2]", [0.1, 0.2]), ("a b", "a b"),
     ("1\nother = 2", "1\nother = 2"), ("9" * 5000, math.inf)],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_values_from_the_command_line(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("content", "reason"), [("train = ", "is not valid TOML"), ("lr = 1", "'lr' stands outside a section")]
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read the config file"):
        read_toml(tmp_path / "none.toml")


def test_the_strength_of_a_mixup_that_is_not_done_makes_no_other_run() -> None:
    def identity(**train: object) -> dict[str, object]:
        return Config.build({f"train.{key}": value for key, value in train.items()}).identity()

    assert identity(mixup=False, mixup_alpha=0.2) == identity(mixup=False, mixup_alpha=1.0)
    assert identity(mixup=True, mixup_alpha=0.2) != identity(mixup=True, mixup_alpha=1.0)
    assert identity(mixup_alpha=0.2) != identity(mixup_alpha=1.0)  # the method may want one
    assert identity(mixup=False, mixup_batch="both") == identity(mixup=False)
    assert identity(mixup=True, mixup_batch="both") != identity(mixup=True)
