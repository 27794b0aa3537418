"""How a command ends: a mistake is one message, Ctrl-C leaves the state saved."""

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator

import typer

from fedacd.display import ONE_OF_MANY
from fedacd.environment import rank_and_size
from fedacd.errors import FedacdError, WorkerError


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """A user's mistake is one message on stderr, never a traceback."""
    try:
        yield
    except FedacdError as error:
        known_here_alone = isinstance(error, WorkerError) and error.__cause__ is not None
        if known_here_alone or not ONE_OF_MANY:
            print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """A scheduler's polite kill, and a terminal that is closed, are as Ctrl-C: what was begun is ended in order."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        if rank_and_size()[1] > 1:
            text = (
                "torchrun has ended this run, because of a signal or because another rank of it has died. What was "
                "finished is saved; the same command, by torchrun or without it, goes on from there."
            )
        print(text, file=sys.stderr)
        raise typer.Exit(130) from None


def command_line() -> str:
    """What the user wrote, to be written again."""
    return shlex.join(["fedacd", *sys.argv[1:]])
