"""A site's side: its data, and its state on its disk."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedacd.data import Dataset
from fedacd.errors import ConfigError, DataError, RecordError
from fedacd.flower.central import Central
from fedacd.flower.site import Node, Order, Site, node_of
from tests.flower.local import deployment, do_round, order_of, site, trained


@pytest.fixture
def central(tmp_path: Path) -> Central:
    return Central(deployment(tmp_path / "run", method__name="scaffold"))


def test_data_of_its_own_need_no_partition(central: Central, tmp_path: Path, digits: Dataset) -> None:
    some = slice(0, 40)
    x, y = digits.x_train[some], digits.y_train[some]
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=digits.x_test, y_test=digits.y_test)
    own = site(central, 2, tmp_path, data=str(tmp_path / "own.npz"), num_partitions=None)
    assert len(own.members) == 40
    assert float(own.train(central.state.server.shared).told["n"]) == 40


def test_an_npz_file_without_names_may_lack_classes(central: Central, tmp_path: Path, digits: Dataset) -> None:
    """A site's skewed share: two of the run's ten digits, and a test set of all."""
    some = np.flatnonzero(np.isin(digits.y_train, [1, 3]))
    x, y = digits.x_train[some], digits.y_train[some]
    for name, test in (("all", np.arange(len(digits.y_test))), ("own", np.flatnonzero(digits.y_test == 1))):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=digits.x_test[test], y_test=digits.y_test[test])
        own = site(central, 2, tmp_path, data=str(tmp_path / f"{name}.npz"), num_partitions=None)
        assert float(own.train(central.state.server.shared).told["n"]) == len(some)


THREE = ("cat", "dog", "horse")
NUMBERS = ("0", "1", "2")


def own_data(folder: Path, names: tuple[str, ...], kind: str) -> str:
    """Three images of every class, 4x4 and grey: class folders, or an .npz file with or without the names."""
    x, y = np.zeros((3 * len(names), 4, 4, 1), np.uint8), np.repeat(np.arange(len(names)), 3)
    if kind != "folder":
        arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
        if kind == "npz":
            arrays["class_names"] = np.array(names)
        np.savez(folder / "own.npz", **arrays)
        return str(folder / "own.npz")
    for part in ("train", "test"):
        for name in names:
            (folder / "own" / part / name).mkdir(parents=True)
            for number in range(3):
                Image.fromarray(x[0, ..., 0]).save(folder / "own" / part / name / f"{number}.png")
    return str(folder / "own")


def own_site(folder: Path, names: tuple[str, ...], kind: str, known: tuple[str, ...]) -> Site:
    settings = {"data__name": "pets", "flower__evaluate": False, "flower__shape": "[1, 4, 4]", "flower__classes": 3}
    central = Central(deployment(folder / "run", **settings, data__mean="[0.5]", data__std="[0.25]"))
    order: Order = order_of(central, 0)._replace(shape=(1, 4, 4), class_names=known)
    return Site(Node.build({"partition_id": 0, "data": own_data(folder, names, kind), "state": str(folder)}), order)


@pytest.mark.parametrize(
    ("names", "kind", "known", "labels"),
    [
        (("cat", "horse"), "folder", THREE, [0, 2]),
        (("cat", "horse"), "npz", THREE, [0, 2]),
        (("horse", "cat", "dog"), "npz", THREE, [2, 0, 1]),
        (THREE, "folder", THREE, [0, 1, 2]),
        (("0", "1"), "npz without names", THREE, [0, 1]),
        (("0", "1"), "npz without names", NUMBERS, [0, 1]),
        (("0", "1"), "folder", ("0", "10", "1"), [0, 2]),
        (("1", "2"), "folder", NUMBERS, [1, 2]),
        (("dog",), "folder", THREE, [1]),
        (("2",), "folder", NUMBERS, [2]),
        (("cat", "cat", "dog"), "npz", ("cat", "cat", "dog"), [0, 1, 2]),
        (("dog",), "npz", THREE, [1]),
    ],
)
def test_labels_are_the_server_s_by_the_names_of_the_classes(
    tmp_path: Path, names: tuple[str, ...], kind: str, known: tuple[str, ...], labels: list[int]
) -> None:
    here = own_site(tmp_path, names, kind, known)
    assert here.dataset.y_train[here.members].tolist() == np.repeat(labels, 3).tolist()
    assert sorted(set(here.dataset.y_test.tolist())) == sorted(labels)


@pytest.mark.parametrize(
    ("names", "kind", "known", "message"),
    [
        (
            ("cat", "yak", "zebra"),
            "folder",
            THREE,
            "classes yak, zebra are not known to the server, which has cat, dog",
        ),
        ((*THREE, "yak"), "npz", THREE, "classes yak are not known"),
        (("0", "1", "2", "3"), "npz without names", THREE, "this run has .* and 3"),
    ],
)
def test_classes_that_are_not_the_run_s_are_refused(
    tmp_path: Path, names: tuple[str, ...], kind: str, known: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        own_site(tmp_path, names, kind, known)


@pytest.mark.parametrize("kind", ["folder", "npz"])
@pytest.mark.parametrize("known", [NUMBERS, ()])
@pytest.mark.parametrize("names", [THREE, ("cat", "horse"), ("cat",), ("0", "4")])
def test_names_that_the_server_cannot_match_are_refused_whatever_their_number(
    tmp_path: Path, names: tuple[str, ...], kind: str, known: tuple[str, ...]
) -> None:
    """As many at every site would not be the same at every site."""
    with pytest.raises(ConfigError, match=r"the server knows none: set flower\.class_names there") as caught:
        own_site(tmp_path, names, kind, known)
    assert str(tmp_path) not in str(caught.value)
    assert len(str(caught.value)) <= 200  # what the server shows of it


def test_a_known_data_set_at_server_and_sites_needs_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has no data, so it does not know the names; the labels are those of the data set of this name."""
    monkeypatch.setenv("FEDACD_DATA", str(tmp_path))
    x, y = np.zeros((20, 28, 28, 1), np.uint8), np.arange(20) % 10
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "class_names": list("abcdefghij")}
    np.savez(tmp_path / "fashion-mnist.npz", **arrays)
    settings = {"flower__evaluate": False, "data__mean": "[0.5]", "data__std": "[0.25]"}
    for name, works in (("fashion-mnist", True), (str(tmp_path / "fashion-mnist.npz"), False)):
        central = Central(deployment(tmp_path / "run", data__name="fashion-mnist", **settings))
        order = order_of(central, 0)._replace(shape=(1, 28, 28), class_names=tuple("0123456789"))
        node = Node.build({"partition_id": 0, "data": name, "state": str(tmp_path)})
        if works:
            assert Site(node, order).dataset.y_train.tolist() == y.tolist()
            with pytest.raises(DataError, match=r"classes a, b, c, .* are not known to the server"):
                Site(node, order._replace(class_names=tuple("klmnopqrst")))
        else:
            with pytest.raises(ConfigError, match=r"set flower\.class_names there"):
                Site(node, order)


