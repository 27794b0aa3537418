"""The command line of the bench: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

from fedacd.cli_exits import terminable


def bench(
    workload: Annotated[
        str | None,
        typer.Option(help="Of federation, paper, growth, with commas. Default: federation, on a GPU paper too."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Some contestants only, such as plain,engine-fp32,pfl.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Rounds to time in a turn. Default: 2, on a GPU 10 (growth: 8, 300); a plain loop does at most 3."
        ),
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Turns of each. Default: 3; 4 for growth on a GPU.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto: cuda where there is one.")] = "auto",
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all numbers to a file.")] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the time of every GPU kernel of the engine to a file.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: see that it works.")] = False,
) -> None:
    """Time this engine against a plain PyTorch loop and, where they are installed, pfl and Flower."""
    from fedacd import bench
    from fedacd.bench.show import show
    from fedacd.display import console

    for path in (json, profile):
        if path:
            bench.check_file(path)
    with terminable():
        report = bench.run(
            workloads=_items(workload),
            rounds=rounds,
            repeats=repeats,
            device=device,
            only=_items(only),
            quick=quick,
            profile=profile,
            say=lambda line: console.print(line, markup=False),
        )
    if json:
        bench.write_json(report, json)
    show(report)
    if report.failed:
        raise typer.Exit(1)


def _items(text: str | None) -> list[str] | None:
    return None if text is None else [item.strip() for item in text.split(",")]
