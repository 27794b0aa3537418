"""Settings as text: TOML files, and values on the command line."""

import json
import tomllib
from pathlib import Path
from typing import Any

from fedacd.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as `section.key` -> value."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        inside = path / "config.toml"
        hint = f" Give {inside}." if path.is_dir() and inside.exists() else ""
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}.{hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} is not valid TOML: {error}.") from None
    flat: dict[str, Any] = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: '{section}' stands outside a section: write it as section.key, such as train.lr."
            )
        flat |= {f"{section}.{name}": value for name, value in table.items()}
    return flat


def parse_value(text: str) -> Any:
    """A value from the command line: TOML where it is TOML, a plain text otherwise."""
    try:
        found = tomllib.loads(f"value = {text}")
        return found["value"] if len(found) == 1 else text
    except ValueError:  # not TOML, or a number of too many digits
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            return float(text)
        except ValueError:
            return text


def toml_value(value: Any) -> str:
    """JSON is TOML for the values that occur here, but for surrogate pairs and the DEL character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
