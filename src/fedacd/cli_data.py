"""The command line's `fedacd data`."""

from typing import Annotated

import typer

from fedacd import data
from fedacd.cli_exits import interruptible, reporting
from fedacd.display import TransferProgress, console, plain_table, print_table

data_app = typer.Typer(help="Data sets: list, get, check, import.", no_args_is_help=True)


@data_app.command("list")
def data_list() -> None:
    """What there is, and what is here."""
    rows = [
        [
            entry.name,
            _number(entry.num_classes),
            entry.shape,
            f"{_number(entry.num_train)} / {_number(entry.num_test)}",
            f"{entry.download / 1e6:.0f} MB" if entry.download else "-",
            "here" if entry.present else "-",
            entry.what,
        ]
        for entry in data.listing()
    ]
    print_table(plain_table(["name", "classes", "size", "train / test", "download", "", "what"], rows))
    console.print(f"\nKept in {data.root()} (FEDACD_DATA changes that).", markup=False)


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, tiny-imagenet or fashion-mnist.")],
    source: Annotated[
        str | None, typer.Option("--from", help="The archive elsewhere: a path, or another address.")
    ] = None,
) -> None:
    """Download an official archive, verify it and convert it once."""
    with reporting(), TransferProgress() as progress, interruptible():
        dataset = data.get(name, source=source, progress=progress)
    console.print(f"{name}: {len(dataset.y_train):,} train and {len(dataset.y_test):,} test images are ready.")


@data_app.command("check")
def data_check(name: Annotated[str, typer.Argument(help="A name, an .npz file or a folder.")]) -> None:
    """Read a data set through and say what is in it."""
    with reporting():
        for line in data.check(name).lines():
            console.print(line, markup=False)


@data_app.command("import")
def data_import(
    source: Annotated[str, typer.Argument(help="An .npz file, or a folder with train/ and test/ or val/; see --test.")],
    name: Annotated[str | None, typer.Option(help="What to call it; the file's or folder's own name.")] = None,
    size: Annotated[int | None, typer.Option(help="Bring the images of a folder to SIZE x SIZE.")] = None,
    test: Annotated[
        float | None, typer.Option(help="Where there is no test set: set this part of every class aside, such as 0.2.")
    ] = None,
) -> None:
    """Convert an .npz file or a folder of class folders once, for use by name."""
    with reporting():
        dataset = data.import_data(source, name=name, size=size, test=test)
    console.print(f"Use it with --dataset {dataset.name}", markup=False)