@pytest.mark.parametrize("method", ["fedacd", "fedavg"])
def test_a_site_may_hold_a_single_class_and_no_test_set(tmp_path: Path, method: str) -> None:
    for number in range(3):
        (tmp_path / "own" / "dog").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / "own" / "dog" / f"{number}.png")
    told = {"flower__evaluate": False, "flower__shape": "[1, 8, 8]", "flower__class_names": "['cat', 'dog', 'horse']"}
    ready = deployment(
        tmp_path / "run", data__name="pets", data__mean="[0.5]", data__std="[0.25]", method__name=method, **told
    )
    central = Central(ready)
    order = order_of(central, 0)._replace(class_names=ready.dataset.class_names)
    node = Node.build({"partition_id": 0, "data": str(tmp_path / "own"), "state": str(tmp_path)})
    here = Site(node, order)
    assert here.dataset.y_train.tolist() == [1, 1, 1]
    assert central.take(0, here.train(central.state.server.shared)) is None


def test_the_folder_of_its_state_may_begin_with_a_tilde(
    central: Central, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert site(central, 0, Path("~/kept")).state_file.parent == tmp_path / "kept"


def test_normalisation_is_the_config_s_and_not_the_site_s(tmp_path: Path) -> None:
    central = Central(deployment(tmp_path / "run", data__mean="[0.25]", data__std="[0.75]"))
    here = site(central, 0, tmp_path)
    shared = central.state.server.shared
    client = here.method.init_client(here.net, shared, torch.zeros(10))
    images = here._job(shared, client, torch.device("cpu")).images
    assert (images.mean.tolist(), images.std.tolist()) == ([0.25], [0.75])


def test_a_restarted_site_goes_on_from_its_file(central: Central, tmp_path: Path) -> None:
    do_round(central, tmp_path)
    path = site(central, 0, tmp_path).state_file
    assert path.exists() and path.stat().st_mode & 0o077 == 0
    trained(central, 0, tmp_path)


def test_a_lost_state_is_an_error_and_not_a_fresh_start(central: Central, tmp_path: Path) -> None:
    do_round(central, tmp_path)
    site(central, 0, tmp_path).state_file.unlink()
    with pytest.raises(RecordError, match="does not hold this site's state after round 1"):
        trained(central, 0, tmp_path)


def test_a_method_without_memory_needs_no_file(tmp_path: Path) -> None:
    central = Central(deployment(tmp_path / "run", method__name="fedavg"))
    do_round(central, tmp_path)
    site(central, 0, tmp_path).state_file.unlink()
    trained(central, 0, tmp_path)


@pytest.mark.parametrize(("key", "name"), [("model.name", "theirs:Linear"), ("method.name", "theirs:Own")])
def test_code_is_taken_from_packages_that_the_site_names_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, name: str
) -> None:
    """What the server names would be imported here, and called."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    central = Central(deployment(tmp_path / "run", **{key.replace(".", "__"): name}))
    sys.modules.pop("theirs")
    for packages in ("", "others, their"):
        with pytest.raises(ConfigError, match=rf"{key} = '{name}': .* node-config packages"):
            site(central, 0, tmp_path, packages=packages)
    assert "theirs" not in sys.modules
    site(central, 0, tmp_path, packages="others, theirs").train(central.state.server.shared)


THEIRS = """
from torch import nn
from fedacd import Method

