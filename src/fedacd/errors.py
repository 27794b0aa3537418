"""What can go wrong, by whose hand.

    FedacdError
    ├── ConfigError   a setting: unknown, of the wrong type, out of range
    ├── DataError     a data set: absent, damaged, inconsistent
    ├── ModelError    a model: does not fit the data, or cannot be trained federated
    ├── RecordError   a run folder: of another run, damaged, in use, not writable
    ├── UpdateError   a client's reply: not finite, wrong names or shapes
    └── WorkerError   a process of a run: it has died

Every message names the field, the value and what is allowed. The command line prints it without a traceback:
exit code 2 for the first four (the user can mend them), 1 for the last two (the run itself failed).
"""

import difflib
from collections.abc import Iterable


class FedacdError(Exception):
    """Base of every error that fedacd raises on purpose."""

    exit_code = 2


class ConfigError(FedacdError):
    """A setting is unknown, of the wrong type or out of range."""


class DataError(FedacdError):
    """A data set is absent, damaged or inconsistent."""


class ModelError(FedacdError):
    """A model does not fit the data or cannot be trained federated."""


class RecordError(FedacdError):
    """A run folder belongs to another run, is damaged, in use or not writable."""


class UpdateError(FedacdError):
    """A client's reply cannot be used."""

    exit_code = 1


class WorkerError(FedacdError):
    """A process that a run is spread over has died."""

    exit_code = 1


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that does not exist: the nearest one, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"unknown {what} '{name}'.{hint} Known: {', '.join(names)}."
