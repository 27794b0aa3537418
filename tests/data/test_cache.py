import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedacd.data import Dataset, cache
from fedacd.errors import DataError

from .archives import Sample

SAMPLE = Sample(8, 4, 6, 3, num_classes=3)


def make(name: str = "mine") -> Dataset:
    dataset = Dataset.from_arrays(
        SAMPLE.x_train, SAMPLE.y_train, SAMPLE.x_test, SAMPLE.y_test, class_names=["é", "b", "c"], name=name
    )
    with cache.lock(name), cache.building(name) as folder:
        cache.write(folder, dataset, "somewhere")
    return dataset


class TestRoot:
    def test_chosen(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("FEDACD_DATA", str(tmp_path))
        assert cache.root() == tmp_path

    def test_home_is_expanded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FEDACD_DATA", "~/data")
        assert cache.root() == Path.home() / "data"

    @pytest.mark.parametrize("unset", [True, False])
    def test_cache_folder(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unset: bool) -> None:
        monkeypatch.delenv("FEDACD_DATA") if unset else monkeypatch.setenv("FEDACD_DATA", "")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.root() == tmp_path / "fedacd"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache.root() == Path.home() / ".cache" / "fedacd"


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-x", "a/b", "a b", "a\n", "é", "digits", "downloads", "x.npz"]
)
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(DataError, match="cannot be the name of a data set"):
        cache.check_name(name)


@pytest.mark.parametrize("name", ["a", "cifar10", "My_data-2.1", "_x"])
def test_names_that_can_be(name: str) -> None:
    cache.check_name(name)


class TestOpenCache:
    def test_is_what_was_written(self) -> None:
        written = make()
        opened = cache.open_cache("mine")
        assert SAMPLE.same(opened)
        for key in ("name", "class_names", "mean", "std", "fingerprint", "defaults"):
            assert getattr(opened, key) == getattr(written, key)

    def test_pixels_stay_on_disk(self) -> None:
        make()
        opened = cache.open_cache("mine")
        assert isinstance(opened.x_train.base, np.memmap)
        assert not opened.x_train.flags.writeable
        assert not opened.y_train.flags.writeable

    def test_meta(self, root: Path) -> None:
        dataset = make()
        meta = json.loads((root / "mine" / "meta.json").read_text(encoding="utf-8"))
        assert meta == {
            "name": "mine",
            "class_names": ["é", "b", "c"],
            "mean": list(dataset.mean),
            "std": list(dataset.std),
            "fingerprint": dataset.fingerprint,
            "source": "somewhere",
            "defaults": dict(dataset.defaults),
            "shapes": {"x_train": [8, 6, 6, 3], "y_train": [8], "x_test": [4, 6, 6, 3], "y_test": [4]},
        }

    @pytest.mark.parametrize("key", cache.ARRAYS)
    @pytest.mark.parametrize("size", [0, 5, 100, -1])
    def test_truncated_array(self, root: Path, key: str, size: int) -> None:
        make()
        path = root / "mine" / f"{key}.npy"
        path.write_bytes(path.read_bytes()[:size])
        expected = rf"{key}\.npy .*run `fedacd data get mine` again; .* run `fedacd data import` again"
        with pytest.raises(DataError, match=expected):
            cache.open_cache("mine")

    @pytest.mark.parametrize("key", cache.ARRAYS)
    def test_array_that_goes_on(self, root: Path, key: str) -> None:
        make()
        with (root / "mine" / f"{key}.npy").open("ab") as file:
            file.write(b"x")
        with pytest.raises(DataError, match=rf"{key}\.npy has \d+ bytes instead of \d+"):
            cache.open_cache("mine")

    @pytest.mark.parametrize(
        "array",
        [SAMPLE.x_train[:7], SAMPLE.x_train.astype(np.int8), np.asfortranarray(SAMPLE.x_train)],
    )
    def test_another_array(self, root: Path, array: Any) -> None:
        make()
        np.save(root / "mine" / "x_train.npy", array)
        with pytest.raises(DataError, match=r"x_train\.npy is not the array of uint8 \(8, 6, 6, 3\)"):
            cache.open_cache("mine")

    def test_missing_array(self, root: Path) -> None:
        make()
        (root / "mine" / "x_test.npy").unlink()
        with pytest.raises(DataError, match=r"x_test\.npy is missing"):
            cache.open_cache("mine")

    def test_impossible_label(self, root: Path) -> None:
        make()
        np.save(root / "mine" / "y_test.npy", np.array([0, 1, 3, 0]))
        with pytest.raises(DataError, match=r"y_test\.npy is damaged: y_test\[2\] = 3: labels must be 0 to 2"):
            cache.open_cache("mine")

    def test_damaged_header(self, root: Path) -> None:
        make()
        path = root / "mine" / "x_train.npy"
        whole, rng = path.read_bytes(), np.random.default_rng(0)
        refused = 0
        for _ in range(200):
            changed = bytearray(whole)
            changed[rng.integers(80)] ^= 1 << rng.integers(8)
            path.write_bytes(changed)
            try:
                cache.open_cache("mine")
            except DataError:
                refused += 1
        assert refused > 150

    @pytest.mark.parametrize(
        "change",
        [
            *({key: None} for key in ("name", "class_names", "mean", "std", "fingerprint", "defaults", "shapes")),
            {"mean": [0.5]},
            {"std": ["a", "b", "c"]},
            {"mean": [float("nan")] * 3},
            {"class_names": [1, 2, 3]},
            {"class_names": ["one"]},
            {"shapes": {}},
            {"shapes": {"x_train": [8], "y_train": [8], "x_test": [4], "y_test": [4]}},
            {"shapes": {"x_train": [8, 6, 6, 3], "y_train": [7], "x_test": [4, 6, 6, 3], "y_test": [4]}},
            {"shapes": {"x_train": [8, 6, 6, 3], "y_train": [8], "x_test": [4, 5, 6, 3], "y_test": [4]}},
        ],
    )
    def test_damaged_meta(self, root: Path, change: dict[str, Any]) -> None:
        make()
        path = root / "mine" / "meta.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change))
        with pytest.raises(DataError, match=r"meta\.json is damaged: run `fedacd data get mine`"):
            cache.open_cache("mine")

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b"\xff"])
    def test_meta_that_is_none(self, root: Path, text: bytes) -> None:
        make()
        (root / "mine" / "meta.json").write_bytes(text)
        with pytest.raises(DataError, match=r"meta\.json is damaged"):
            cache.open_cache("mine")


