"""The scheme 'custom': a user's own index lists."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedacd.config import Partition
from fedacd.errors import ConfigError
from fedacd.partition import check_lists, load_lists, split

Ints = NDArray[np.int64]


def same(a: list[Ints], b: list[Ints]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


class TestCustom:
    labels = np.arange(10) % 2

    def split(self, path: Path, clients: int = 2) -> list[Ints]:
        return split(self.labels, 2, Partition(scheme="custom", clients=clients, min_size=2, file=str(path)), 0)

    def test_json_and_npz(self, tmp_path: Path) -> None:
        expected = [np.array([0, 9]), np.array([2, 4, 5])]
        (tmp_path / "a.json").write_text("[[9, 0], [4, 5, 2]]")
        np.savez(tmp_path / "a.npz", z=np.array([9, 0]), a=np.array([4, 5, 2], np.uint8))
        assert same(self.split(tmp_path / "a.json"), expected)
        assert same(self.split(tmp_path / "a.npz"), expected)  # in file order: z before a
        assert [part.tolist() for part in load_lists(tmp_path / "a.json")] == [[9, 0], [4, 5, 2]]

    def test_needs_a_file(self) -> None:
        with pytest.raises(ConfigError, match=r"partition\.file"):
            split(self.labels, 2, Partition(scheme="custom"), 0)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[[0, 1], [2, 10]]", r"list 1: 10 is not a sample; allowed are 0 to 9"),
            ("[[0, 1], [2, -1]]", r"list 1: -1 is not a sample"),
            ("[[0, 1], [2, 1]]", r"list 1: sample 1 is also in list 0"),
            ("[[0, 0, 1], [2, 3]]", r"list 0: sample 0 is in it twice"),
            ("[[0, 1]]", r"lists for 1 clients, but partition.clients = 2"),
            ("[[0, 1], []]", r"list 1 has 0 samples, fewer than partition.min_size = 2"),
            ("[[0, 1], [2]]", r"list 1 has 1 samples, fewer than partition.min_size = 2"),
            ("[[0, 1], [2, 3.5]]", r"list 1: must be a flat list of whole numbers"),
            ("[[0, 1], [2, [3]]]", r"list 1: must be a flat list of whole numbers"),
            ("[[0, 1], [true, false]]", r"list 1: must be a flat list of whole numbers"),
            ("[[0, 1], [2, 18446744073709551615]]", r"list 1: must be a flat list of whole numbers"),
            ("[[0, 1], [2, 1e99]]", r"list 1: must be a flat list of whole numbers"),
            ('{"0": [0, 1]}', r"not a valid .json file of index lists: the file must hold a list"),
            ("[[0, 1], 2]", r"not a valid .json file of index lists: the file must hold a list"),
            ("[[0, 1", r"not a valid .json file of index lists"),
        ],
    )
    def test_a_bad_list_is_named_with_its_file(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "lists.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(f"partition.file = '{path}': ") + message):
            self.split(path)

    def test_unreadable_files(self, tmp_path: Path) -> None:
        whole = tmp_path / "whole.npz"
        np.savez(whole, a=np.arange(2), b=np.arange(2, 4))
        for name, content in {
            "text.npz": b"[[0, 1]]",
            "empty.npz": b"",
            "cut.npz": whole.read_bytes()[:100],
            "bytes.json": b"\xff\xfe",
            "deep.json": b"[" * 200_000,
        }.items():
            (tmp_path / name).write_bytes(content)
        np.savez(tmp_path / "object.npz", np.array([{}], dtype=object), allow_pickle=True)
        for name in ("text.npz", "empty.npz", "cut.npz", "bytes.json", "deep.json", "object.npz"):
            with pytest.raises(ConfigError, match=rf"{name}': not a valid"):
                load_lists(tmp_path / name)
        with pytest.raises(ConfigError, match=r"absent.json': cannot be read: No such file"):
            load_lists(tmp_path / "absent.json")
        with pytest.raises(ConfigError, match=r"lists.txt': must end in .json or .npz"):
            load_lists(tmp_path / "lists.txt")

    def test_lists_from_python(self) -> None:
        chosen = Partition(clients=2, min_size=1)
        assert same(check_lists([[3, 1], np.array([0], np.int32)], 4, chosen), [np.array([1, 3]), np.array([0])])
        with pytest.raises(ConfigError, match=r"^index list 1: sample 3 is also in list 0"):
            check_lists([[3, 1], [3]], 4, chosen)
        with pytest.raises(ConfigError, match=r"^index lists for 1 clients, but partition.clients = 2"):
            check_lists([[3, 1]], 4, chosen)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.lists(st.integers(-2, 30), max_size=8), min_size=1, max_size=4))
    def test_accepted_exactly_when_it_fits(self, lists: list[list[int]]) -> None:
        flat = [index for part in lists for index in part]
        fits = all(lists) and len(set(flat)) == len(flat) and all(0 <= index < 20 for index in flat)
        chosen = Partition(clients=len(lists), min_size=1)
        if fits:
            assert [part.tolist() for part in check_lists(lists, 20, chosen)] == [sorted(part) for part in lists]
        else:
            with pytest.raises(ConfigError):
                check_lists(lists, 20, chosen)
