import json
from pathlib import Path

import numpy as np
import pytest

from fedacd.data import NAMED, Counts, check, import_data, listing
from fedacd.errors import DataError

from .archives import Sample

SAMPLE = Sample(8, 4, 6, 3, num_classes=3)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    """Classes a (3 in train, 0 in test), b (5, 4) and c (0, 0)."""
    np.savez(
        tmp_path / "mine.npz",
        x_train=SAMPLE.x_train,
        y_train=np.array([0, 1, 1, 1, 0, 1, 1, 0]),
        x_test=SAMPLE.x_test,
        y_test=np.array([1, 1, 1, 1]),
        class_names=np.array(["a", "b", "c"]),
    )
    return tmp_path / "mine.npz"


class TestCheck:
    @pytest.mark.parametrize("imported", [True, False])
    def test_counts(self, npz: Path, imported: bool) -> None:
        found = check(import_data(str(npz)).name if imported else str(npz))
        assert found.name == "mine"
        assert found.source == str(npz)
        assert found.shape == (3, 6, 6)
        assert found.train == Counts(total=8, fewest=0, most=5, missing=("c",))
        assert found.test == Counts(total=4, fewest=0, most=4, missing=("a", "c"))
        assert found.mean == pytest.approx(SAMPLE.x_train.mean((0, 1, 2)) / 255)

    def test_lines(self, npz: Path) -> None:
        lines = check(str(npz)).lines()
        assert lines[2:6] == [
            "images       6x6x3",
            "classes      3",
            "train        8 images, 0 to 5 a class; none of c",
            "test         4 images, 0 to 4 a class; none of a, c",
        ]
        assert len(lines) == 9

    def test_digits(self) -> None:
        found = check("digits")
        assert found.source == "scikit-learn"
        assert found.train.total + found.test.total == 1797
        assert found.train.missing == found.test.missing == ()

    @pytest.mark.parametrize("key", ["x_train", "x_test"])
    def test_a_changed_pixel(self, npz: Path, root: Path, key: str) -> None:
        import_data(str(npz))
        path = root / "mine" / f"{key}.npy"
        changed = bytearray(path.read_bytes())
        changed[-1] ^= 1
        path.write_bytes(changed)
        expected = (
            r"'mine' is damaged: its fingerprint is [0-9a-f]{16}, but [0-9a-f]{16} was written down; remove .*mine"
        )
        with pytest.raises(DataError, match=expected):
            check("mine")

    def test_changed_statistics(self, npz: Path, root: Path) -> None:
        import_data(str(npz))
        path = root / "mine" / "meta.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mean": [0.5, 0.5, 0.5]}))
        with pytest.raises(DataError, match="'mine' is damaged"):
            check("mine")

    def test_an_npz_in_root(self, root: Path) -> None:
        root.mkdir()
        (root / "other.npz").write_bytes(SAMPLE.npz())
        assert check("other").source == str(root / "other.npz")


class TestListing:
    def test_known_names_come_first(self, npz: Path, root: Path) -> None:
        import_data(str(npz))
        entries = listing()
        assert [entry.name for entry in entries] == [*NAMED, "mine"]
        assert [entry.name for entry in entries if entry.present] == ["digits", "mine"]

    def test_known(self, root: Path) -> None:
        entry = next(entry for entry in listing() if entry.name == "tiny-imagenet")
        assert (entry.num_classes, entry.num_train, entry.num_test) == (200, 100_000, 10_000)
        assert entry.shape == "64x64x3"
        assert entry.download == 248_100_043
        assert not entry.present
        assert entry.where == str(root / "tiny-imagenet")

    def test_what_needs_no_download(self) -> None:
        entry = listing()[0]
        assert (entry.name, entry.download, entry.present, entry.where) == ("digits", 0, True, "")

    def test_an_npz_is_present(self, root: Path) -> None:
        root.mkdir()
        (root / "cifar10.npz").write_bytes(b"")
        entry = next(entry for entry in listing() if entry.name == "cifar10")
        assert entry.present
        assert entry.where == str(root / "cifar10.npz")

    def test_imported(self, npz: Path, root: Path) -> None:
        import_data(str(npz))
        entry = listing()[-1]
        assert entry.what == f"imported from {npz}"
        assert (entry.num_classes, entry.shape, entry.num_train, entry.num_test) == (3, "6x6x3", 8, 4)
        assert entry.where == str(root / "mine")

    def test_damaged(self, npz: Path, root: Path) -> None:
        import_data(str(npz))
        (root / "mine" / "meta.json").write_text("{}")
        entry = listing()[-1]
        assert (entry.name, entry.what, entry.present, entry.num_classes) == ("mine", "damaged", False, None)