class Linear(nn.Sequential):
    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))

class Own(Method):
    pass
"""


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cdua", r"node-config device = 'cdua': must be cpu, cuda, cuda:N or auto\.$"),
        ("cuda:x", r"node-config device = 'cuda:x': must be cpu, cuda, cuda:N or auto\.$"),
        ("cuda", r"node-config device = 'cuda:0': this machine has 0 CUDA devices; use cpu or auto\.$"),
        ("cuda:1", r"node-config device = 'cuda:1': this machine has 0 CUDA devices; use cpu or auto\.$"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    central: Central, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=message):
        site(central, 0, tmp_path, device=device)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"partition-id": "one"}, "node-config partition-id = 'one': must be a whole number at least 0."),
        ({"num-partitions": 0}, "node-config num-partitions = 0: must be a whole number at least 1."),
        (
            {"num-partition": 4},
            "unknown setting 'node-config num-partition'. Did you mean 'node-config num-partitions'?",
        ),
    ],
)
def test_mistakes_are_named_as_they_are_written(mistake: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        node_of({"partition-id": 0, **mistake})
    assert str(caught.value).startswith(message)


def test_what_does_not_fit_the_run_is_refused(central: Central, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"num-partitions = 5: the run has partition\.clients = 4"):
        site(central, 0, tmp_path, num_partitions=5)
    x, y = np.zeros((4, 9, 9, 1), np.uint8), np.arange(4)
    np.savez(tmp_path / "big.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"this run has \(1, 8, 8\) and 10"):
        site(central, 0, tmp_path, data=str(tmp_path / "big.npz"), num_partitions=None)
    with pytest.raises(ConfigError, match="partition-id is not set"):
        node_of({"data": "digits"})
