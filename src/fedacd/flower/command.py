"""`fedacd flower ...` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from fedacd.cli_exits import reporting
from fedacd.flower.starter import init as write_project

flower_app = typer.Typer(help="The same methods at real sites, with Flower.", no_args_is_help=True)


@flower_app.callback()
def _group() -> None:
    """Keeps `init` a command of its own, though it is the only one."""


@flower_app.command()
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a project: settings, README with every command, scripts for keys and both ends, systemd units."""
    with reporting():
        write_project(folder)
    print(f"Written: {folder}. Its README.md has the next commands.")
