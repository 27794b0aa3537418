"""What a setting is: a field of a frozen dataclass that checks its own type and range."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from fedacd.errors import ConfigError, unknown


def setting(
    default: Any,
    doc: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] | None = None,
    items: type = float,
) -> Any:
    """A dataclass field with its one-line documentation and the values it may take; `items` are those of a list."""
    bounds = {"above": above, "at_least": at_least, "below": below, "at_most": at_most, "one_of": one_of}
    given = {key: value for key, value in bounds.items() if value is not None}
    return field(default=default, metadata={"doc": doc, "items": items} | given)


def allowed(spec: "dataclasses.Field[Any]", kinds: tuple[type, ...]) -> str:
    """What a field takes, in words: 'a number above 0', 'one of step, epoch'."""
    if "one_of" in spec.metadata:
        return "one of " + ", ".join(spec.metadata["one_of"])
    items = "texts" if spec.metadata.get("items") is str else "numbers"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: f"a list of {items}"}
    bounds = [f"{word} {spec.metadata[key]}" for key, word in _BOUND_WORDS.items() if key in spec.metadata]
    return " ".join([words.get(kinds[0], kinds[0].__name__), " and ".join(bounds)]).strip()


_BOUND_WORDS = {"above": "above", "at_least": "at least", "below": "below", "at_most": "at most"}


def kinds_of(owner: type, name: str) -> tuple[type, ...]:
    """The types a field admits, `None` left out: `float | None` -> (float,)."""
    hint = typing.get_type_hints(owner)[name]
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(part) or part for part in parts if part is not type(None))


def plain(value: Any) -> Any:
    """What Python programs pass for a plain value: a path for a text, a numpy number for a number."""
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _in_range(value: Any, meta: Mapping[str, Any]) -> bool:
    if "one_of" in meta:
        return value in meta["one_of"]
    if isinstance(value, list):
        items = str if meta.get("items") is str else int | float
        return all(isinstance(item, items) and _in_range(item, meta) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return (
        ("above" not in meta or value > meta["above"])
        and ("at_least" not in meta or value >= meta["at_least"])
        and ("below" not in meta or value < meta["below"])
        and ("at_most" not in meta or value <= meta["at_most"])
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of every group of settings: checks the type and the range of each field when it is made."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value, kinds = getattr(self, spec.name), kinds_of(type(self), spec.name)
            if value is None and spec.default is None:
                continue
            value = plain(value)
            if float in kinds and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            object.__setattr__(self, spec.name, value)
            right_type = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            if not right_type or not _in_range(value, spec.metadata):
                raise ConfigError(f"{self._key(spec.name)} = {value!r}: must be {allowed(spec, kinds)}.")

    @classmethod
    def _key(cls, name: str) -> str:
        """A setting as its user writes it."""
        return f"{cls.section}.{name}"

    @classmethod
    def build(cls, values: Mapping[str, Any]) -> Self:
        """Make one from plain values; an unknown key names the nearest known one."""
        names = [cls._key(spec.name) for spec in dataclasses.fields(cls)]
        title = getattr(cls, "title", None)  # a method's
        of = f" of {title}" if title else ""
        for key in values:
            if cls._key(key) not in names:
                how = f" To make '{key}' a setting, give it a type and the class @dataclass(frozen=True, kw_only=True)."
                meant = isinstance(vars(cls).get(key), int | float)
                raise ConfigError(unknown(f"setting{of}", cls._key(key), names) + how * meant)
        for spec in dataclasses.fields(cls):
            if spec.name not in values and spec.default is spec.default_factory is dataclasses.MISSING:
                what = allowed(spec, kinds_of(cls, spec.name))
                raise ConfigError(f"{cls._key(spec.name)} has no default: give {what}.")
        return cls(**values)
