import numpy as np
import pytest

from fedacd.data import NAMED, Dataset
from fedacd.engine.setup import prepare
from fedacd.errors import ConfigError
from fedacd.methods import METHODS
from fedacd.tables.declare import TABLES
from fedacd.tables.wanted import FROM_DATA, OWN, Want, Wanted, key_of, resolve, shard


def like(name: str) -> Dataset:
    """Noise in the shape of a known data set."""
    known, rng = NAMED[name], np.random.default_rng(0)
    channels, height, width = known.shape
    x = rng.integers(0, 256, (known.num_classes * 2, height, width, channels)).astype(np.uint8)
    y = np.arange(len(x)) % known.num_classes
    return Dataset.from_arrays(x, y, x, y, name=name, defaults=known.defaults)


@pytest.mark.parametrize(
    ("dataset", "method"),
    [*((name, method) for name in ("digits", "cifar10", "cifar100") for method in METHODS), ("tiny-imagenet", "fednh")],
)
def test_a_run_is_resolved_as_prepare_does(dataset: str, method: str) -> None:
    settings = {"data.name": dataset, "method.name": method, "partition.scheme": "iid", "partition.clients": 2}
    settings |= {"partition.min_size": 1, "run.device": "cpu"}
    identity = prepare(settings, dataset=like(dataset)).config.identity()
    assert resolve(settings) == {key: value for key, value in identity.items() if key not in FROM_DATA}


def test_options_and_mixup_are_resolved() -> None:
    settings = {"data.name": "cifar100", "method.name": "fedacd", "method.lam": 2, "train.mixup": False}
    resolved = resolve(settings)
    assert (resolved["method.lam"], resolved["train.mixup"], resolved["model.name"]) == (2.0, False, "cnn")
    assert resolved["train.weight_decay"] == 1e-5


def test_a_record_without_mixup_fits_whatever_strength_it_names() -> None:
    def key(method: str, alpha: float) -> str:
        settings = {"data.name": "cifar10", "method.name": method}
        return key_of(resolve(settings) | {"train.mixup_alpha": alpha})

    assert key("fedavg", 1.0) == key_of(resolve({"data.name": "cifar10", "method.name": "fedavg"}))
    assert (
        key("fedacd", 1.0) != key("fedacd", 0.5) == key_of(resolve({"data.name": "cifar10", "method.name": "fedacd"}))
    )


@pytest.mark.parametrize(
    ("mean", "fits"),
    [
        ([0.49139967861519607, 0.48215840839460783, 0.44653091444546567], True),
        ([0.4914, 0.48216, 0.44653], True),
        ([0.4914, 0.4822, 0.4465], False),
        ([0.4914], False),
        ("grey", False),
        (None, True),
    ],
)
def test_a_mean_that_is_not_the_data_sets_own_makes_another_run(mean: object, fits: bool) -> None:
    wanted, fingerprint = resolve({"data.name": "cifar10", "method.name": "fedavg"}), "601415ca8084038a"
    own = OWN[fingerprint] | {"data.fingerprint": fingerprint}
    assert (key_of(wanted | own | {"data.mean": mean}) == key_of(wanted)) == fits
    assert key_of(wanted | own | {"data.fingerprint": "of other images", "data.mean": mean}) == key_of(wanted)


def test_names_tell_what_is_varied() -> None:
    names = {want.name for want in Wanted(TABLES[4], seeds=[1], rounds=200, precision="fp32").runs}
    assert "cifar100-fedacd-beta0.1-seed1" in names
    assert "cifar100-fedacd-beta0.1-clients60-seed1" in names
    assert len(names) == 49


def all_runs() -> list[Want]:
    return Wanted(TABLES[1], seeds=[0, 1, 2], rounds=200, precision="fp32").runs


def test_shards_are_a_partition_and_have_their_share_of_each_data_set() -> None:
    runs = all_runs()
    parts = [shard(runs, f"{k}/7") for k in range(1, 8)]
    names = [want.name for part in parts for want in part]
    assert sorted(names) == sorted(want.name for want in runs)
    assert len(set(names)) == 270
    for part in parts:
        for dataset in ("cifar10", "cifar100", "tiny-imagenet"):
            assert sum(want.dataset == dataset for want in part) in (12, 13)
    assert [w.name for w in shard(runs[::-1], "3/7")] == [w.name for w in parts[2]]
    assert shard(runs, None) == runs


def test_more_shards_than_runs() -> None:
    few = all_runs()[:2]
    assert sum(len(shard(few, f"{k}/5")) for k in range(1, 6)) == 2


@pytest.mark.parametrize("text", ["0/5", "6/5", "x", "2", "1/0", "/", "-1/5", "1/2/3", "1.0/2", ""])
def test_wrong_shards(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be k/m, with k from 1 to m"):
        shard([], text)
