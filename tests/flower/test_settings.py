"""A deployment's settings: the keys of `fedacd run`, and what a server without data must be told."""

from pathlib import Path

import pytest

from fedacd.errors import ConfigError
from fedacd.flower.central import Central
from fedacd.flower.settings import deployment_of
from tests.flower.local import deployment


def test_what_is_left_open_takes_the_value_of_a_run(tmp_path: Path) -> None:
    config = deployment(tmp_path, method__name="fednh").config
    assert config.model.name == "small-cnn" and config.method.options["rho"] == 0.9 and config.train.mixup is False
    assert config.data.mean is not None and config.data.fingerprint is None


BLIND = {
    "data.name": "scans",
    "run.out": "x",
    "flower.evaluate": False,
    "flower.shape": "[1, 8, 8]",
    "flower.classes": 10,
    "data.mean": "[0.3]",
    "data.std": "[0.4]",
}


def test_a_server_without_data_needs_shape_classes_and_constants() -> None:
    ready = deployment_of(BLIND)
    assert ready.config.data.mean == [0.3] and ready.net.num_classes == 10
    central = Central(ready)
    assert central.like.params.keys() == ready.net.initial.keys()
    assert central.close()["accuracy"] is None


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_what_a_server_without_data_is_told_goes_before_a_known_name(name: str) -> None:
    told = {"data.name": name, "flower.shape": "[1, 64, 64]", "flower.classes": 5}
    ready = deployment_of({**BLIND, **told})
    assert ready.dataset.shape == (1, 64, 64) and ready.net.num_classes == 5
    assert ready.config.model.name == "resnet18" and ready.config.data.crop == 0
    for key in ("flower.shape", "flower.classes"):
        with pytest.raises(ConfigError, match="needs both"):
            deployment_of({other: value for other, value in {**BLIND, **told}.items() if other != key})


def test_a_known_name_alone_says_it_all_but_for_the_constants() -> None:
    values = {key: value for key, value in BLIND.items() if key not in ("flower.shape", "flower.classes")}
    ready = deployment_of({**values, "data.name": "fashion-mnist"})
    assert ready.dataset.shape == (1, 28, 28) and ready.net.num_classes == 10 and ready.config.data.crop == 2


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("data.mean", "data.mean and data.std are not set"),
        ("flower.shape", "flower.shape = None, flower.classes = 10"),
        ("run.out", "run.out is not set"),
    ],
)
def test_what_is_missing_is_named(left_out: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deployment_of({key: value for key, value in BLIND.items() if key != left_out})


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'flower.round_seconds'"):
        deployment(tmp_path, flower__round_second=3)
