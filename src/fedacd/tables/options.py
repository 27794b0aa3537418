"""What a user writes after the options of `fedacd table`, checked."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedacd.config import Config
from fedacd.errors import ConfigError
from fedacd.tables.declare import ROUNDS
from fedacd.toml import parse_value

MOST_SEEDS = 1000


def items(name: str, text: str | None) -> list[str] | None:
    """A comma list."""
    if text is None:
        return None
    found = [item.strip() for item in text.split(",")]
    if not all(found):
        raise ConfigError(f"{name} = {text!r}: must be a list such as a,b.")
    return found


def numbers(name: str, text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(item) for item in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} = {text!r}: must be a list of numbers such as 0.3,0.1.") from None


def seeds(text: str) -> list[int]:
    """3 -> 0, 1, 2; a list is taken as it is, and a comma makes a list: '4,'."""
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    is_list = "," in text
    if not all(part.isdecimal() for part in parts) or not (is_list or 1 <= int(parts[0]) <= MOST_SEEDS):
        raise ConfigError(
            f"seeds = {text!r}: must be how many, from 1 to {MOST_SEEDS}, or a list such as 0,1,2 (one seed: '0,')."
        )
    found = [int(part) for part in parts] if is_list else list(range(int(parts[0])))
    if len(set(found)) < len(found):
        raise ConfigError(f"seeds = {text!r}: a seed is named twice.")
    setting("run.seed", max(found))
    return found


def setting(key: str, value: Any) -> Any:
    """A setting's value, refused as everywhere where it is out of range."""
    return Config.build({key: value}).flat()[key]


def rounds(text: str | None) -> int:
    return ROUNDS if text is None else int(setting("train.rounds", parse_value(text)))


def device(text: str) -> str:
    """As `fedacd run` takes it; whether it is here matters to training only."""
    kind, _, number = text.partition(":")
    if text not in ("cpu", "cuda", "auto") and not (kind == "cuda" and number.isdigit()):
        raise ConfigError(f"run.device = {text!r}: must be cpu, cuda, cuda:N or auto.")
    return text


def check_files(files: Mapping[str, Path | None], beside: Mapping[str, Path] | None = None) -> None:
    """Refuse a file that cannot be written, before hours of work go into it, and one that is named twice, here or among
    those that are written `beside` them."""
    for name, path in files.items():
        if path and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
            raise ConfigError(f"{name} = {str(path)!r}: must be a file in a folder that exists and can be written to.")
    named = {path.resolve(): name for name, path in (beside or {}).items()}
    for name, path in files.items():
        if path and (other := named.setdefault(path.resolve(), name)) != name:
            raise ConfigError(f"{name} = {str(path)!r}: is the file of --{other} as well; give each its own.")
