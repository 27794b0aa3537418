"""The real data sets, where FEDACD_DATA has them."""

import time
from pathlib import Path

import numpy as np
import pytest

from fedacd.data import NAMED, check, import_data, load

OFFICIAL_MEAN = {
    "cifar10": (0.4914, 0.4822, 0.4465),
    "cifar100": (0.5071, 0.4865, 0.4409),
    "fashion-mnist": (0.2860,),
}


def present(root: Path, name: str) -> Path:
    if not (root / name).exists() and not (root / f"{name}.npz").exists():
        pytest.skip(f"FEDACD_DATA has no {name}")
    return root / f"{name}.npz"


@pytest.mark.parametrize("name", OFFICIAL_MEAN)
def test_is_the_official_data_set(real_root: Path, name: str) -> None:
    present(real_root, name)
    dataset, known = load(name), NAMED[name]
    assert dataset.shape == known.shape
    train, test = np.bincount(dataset.y_train), np.bincount(dataset.y_test)
    assert train.tolist() == [known.num_train // known.num_classes] * known.num_classes
    assert test.tolist() == [known.num_test // known.num_classes] * known.num_classes
    assert dataset.mean == pytest.approx(OFFICIAL_MEAN[name], abs=1e-4)


def test_import_then_load(real_root: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = present(real_root, "cifar100")
    if not path.exists():
        pytest.skip("FEDACD_DATA has cifar100, but not as an .npz file")
    fingerprint = load(str(path)).fingerprint
    monkeypatch.setenv("FEDACD_DATA", str(root))
    import_data(str(path))
    start = time.perf_counter()
    dataset = load("cifar100")
    assert time.perf_counter() - start < 2
    assert dataset.fingerprint == fingerprint
    assert dataset.defaults["data.crop"] == 4
    found = check("cifar100")
    assert (found.train.fewest, found.train.most, found.test.fewest, found.test.most) == (500, 500, 100, 100)
