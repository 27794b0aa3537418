"""Files that survive a crash, and messages in place of tracebacks: atomic writing, guarded reading."""

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedacd.errors import RecordError

FORMAT = 1


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into a message."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(
            f"cannot write {path}: {reason}. What was saved before is intact; make room or choose another folder, "
            "then run the same command again."
        ) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what replaces a file as a whole: after a crash at any moment it is the old one or the new one."""
    with writing(path):
        if path.is_dir():  # such as '.', which has no name to add to
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():  # a device or a pipe takes what it is given
            yield path
            return
        partial = path.with_name(path.name + ".partial")
        try:
            yield partial
            sync(partial)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        sync(path.parent)


def require_folder(path: Path) -> None:
    """Make a folder where there is none; one that cannot be written to is refused before work goes into it."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by these bytes."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Replace a file of tensors. The same content gives the same bytes: all metadata are under one key."""
    plain = _plain(tensors)
    about = {"format": FORMAT, "checksum": _checksum(plain), **about}
    metadata = {"fedacd": json.dumps(about, sort_keys=True)}
    with replacing(path) as partial:
        try:
            partial.touch()
            mode = partial.stat().st_mode  # as that of any new file: safetensors makes its own for the owner alone
            safetensors.torch.save_file(plain, partial, metadata)
            partial.chmod(mode)
        except safetensors.SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise (OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))) from None


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own, on the CPU and contiguous, as safetensors wants them; no copy where it is so."""
    found, known = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage()
        is_part = memory.nbytes() > plain.nbytes or memory.data_ptr() in known
        found[name] = plain.clone() if is_part else plain
        known.add(memory.data_ptr())
    return found


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_safetensors(path: Path, holds: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a file that holds a 'checkpoint' or a 'model'; anything else is a RecordError."""
    about = read_about(path, holds)
    with _reading(path), safetensors.safe_open(path, "pt") as file:
        # Copied into torch's own, aligned memory: where a tensor lies decides how sums over it are grouped.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if _checksum(tensors) != about["checksum"]:
            raise ValueError("its checksum does not fit")
        return tensors, about


def read_about(path: Path, holds: str) -> dict[str, Any]:
    """The metadata of such a file."""
    with _reading(path), safetensors.safe_open(path, "pt") as file:
        about: dict[str, Any] = json.loads((file.metadata() or {}).get("fedacd", "{}"))
    if not isinstance(about, dict) or about.get("holds") != holds or about.get("format") != FORMAT:
        raise RecordError(f"{path} is not a {holds} of format {FORMAT}.")
    return about


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn damage into a message."""
    try:
        path.open("rb").close()  # safetensors calls every error by the same name
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}.") from None
    try:
        yield
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise RecordError(
            f"{path} is damaged or cut short ({error}). Restore a copy of it, or remove it and run the command again."
        ) from None


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {path}: {error}.") from None
