"""Archives from the network: resumed where they were cut, and verified."""

import hashlib
import http.client
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError, URLError

from fedacd.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and of how much (None: not known)."""

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # in a row that bring nothing new
PAUSE = 1.0  # seconds before the second attempt; each further pause is twice as long
_BLOCK = 1 << 18


class _CutError(Exception):
    """The transfer ended before the file did; another attempt may bring more."""


class _UnreachableError(_CutError):
    """There was no connection at all."""


def is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def fetch(url: str, path: Path, progress: Progress) -> None:
    """Bring `url` to the file `path`, going on from what is there of it."""
    first = longest = _length(path)
    failures = 0
    while True:
        try:
            return _receive(url, path, progress)
        except _CutError as cut:
            reason, unreachable = str(cut), isinstance(cut, _UnreachableError)
        length = _length(path)
        failures = 1 if length > longest else failures + 1
        longest = max(longest, length)
        if unreachable and longest == first:
            raise DataError(f"cannot reach {url}: {reason}.")
        if failures == ATTEMPTS:
            raise DataError(
                f"{url}: {reason}, {ATTEMPTS} times in a row; {length} bytes are here, "
                "and the same command goes on from there."
            )
        time.sleep(PAUSE * 2 ** (failures - 1))


def _receive(url: str, path: Path, progress: Progress) -> None:
    """One attempt: append to what is there if the server can, otherwise start over."""
    have = _length(path)
    response = _connect(url, path, have)
    if response is None:
        return
    with response:
        done = have if response.status == 206 else 0
        if done and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            path.unlink()
            raise _CutError("the server sent another part than the one asked for")
        left = response.headers.get("Content-Length", "")
        total = done + int(left) if left.isdigit() else None
        progress("download", done, total)
        with path.open("ab" if done else "wb") as file:
            while block := _read(response):
                file.write(block)
                done += len(block)
                progress("download", done, total)
        if total is not None and done < total:
            raise _CutError(f"the connection closed after {done} of {total} bytes")


def _connect(url: str, path: Path, have: int) -> http.client.HTTPResponse | None:
    """The server's answer to a request for what is missing; None if nothing is."""
    headers = {"User-Agent": "fedacd"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        return response
    except HTTPError as error:
        with error:
            _refused(error, url, path, have)
            return None
    except URLError as error:
        raise _UnreachableError(str(error.reason)) from None
    except (ValueError, http.client.InvalidURL) as error:
        raise DataError(f"{url} is not an address: {error}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(str(error) or type(error).__name__) from None


def _read(response: http.client.HTTPResponse) -> bytes:
    # An OSError of the network is told from one of the disk by where it arises.
    try:
        return response.read1(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(str(error) or type(error).__name__) from None


def _refused(error: HTTPError, url: str, path: Path, have: int) -> None:
    """Return if the refusal means that the file is complete; otherwise raise."""
    if error.code == 416 and have:
        total = re.search(r"/(\d+)$", error.headers.get("Content-Range", ""))
        if total is None or int(total[1]) == have:
            return
        path.unlink()
        raise _CutError(f"{have} bytes were there of a file of {total[1]}")
    if error.code == 429 or error.code >= 500:
        raise _CutError(f"HTTP {error.code} {error.reason}")
    raise DataError(f"{url}: the server answers HTTP {error.code} {error.reason}.")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
