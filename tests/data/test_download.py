"""One file over a connection that does what it likes."""

import errno
import hashlib
import itertools
import os
import socket
import time
from pathlib import Path

import pytest

from fedacd.data import download
from fedacd.errors import DataError

from .conftest import Site

BODY = os.urandom(300_000)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def fetch(site: Site, part: Path) -> list[tuple[str, int, int | None]]:
    """Fetch the file 'file' and return what the progress function was told."""
    told: list[tuple[str, int, int | None]] = []
    download.fetch(f"{site.url}file", part, lambda *seen: told.append(seen))
    return told


def test_whole(site: Site, part: Path) -> None:
    site.files["file"] = BODY
    told = fetch(site, part)
    assert part.read_bytes() == BODY
    assert site.asked == [("file", None)]
    assert told[0] == ("download", 0, len(BODY))
    assert told[-1] == ("download", len(BODY), len(BODY))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_is_resumed_where_it_was(site: Site, part: Path, reset: bool) -> None:
    site.files["file"], site.limits, site.reset = BODY, iter([100_000, 50_000]), reset
    fetch(site, part)
    assert part.read_bytes() == BODY
    assert len(site.asked) == 3
    assert site.asked[0] == ("file", None)
    if not reset:  # a reset may take bytes with it that were on their way
        assert site.asked[1:] == [("file", "bytes=100000-"), ("file", "bytes=150000-")]


def test_goes_on_as_long_as_something_comes(site: Site, part: Path) -> None:
    site.files["file"], site.limits = BODY, itertools.repeat(10_000)
    fetch(site, part)
    assert part.read_bytes() == BODY
    assert len(site.asked) == 30


def test_a_server_that_ignores_ranges_starts_over(site: Site, part: Path) -> None:
    site.files["file"], site.limits, site.ranges = BODY, iter([100_000]), False
    fetch(site, part)
    assert site.asked == [("file", None), ("file", "bytes=100000-")]
    assert part.read_bytes() == BODY


def test_a_server_that_sends_another_part_is_asked_for_everything(site: Site, part: Path) -> None:
    site.files["file"], site.limits = BODY, iter([100_000])
    site.headers = {"Content-Range": f"bytes 5-{len(BODY) - 1}/{len(BODY)}"}
    fetch(site, part)
    assert site.asked == [("file", None), ("file", "bytes=100000-"), ("file", None)]
    assert part.read_bytes() == BODY


def test_what_is_there_already_is_not_asked_for_again(site: Site, part: Path) -> None:
    site.files["file"] = BODY
    part.write_bytes(BODY[:12_345])
    told = fetch(site, part)
    assert site.asked == [("file", "bytes=12345-")]
    assert told[0] == ("download", 12_345, len(BODY))
    assert part.read_bytes() == BODY


def test_a_whole_file_stays(site: Site, part: Path) -> None:
    site.files["file"] = BODY
    part.write_bytes(BODY)
    fetch(site, part)
    assert site.asked == [("file", f"bytes={len(BODY)}-")]
    assert part.read_bytes() == BODY


def test_too_much_is_thrown_away(site: Site, part: Path) -> None:
    site.files["file"] = BODY
    part.write_bytes(BODY + b"more")
    fetch(site, part)
    assert site.asked[-1] == ("file", None)
    assert part.read_bytes() == BODY


def test_cut_for_ever(site: Site, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(download, "PAUSE", 0.25)
    monkeypatch.setattr(time, "sleep", pauses.append)
    site.files["file"], site.limits = BODY, itertools.chain([100_000], itertools.repeat(0))
    with pytest.raises(DataError, match=r"5 times in a row; 100000 bytes are here, and the same command goes on"):
        fetch(site, part)
    assert part.read_bytes() == BODY[:100_000]
    assert pauses == [0.25, 0.5, 1.0, 2.0]


def test_the_same_half_again_and_again_is_no_progress(site: Site, part: Path) -> None:
    site.files["file"], site.limits, site.ranges = BODY, itertools.repeat(100_000), False
    with pytest.raises(DataError, match="100000 of 300000 bytes, 5 times in a row"):
        fetch(site, part)
    assert len(site.asked) == 5


def test_an_overloaded_server_is_asked_again(site: Site, part: Path) -> None:
    site.files["file"], site.status = BODY, iter([503, 429])
    fetch(site, part)
    assert part.read_bytes() == BODY
    assert len(site.asked) == 3


def test_not_found(site: Site, part: Path) -> None:
    with pytest.raises(DataError, match=r"/file: the server answers HTTP 404 Not Found\.$"):
        fetch(site, part)
    assert len(site.asked) == 1
    assert not part.exists()


def test_nobody_there(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(DataError, match=r"cannot reach http://127.0.0.1:\d+/file: .*refused"):
            download.fetch(f"http://127.0.0.1:{taken.getsockname()[1]}/file", part, lambda *_: None)


@pytest.mark.parametrize("url", ["http://", "http://[", "http://a b/", "http://host:port/"])
def test_no_address(part: Path, url: str) -> None:
    with pytest.raises(DataError, match=r"is not an address|cannot reach"):
        download.fetch(url, part, lambda *_: None)


def test_silence_is_a_cut(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(DataError, match="timed out, 5 times in a row; 0 bytes are here"):
            download.fetch(url, part, lambda *_: None)


def test_a_full_disk_is_not_taken_for_a_cut(site: Site, part: Path) -> None:
    site.files["file"] = BODY

    def full(label: str, done: int, total: int | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        download.fetch(f"{site.url}file", part, full)
    assert len(site.asked) == 1


def test_md5(part: Path) -> None:
    part.write_bytes(BODY)
    assert download.md5(part) == hashlib.md5(BODY).hexdigest()
