"""The commands `table`, `merge` and `summaries`: parse, call, print."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedacd.tables.cells import Filled
    from fedacd.tables.look import Look
    from fedacd.tables.wanted import Want

FileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the table there as well.")
]


def table(
    number: Annotated[str, typer.Argument(metavar="N", help="1 to 9, as in the paper.")],
    plan: Annotated[bool, typer.Option("--plan", help="Count the runs and estimate the time; train nothing.")] = False,
    dataset: Annotated[str | None, typer.Option(metavar="A,B", help="Columns of these data sets only.")] = None,
    method: Annotated[str | None, typer.Option(metavar="A,B", help="Rows of these methods only.")] = None,
    beta: Annotated[str | None, typer.Option(metavar="X,Y", help="Columns of these betas only.")] = None,
    seeds: Annotated[str, typer.Option(metavar="N", help="How many, or a list: 3 and 0,1,2 are the same.")] = "3",
    rounds: Annotated[str | None, typer.Option(metavar="R", help="Default: 200, as in the paper.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or bf16. Default: fp32; with --from, that of the runs.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto: cuda where there is one.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="The folder in which runs have theirs. Default: runs.", show_default=False)
    ] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="PATH", help="Show a folder's runs, or summaries; train nothing. May be repeated."
        ),
    ] = None,
    shard: Annotated[str | None, typer.Option(metavar="K/M", help="Train this part of the runs only.")] = None,
    markdown: FileOption = None,
    latex: FileOption = None,
    csv: FileOption = None,
    json: FileOption = None,
) -> None:
    """Make a table of the paper: train the runs that are missing, show ours beside the paper's."""
    from fedacd.cli_exits import interruptible
    from fedacd.errors import ConfigError
    from fedacd.tables import declare, look, options, wanted
    from fedacd.tables.train import train_missing

    files = {"markdown": markdown, "latex": latex, "csv": csv, "json": json}
    for name, path in files.items():
        if path and plan:
            raise ConfigError(f"{name} = {str(path)!r}: is for the table, which --plan does not make. Leave one out.")
    options.check_files(files)
    cut = declare.find(number).cut(
        datasets=options.items("dataset", dataset),
        methods=options.items("method", method),
        betas=options.numbers("beta", beta),
    )
    numbers, length = options.seeds(seeds), options.rounds(rounds)
    options.setting("run.precision", "fp32" if precision is None else precision)
    options.device(device)

    def at(precision: str) -> wanted.Wanted:
        return wanted.Wanted(cut, seeds=numbers, rounds=length, precision=precision)

    everything = at(precision or "fp32")
    part = wanted.shard(everything.runs, shard)
    for name, value in {"shard": shard, "out": out and str(out)}.items():
        if value is not None and from_:
            raise ConfigError(f"{name} = {value!r}: goes with training, not with --from.")
    out = out or Path("runs")
    if from_:
        seen, hint = look.read_from(at, from_, precision), ""
        part = seen.wanted.runs
    else:
        seen = look.look_in(everything, out)
        hint = f" in {out}; one that is trained gives it, or --from a folder of others' runs or summaries"
    if plan or not from_:
        _print(_plan(seen, part, device, shard, hint))
    told = _note(seen.notes)
    failed: dict[str, Exception] = {}
    if not plan and not from_ and seen.matched.missing(part):
        with interruptible():
            failed = train_missing(part, seen.matched, out, device)
        seen = look.look_in(everything, out)
        _note(note for note in seen.notes if note not in told)
    for name, error in failed.items():
        print(f"error: {name}: {error}", file=sys.stderr)
    if not plan and part and (seen.matched.done or not failed):
        _show(seen, files)
    if failed:
        raise typer.Exit(1)


def _plan(seen: "Look", part: Sequence["Want"], device: str, shard: str | None, hint: str) -> str:
    """Needed, done, partly done, missing, and how long it takes; `hint` is where to look for what tells."""
    from fedacd.display import counted, in_words
    from fedacd.tables.estimate import device_kind, estimate

    table, matched = seen.wanted.table, seen.matched
    done = sum(want.key in matched.done for want in part)
    partly = sum(want.key in matched.partly for want in part)
    missing = len(part) - done - partly
    everything = counted(len(seen.wanted.runs), "run")
    needed = f"{len(part)} of {everything} needed (shard {shard})" if shard else f"{everything} needed"
    what = f"table {table.number}: {needed}, {done} done, {partly} partly done, {missing} missing"
    if done == len(part):
        return what
    kind, where = device_kind(device), ""
    guess = estimate(part, matched, seen.found, kind)
    if guess.device is None and device == "auto":
        guess = estimate(part, matched, seen.found, None)
        where = f" (none is recorded on {kind})"
    if guess.device is None:
        return f"{what}; no estimate of time: no run like these is recorded on {kind}{hint}"
    rest = f", and {counted(guess.unknown, 'run')} like none that is recorded" if guess.unknown else ""
    return f"{what}; about {in_words(guess.seconds)} on {guess.device}{where}{rest}"


def _show(seen: "Look", files: Mapping[str, Path | None]) -> None:
    from fedacd.cli_exits import command_line
    from fedacd.display import console, print_table
    from fedacd.files import write_atomically
    from fedacd.tables import cells, render

    filled: Filled = cells.fill(seen.wanted, seen.matched, command_line())
    console.print()
    _print(filled.title)
    notes = list(filled.notes)
    if console.is_terminal:
        blocks, empty = render.for_terminal(filled, console.width)
        if empty:
            notes.append(f"Not shown, as there is no run of ours: {', '.join(empty)}. Files have all columns.")
    else:
        blocks = [render.grid(filled)]
    for block in blocks:
        print_table(block)
        if len(blocks) > 1:
            console.print()
    for line in (render.legend(filled), *notes):
        console.print(line, style="dim", markup=False)
    for name, path in files.items():
        if path:
            write_atomically(path, render.FORMATS[name](filled).encode())


def merge(
    into: Annotated[Path, typer.Argument(metavar="DEST", help="The folder in which runs have theirs.")],
    sources: Annotated[list[Path], typer.Argument(metavar="SRC...", help="Such folders, or single runs.")],
) -> None:
    """Join the run folders of several machines; conflicting records are refused."""
    from fedacd.display import counted
    from fedacd.tables.merge import merge as join

    merged = join(into, sources)
    _note(merged.notes)
    new, longer, same = len(merged.new), len(merged.longer), len(merged.same)
    _print(f"{into}: {counted(new, 'new run')}, {longer} replaced by a longer record, {same} already there")


def summaries(
    into: Annotated[Path, typer.Argument(metavar="DEST", help="The folder for the files, such as results.")],
    sources: Annotated[list[Path], typer.Argument(metavar="SRC...", help="Folders of runs, or single runs.")],
) -> None:
    """Write a small summary of every finished run, from which `fedacd table --from` shows tables."""
    from fedacd.tables.summaries import write_summaries

    written, notes = write_summaries(sources, into)
    _note(notes)
    number = "1 summary" if len(written) == 1 else f"{len(written)} summaries"
    _print(f"{into}: {number}, {sum(path.stat().st_size for path in written) / 1000:.0f} kB")


def _note(notes: Iterable[str]) -> list[str]:
    told = list(notes)
    for note in told:
        _print(f"note: {note}")
    return told


def _print(text: str) -> None:
    from fedacd.display import console

    console.print(text, markup=False)
