"""get: what it leaves in the folder of data sets, and what it never does."""

import errno
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedacd.data import Dataset, cache, check, get, import_data, load
from fedacd.errors import DataError

from . import archives
from .archives import Sample
from .conftest import Register, Site, visible

SAMPLE = Sample(20, 6, 32, 3, num_classes=10)
TAR = archives.cifar10(SAMPLE)
FILE = "cifar-10-python.tar.gz"


@pytest.fixture
def cifar10(site: Site, register: Register) -> Site:
    """A site with a small CIFAR-10 at the official address."""
    register("cifar10", {FILE: TAR}, address=site.url)
    site.files[FILE] = TAR
    return site


class TestGetByName:
    def test_download(self, cifar10: Site, root: Path) -> None:
        told: list[Any] = []
        dataset = get("cifar10", progress=lambda *seen: told.append(seen))
        assert SAMPLE.same(dataset)
        assert dataset.name == "cifar10"
        assert dataset.class_names == tuple(SAMPLE.class_names)
        assert dataset.defaults["data.crop"] == 4
        assert [key for key, _ in itertools.groupby(label for label, _, _ in told)] == ["download", "convert"]
        assert cache.read_meta("cifar10")["source"] == cifar10.url
        assert visible(root) == ["cifar10", "downloads"]
        assert visible(root / "downloads") == []  # nothing is kept twice

    def test_is_the_same_from_the_cache_and_from_arrays(self, cifar10: Site) -> None:
        direct = Dataset.from_arrays(SAMPLE.x_train, SAMPLE.y_train, SAMPLE.x_test, SAMPLE.y_test)
        assert get("cifar10").fingerprint == load("cifar10").fingerprint == direct.fingerprint

    def test_present_is_not_downloaded_again(self, cifar10: Site) -> None:
        get("cifar10")
        assert SAMPLE.same(get("cifar10"))
        assert len(cifar10.asked) == 1

    def test_an_npz_beside_is_present_too(self, cifar10: Site, root: Path) -> None:
        root.mkdir()
        (root / "cifar10.npz").write_bytes(SAMPLE.npz())
        assert SAMPLE.same(get("cifar10"))
        assert cifar10.asked == []

    def test_a_damaged_cache_is_made_anew(self, cifar10: Site, root: Path) -> None:
        get("cifar10")
        (root / "cifar10" / "x_train.npy").write_bytes(b"")
        assert SAMPLE.same(get("cifar10"))
        assert len(cifar10.asked) == 2

    def test_a_cut_is_resumed(self, cifar10: Site) -> None:
        cifar10.limits = iter([len(TAR) // 2])
        assert SAMPLE.same(get("cifar10"))
        assert cifar10.asked == [(FILE, None), (FILE, f"bytes={len(TAR) // 2}-")]

    def test_cut_for_ever_then_resumed_by_the_next_command(self, cifar10: Site, root: Path) -> None:
        cifar10.limits = itertools.chain([1000], itertools.repeat(0))
        with pytest.raises(DataError, match="1000 bytes are here"):
            get("cifar10")
        part = root / "downloads" / f"{FILE}.part"
        assert part.read_bytes() == TAR[:1000]
        cifar10.limits = iter(())
        cifar10.asked.clear()
        assert SAMPLE.same(get("cifar10"))
        assert cifar10.asked == [(FILE, "bytes=1000-")]
        assert not part.exists()

    def test_interrupted_then_resumed(self, cifar10: Site) -> None:
        def interrupt(label: str, done: int, total: int | None) -> None:
            if done:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            get("cifar10", progress=interrupt)
        assert SAMPLE.same(get("cifar10"))
        assert cifar10.asked[1][1] is not None

    def test_without_a_network_it_is_said_what_to_do_by_hand(self, register: Register, root: Path) -> None:
        register("cifar10", {FILE: TAR}, address="http://127.0.0.1:1/")
        with pytest.raises(DataError, match="cannot reach") as failed:
            get("cifar10")
        assert f"bring {FILE} here and give the path with --from" in str(failed.value)
        assert "x_train and x_test, uint8 [N, 32, 32, 3], and y_train and y_test, labels 0 to 9." in str(failed.value)
        path = root / "cifar10.npz"
        assert f"or put {path} there" in str(failed.value)
        path.write_bytes(SAMPLE.npz())
        assert SAMPLE.same(load("cifar10"))
        assert load("cifar10").defaults["data.crop"] == 4

    def test_a_whole_archive_from_before_needs_no_network(self, cifar10: Site, root: Path) -> None:
        (root / "downloads").mkdir(parents=True)
        (root / "downloads" / FILE).write_bytes(TAR)
        assert SAMPLE.same(get("cifar10"))
        assert cifar10.asked == []

    def test_wrong_checksum(self, cifar10: Site, root: Path, register: Register) -> None:
        cifar10.files[FILE] = TAR[:-1] + b"x"
        with pytest.raises(DataError, match=r"the md5 is [0-9a-f]{32}, must be [0-9a-f]{32}; the file was removed"):
            get("cifar10")
        assert visible(root / "downloads") == []
        assert not (root / "cifar10").exists()

    def test_not_found(self, cifar10: Site, root: Path) -> None:
        cifar10.files.clear()
        with pytest.raises(DataError, match="HTTP 404"):
            get("cifar10")
        assert visible(root) == ["downloads"]

    def test_unknown_name(self) -> None:
        with pytest.raises(DataError, match=r"unknown data set 'cifar'. Did you mean 'cifar10'\?"):
            get("cifar")

    def test_digits_need_nothing(self, root: Path) -> None:
        assert get("digits").name == "digits"
        assert not root.exists()

    def test_another_process_is_at_it(self, cifar10: Site) -> None:
        with cache.lock("cifar10"), pytest.raises(DataError, match="another process is making the data set 'cifar10'"):
            get("cifar10")
        assert cifar10.asked == []

    def test_a_folder_of_that_name_is_not_touched(self, cifar10: Site, root: Path) -> None:
        (root / "cifar10").mkdir(parents=True)
        (root / "cifar10" / "notes.txt").write_text("mine")
        with pytest.raises(DataError, match="is not a data set of fedacd"):
            get("cifar10")
        assert (root / "cifar10" / "notes.txt").read_text() == "mine"


class TestGetFromSource:
    def test_file_is_left_as_it_is(self, register: Register, tmp_path: Path, root: Path) -> None:
        register("cifar10", {FILE: TAR}, address="http://nowhere.invalid/")
        path = tmp_path / "another name.tgz"
        path.write_bytes(TAR)
        path.chmod(0o400)
        assert SAMPLE.same(get("cifar10", source=str(path)))
        assert path.read_bytes() == TAR
        assert visible(root) == ["cifar10"]
        assert cache.read_meta("cifar10")["source"] == str(path)

    def test_folder_with_the_file(self, register: Register, tmp_path: Path) -> None:
        register("cifar10", {FILE: TAR})
        (tmp_path / FILE).write_bytes(TAR)
        assert SAMPLE.same(get("cifar10", source=str(tmp_path)))

    def test_address(self, register: Register, site: Site, root: Path) -> None:
        register("cifar10", {FILE: TAR}, address="http://nowhere.invalid/")
        site.files["mirror/c10.tgz"] = TAR
        assert SAMPLE.same(get("cifar10", source=f"{site.url}mirror/c10.tgz"))
        assert visible(root / "downloads") == []

    def test_makes_the_cache_anew(self, cifar10: Site, register: Register, tmp_path: Path) -> None:
        get("cifar10")
        other = Sample(20, 6, 32, 3, num_classes=10, seed=1)
        path = tmp_path / FILE
        path.write_bytes(archives.cifar10(other))
        register("cifar10", {FILE: path.read_bytes()})
        assert other.same(get("cifar10", source=str(path)))

    def test_wrong_checksum_removes_nothing(self, register: Register, tmp_path: Path, root: Path) -> None:
        register("cifar10", {FILE: TAR})
        path = tmp_path / FILE
        path.write_bytes(b"something else")
        with pytest.raises(DataError, match=f"is not the official {FILE}: its md5 is [0-9a-f]+, must be [0-9a-f]+"):
            get("cifar10", source=str(path))
        assert path.read_bytes() == b"something else"
        assert visible(root) == []

    @pytest.mark.parametrize("source", ["~nobody-at-all/x", "x" * 5000])
    def test_impossible_path(self, source: str) -> None:
        with pytest.raises(DataError, match=r"there is no such user|cannot make the data set 'cifar10'.*too long"):
            get("cifar10", source=source)

    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=f"there is no file .*absent: must be {FILE} of 'cifar10'"):
            get("cifar10", source=str(tmp_path / "absent"))

    def test_fashion_mnist_is_a_folder(self, register: Register, tmp_path: Path, site: Site, root: Path) -> None:
        sample = Sample(20, 6, 28, 1, num_classes=10)
        files = archives.fashion_mnist(sample)
        register("fashion-mnist", files)
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            site.files[f"mirror/{name}"] = data
        assert sample.same(get("fashion-mnist", source=str(tmp_path)))
        shutil.rmtree(root / "fashion-mnist")
        assert sample.same(get("fashion-mnist", source=f"{site.url}mirror"))
        assert [name for name, _ in site.asked] == list(site.files)
        assert visible(root / "downloads") == []
        with pytest.raises(DataError, match=r"must be a folder with train-images-idx3-ubyte\.gz, "):
            get("fashion-mnist", source=str(tmp_path / "train-images-idx3-ubyte.gz"))


def test_every_official_archive(register: Register, site: Site) -> None:
    hundred, fashion = Sample(7, 5, 32, 3, num_classes=100), Sample(7, 5, 28, 1, num_classes=10)
    site.files = {
        FILE: TAR,
        "cifar-100-python.tar.gz": archives.cifar100(hundred),
        "tiny-imagenet-200.zip": archives.zipped(archives.tiny_imagenet()),
        **archives.fashion_mnist(fashion),
    }
    for name in ("cifar10", "cifar100", "fashion-mnist"):
        register(name, site.files, address=site.url)
    register("tiny-imagenet", site.files, address=site.url, num_classes=3)
    assert SAMPLE.same(get("cifar10"))
    assert hundred.same(get("cifar100"))
    assert fashion.same(get("fashion-mnist"))
    tiny = get("tiny-imagenet")
    assert tiny.x_train[:, 5, 5, 0].tolist() == [0, 1, 10, 11, 20, 21]
    assert tiny.fingerprint == check("tiny-imagenet").fingerprint
    assert tiny.defaults["model.name"] == "resnet18"


class TestNoRoom:
    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(*args: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(cache, "write", write)

    @pytest.mark.usefixtures("full")
    def test_get(self, cifar10: Site, root: Path) -> None:
        with pytest.raises(DataError, match=r"cannot make the data set 'cifar10' in .*: .*No space left on device\.$"):
            get("cifar10")
        assert visible(root) == ["downloads"]
        assert visible(root / "downloads") == [FILE]  # kept for the next try

    @pytest.mark.usefixtures("full")
    def test_import(self, tmp_path: Path, root: Path) -> None:
        (tmp_path / "mine.npz").write_bytes(SAMPLE.npz())
        with pytest.raises(DataError, match="No space left"):
            import_data(str(tmp_path / "mine.npz"))
        assert visible(root) == []

    def test_root_is_a_file(self, cifar10: Site, root: Path) -> None:
        root.write_text("")
        with pytest.raises(DataError, match="cannot make the data set 'cifar10'"):
            get("cifar10")


def test_a_defect_of_the_program_is_not_hidden(cifar10: Site, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Dataset, "from_arrays", broken)
    with pytest.raises(ZeroDivisionError):
        get("cifar10")
    assert visible(root) == ["downloads"]