class TestBuilding:
    def test_leaves_nothing_behind_when_it_fails(self, root: Path) -> None:
        with pytest.raises(KeyboardInterrupt), cache.lock("mine"), cache.building("mine") as folder:
            (folder / "x_train.npy").write_bytes(b"half")
            raise KeyboardInterrupt
        assert [path.name for path in root.iterdir()] == [".mine.lock"]

    def test_keeps_the_old_cache_when_it_fails(self) -> None:
        written = make()
        with pytest.raises(KeyboardInterrupt), cache.building("mine"):
            raise KeyboardInterrupt
        assert cache.open_cache("mine").fingerprint == written.fingerprint

    def test_replaces_a_cache(self, root: Path) -> None:
        make()
        (root / "mine" / "x_train.npy").write_bytes(b"damaged")
        make()
        assert SAMPLE.same(cache.open_cache("mine"))
        assert sorted(path.name for path in root.iterdir()) == [".mine.lock", "mine"]

    def test_clears_what_a_killed_process_left(self, root: Path) -> None:
        for name in (".mine.tmp", ".mine.old"):
            (root / name).mkdir(parents=True)
            (root / name / "x_train.npy").write_bytes(b"half")
        make()
        assert SAMPLE.same(cache.open_cache("mine"))
        assert sorted(path.name for path in root.iterdir()) == [".mine.lock", "mine"]

    def test_leaves_other_folders_alone(self, root: Path) -> None:
        (root / "mine").mkdir(parents=True)
        (root / "mine" / "thesis.tex").write_text("years of work")
        with pytest.raises(DataError, match="is there already and is not a data set of fedacd"):
            make()
        assert (root / "mine" / "thesis.tex").read_text() == "years of work"


def test_lock_keeps_others_out() -> None:
    with cache.lock("mine"):
        with cache.lock("other"):
            pass
        with pytest.raises(DataError, match="another process is making the data set 'mine'"), cache.lock("mine"):
            pass
    with cache.lock("mine"):
        pass


def test_names(root: Path) -> None:
    assert cache.names() == []
    make("b")
    make("a")
    (root / "downloads").mkdir()
    shutil.copytree(root / "a", root / "c")
    (root / "c" / "meta.json").unlink()
    assert cache.names() == ["a", "b"]
