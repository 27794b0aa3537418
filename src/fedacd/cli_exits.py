"""How a command ends: a mistake is one message, Ctrl-C leaves the state saved."""

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator

import typer

from fedacd.display import ONE_OF_MANY
from fedacd.errors import FedacdError


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """A user's mistake is one message on stderr, never a traceback."""
    try:
        yield
    except FedacdError as error:
        if not ONE_OF_MANY:
            print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """The polite kill of a scheduler is as Ctrl-C: what was begun is ended in order."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, and the polite kill of a scheduler, end with the state saved and say how to go on."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt:
        if ONE_OF_MANY:
            raise typer.Exit(130) from None
        text = f"Interrupted; what was finished is saved. The same command goes on from there: {command_line()}"
        print(text, file=sys.stderr)
        raise typer.Exit(130) from None


def command_line() -> str:
    """What the user wrote, to be written again."""
    return shlex.join(["fedacd", *sys.argv[1:]])
