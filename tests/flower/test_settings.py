"""A deployment's settings: the keys of `fedacd run`, and what a server without data must be told."""

from pathlib import Path

import numpy as np
import pytest

from fedacd.data import Dataset
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


NAMES = ("five", "four", "one")
TEXT = "['five', 'four', 'one']"
NAMELESS = {key: value for key, value in BLIND.items() if key != "flower.classes"}


@pytest.mark.parametrize("more", [{}, {"flower.classes": 3}])
def test_a_server_without_data_may_be_told_the_names_of_the_classes(more: dict[str, int]) -> None:
    ready = deployment_of({**NAMELESS, "flower.class_names": TEXT, **more})
    assert ready.dataset.class_names == NAMES and ready.net.num_classes == 3


def test_names_go_with_a_known_name_s_shape() -> None:
    values = {key: value for key, value in NAMELESS.items() if key != "flower.shape"} | {"data.name": "fashion-mnist"}
    ready = deployment_of({**values, "flower.class_names": str(list("abcdefghij"))})
    assert ready.dataset.class_names == tuple("abcdefghij") and ready.dataset.shape == (1, 28, 28)
    with pytest.raises(
        ConfigError, match=r"flower\.class_names = .*'one'\]: 3 names, and fashion-mnist has 10 classes"
    ):
        deployment_of({**values, "flower.class_names": TEXT})


def test_names_are_for_data_without_names(tmp_path: Path, digits: Dataset) -> None:
    arrays = {key: getattr(digits, key) for key in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(tmp_path / "own.npz", **arrays)
    names = str(list("abcdefghij"))
    for data, given in (("own", names), ("named", names), ("named", None)):
        np.savez(tmp_path / "named.npz", **arrays, class_names=list("abcdefghij"))
        more = {"flower__class_names": given} if given else {}
        ready = deployment(tmp_path / "run", data__name=str(tmp_path / f"{data}.npz"), **more)
        assert ready.dataset.class_names == tuple("abcdefghij")
    np.savez(tmp_path / "named.npz", **arrays, class_names=list("bacdefghij"))
    with pytest.raises(
        ConfigError, match=r"flower\.class_names .*: named has names of its own, b, a, c, .*leave it out"
    ):
        deployment(tmp_path / "run", data__name=str(tmp_path / "named.npz"), flower__class_names=names)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"flower.class_names": "five"}, r"flower\.class_names = 'five': must be a list of texts\."),
        ({"flower.class_names": "[five, four]"}, r"flower\.class_names = '\[five, four\]': must be a list of texts\."),
        ({"flower.class_names": "[5, 4]"}, r"flower\.class_names = \[5, 4\]: must be a list of texts\."),
        ({"flower.class_names": "['five']"}, r"\['five'\]: must be 2 names or more, each of them once"),
        ({"flower.class_names": "['a', 'b', 'a']"}, r"\['a', 'b', 'a'\]: must be 2 names or more, each of them once"),
        (
            {"flower.class_names": TEXT, "flower.classes": 4},
            r"flower\.classes = 4: flower\.class_names has 3 names; leave flower\.classes out",
        ),
    ],
)
def test_mistakes_in_the_names_of_the_classes(more: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deployment_of({**NAMELESS, **more})


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
