"""Every test has a folder of data sets of its own; some have a web site."""

import dataclasses
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedacd.data import NAMED, Named, download

REAL = os.environ.get("FEDACD_DATA")
Register = Callable[..., Named]


def visible(folder: Path) -> list[str]:
    """What lies in a folder, apart from locks."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $FEDACD_DATA, and downloads that do not wait."""
    folder = tmp_path / "root"
    monkeypatch.setenv("FEDACD_DATA", str(folder))
    monkeypatch.setattr(download, "PAUSE", 0.0)
    return folder


@pytest.fixture
def real_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The $FEDACD_DATA that the tests were started with."""
    if not REAL:
        pytest.skip("FEDACD_DATA is not set")
    monkeypatch.setenv("FEDACD_DATA", REAL)
    return Path(REAL)


class Site:
    """A web server whose answers can be cut short."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        """(file, Range header) of every request"""
        self.limits: Iterator[int | None] = iter(())
        """Bytes after which each answer is cut off in turn; None or the end: never"""
        self.ranges = True
        self.reset = False
        """Cut with a reset instead of a plain close"""
        self.headers: dict[str, str] = {}
        """Sent in place of the true ones with a part of a file"""
        self.status: Iterator[int] = iter(())
        """Errors to answer with, first of all"""


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        site, name, wanted = self.site, self.path.lstrip("/"), self.headers["Range"]
        site.asked.append((name, wanted))
        if status := next(site.status, 404 if name not in site.files else 0):
            self.send_error(status)
            return
        data = site.files[name]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and site.ranges else 0
        if start and start >= len(data):
            self._head(416, {"Content-Range": f"bytes */{len(data)}"})
            return
        headers = {"Content-Length": str(len(data) - start)}
        if start:
            headers |= {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} | site.headers
        self._head(206 if start else 200, headers)
        limit = next(site.limits, None)
        self.wfile.write(data[start:][:limit])
        if limit is not None and site.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.site = Site(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Handler.site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Make these files the official ones of a known data set; further fields are replaced by name."""

    def change(name: str, files: Mapping[str, bytes], **fields: Any) -> Named:
        known = NAMED[name]
        official = tuple(
            dataclasses.replace(file, md5=hashlib.md5(files[file.name]).hexdigest()) for file in known.files
        )
        changed = dataclasses.replace(known, files=official, **fields)
        monkeypatch.setitem(NAMED, name, changed)
        return changed

    return change
