"""The command line: parse, call, print.

Exit codes: 0 done, 1 a run failed, 2 the user's input was wrong, 130 interrupted with the state saved.
"""

import contextlib
import dataclasses
import functools
import gc
import inspect
import itertools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import fedacd
from fedacd import data
from fedacd.api import OPTIONS, Result, train_all
from fedacd.bench.command import bench
from fedacd.cli_data import data_app
from fedacd.cli_exits import interruptible, reporting
from fedacd.config import Config
from fedacd.display import ONE_OF_MANY, RoundsProgress, console, counted, print_metrics
from fedacd.engine.setup import Setup, prepare
from fedacd.environment import rank_and_size
from fedacd.errors import ConfigError, FedacdError, RecordError
from fedacd.files import require_folder
from fedacd.flower.command import flower_app
from fedacd.methods import METHODS, find
from fedacd.models import MODELS
from fedacd.records import finished_rounds
from fedacd.report.command import report
from fedacd.settings import Settings, allowed, kinds_of
from fedacd.tables.command import merge, summaries, table
from fedacd.toml import parse_value, read_toml
from fedacd.track import Tracker

app = typer.Typer(
    help="Federated learning for label-skewed data: FedACD and its baselines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


# The options of `run` and `sweep` are those of `fedacd.run`: one table serves all three.

FileArgument = Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Settings to start from.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; may be repeated.")
]

TrackOption = Annotated[
    str | None, typer.Option("--track", metavar="TRACKER", help="Log every round to tensorboard or mlflow as well.")
]


def _options(name: str, key: str) -> list[inspect.Parameter]:
    """The command-line option of one setting, documented by the setting itself."""

    def parameter(name: str, kind: Any, *flags: str, **about: Any) -> inspect.Parameter:
        annotation = Annotated[kind, typer.Option(*flags, show_default=False, **about)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    if name == "mixup":
        both = {"--mixup": "Input mixup. Both flags in a sweep: with and without.", "--no-mixup": "No input mixup."}
        return [parameter(flag[2:].replace("-", "_"), bool | None, flag, help=help_) for flag, help_ in both.items()]
    if name == "deterministic":
        return [parameter(name, bool | None, "--deterministic", help=_help(key))]
    return [parameter(name, str | None, f"--{name.replace('_', '-')}", metavar=name.upper(), help=_help(key))]


def _help(key: str) -> str:
    section, _, name = key.partition(".")
    if section == "method":
        return f"One of {', '.join(METHODS)}, or package.module:Class. Default: fedacd."
    if section == "model":
        return f"One of {', '.join(MODELS)}, or package.module:callable; the data set's own."
    spec = next(spec for spec in dataclasses.fields(getattr(Config(), section)) if spec.name == name)
    default = "" if spec.default is None else f" Default: {spec.default}."
    text: str = spec.metadata["doc"]
    choices = f" ({', '.join(spec.metadata['one_of'])})" if "one_of" in spec.metadata else ""
    return f"{text[0].upper()}{text[1:]}{choices}.{default}"


def with_settings(command: Callable[[dict[str, Any], dict[str, str], str | None], None]) -> Callable[..., None]:
    """Give a command every short option; it receives the config file's values and those of the options as written."""

    def wrapper(
        config: Path | None = None, set_: list[str] | None = None, track: str | None = None, **options: Any
    ) -> None:
        with reporting():
            flags = [text for name, text in (("mixup", "true"), ("no_mixup", "false")) if options.pop(name)]
            given = {name: text for name, text in options.items() if text is not None}
            texts = {OPTIONS[name]: str(text).lower() if text is True else text for name, text in given.items()}
            if flags:
                texts[OPTIONS["mixup"]] = ",".join(flags)
            for pair in set_ or []:
                key, equals, text = pair.partition("=")
                if not equals:
                    raise ConfigError(f"--set {pair}: write section.key=value, such as train.clip=5.")
                if key.strip() in texts:
                    raise ConfigError(f"{key.strip()} is given twice, by its option and by --set.")
                texts[key.strip()] = text.strip()
            command(read_toml(config) if config else {}, texts, track)

    parameters = [
        inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=FileArgument),
        *itertools.chain.from_iterable(_options(name, key) for name, key in OPTIONS.items()),
        inspect.Parameter("set_", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SetOption),
        inspect.Parameter("track", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TrackOption),
    ]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper


# A name stays a text even where it looks like a number.
_NAMES = frozenset({"data.name", "method.name", "model.name", "run.out", "run.device", "run.precision"})


def _value(key: str, text: str) -> Any:
    return text if key in _NAMES else parse_value(text)


@app.command()
@with_settings
def run(settings: dict[str, Any], texts: dict[str, str], track: str | None) -> None:
    """Train one run. The same command again goes on where it stopped."""
    for key, text in texts.items():
        if key not in ("data.name", "run.out") and len(split_list(text)) > 1:
            raise ConfigError(f"{key} = {text!r}: a run has one value; fedacd sweep takes lists.")
    setup = prepare(settings | {key: _value(key, text) for key, text in texts.items()})
    workers = setup.config.run.workers or 1
    if setup.device.type == "cuda" and workers > 1 and rank_and_size()[1] == 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", "-m", "fedacd"]
        os.execv(sys.executable, [sys.executable, *launch, *sys.argv[1:]])
    with interruptible():
        (result,) = _train({f"{_title(setup.config)} on {setup.dataset.name}": setup}, track).values()
    if isinstance(result, Exception):
        raise result
    print_metrics([({"method": _title(result.config)}, result.final)])
    console.print(f"Run folder: {result.folder}", markup=False)


@app.command()
@with_settings
def sweep(settings: dict[str, Any], texts: dict[str, str], track: str | None) -> None:
    """Train every combination of comma lists, such as --method fedavg,fedacd --seed 0,1,2."""
    choices = {key: [_value(key, item) for item in split_list(text)] for key, text in texts.items()}
    if len(parents := choices.pop("run.out", [settings.pop("run.out", "runs")])) > 1:
        raise ConfigError(f"run.out = {texts['run.out']!r}: a sweep has one folder, in which its runs get theirs.")
    varied = [key for key, items in choices.items() if len(items) > 1]
    load = functools.cache(data.load)  # runs share their data
    setups: dict[str, Setup] = {}
    # Every combination is prepared before the first one trains, so that a mistake in the last is found now.
    combinations = list(itertools.product(*choices.values()))
    for number, combination in enumerate(combinations, 1):
        values = dict(zip(choices, combination, strict=True))
        setup = prepare(settings | values, load=load)
        differs = [f"{_short(key)} {values[key]}" for key in varied if key != "method.name"]
        label = ", ".join([f"{number}/{len(combinations)} {_title(setup.config)}", *differs])
        setups[label] = setup.at(Path(parents[0]) / setup.out.name)
    if len({setup.out for setup in setups.values()}) < len(setups):
        raise ConfigError(f"some of these runs are the same run: {', '.join(varied)} must make a difference.")
    with interruptible():
        outcomes = _train(setups, track)
    results = [result for result in outcomes.values() if isinstance(result, Result)]
    if results:
        shown = varied or ["method.name"]
        print_metrics([({key: r.config.flat()[key] for key in shown}, r.final) for r in results])
        console.print("Run folders:")
        for result in results:
            console.print(f"  {result.folder}", markup=False)
    failed = {label: outcome for label, outcome in outcomes.items() if isinstance(outcome, Exception)}
    if not ONE_OF_MANY:
        _print_errors(failed)
    if failed:
        raise typer.Exit(1)


def _print_errors(failed: dict[str, Exception]) -> None:
    """A line for each; before the first of a kind that nobody raised on purpose, such as one in a method of the user's
    own, where it happened."""
    located = set()
    for label, error in failed.items():
        text = str(error)
        if not isinstance(error, FedacdError):
            text = f"{type(error).__name__}: {error}"
            if text not in located:
                traceback.print_exception(error)
            located.add(text)
        print(f"error: {label}: {text}", file=sys.stderr)


def split_list(text: str) -> list[str]:
    """Split at commas that stand outside brackets and quotes."""
    items, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quoted:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items]


def _title(config: Config) -> str:
    name = str(config.method.name)
    return METHODS[name].title if name in METHODS else name


def _short(key: str) -> str:
    """beta for partition.beta, dataset for data.name."""
    return next((name for name, known in OPTIONS.items() if known == key), key)


def _train(setups: dict[str, Setup], track: str | None) -> dict[str, Result | Exception]:
    """Train labelled runs, and show how they come along."""
    tracker = None if track is None else Tracker(track)
    if len(setups) > 1:  # otherwise each of them says it
        require_folder(next(iter(setups.values())).out.parent)
    names = {id(setup): label for label, setup in setups.items()}
    done = {}
    for label, setup in setups.items():
        rounds = setup.config.train.rounds
        found: int | None = None
        try:
            found = finished_rounds(setup.out)
        except RecordError:
            if len(setups) == 1:
                raise  # otherwise its run fails of it, and the others go on
        if found is not None and found <= rounds:  # otherwise it is refused
            console.print(f"{label}: {setup.out} has {found} of {rounds} rounds", markup=False)
        elif found is None:
            where = f"{counted(rounds, 'round')} on {setup.device}, into {setup.out}"
            about = f"{counted(len(setup.members), 'client')}, {setup.config.partition.scheme}"
            console.print(f"{label}: {about}, {where}", markup=False)
        if found != rounds:
            done[label] = (found or 0, rounds)

    def on_round(setup: Setup, record: dict[str, Any]) -> None:
        progress(names[id(setup)], record)
        if tracker:
            tracker.on_round(setup, record)

    with tracker or contextlib.nullcontext(), RoundsProgress(done) as progress:
        results = train_all(list(setups.values()), on_round, say=progress.say)
        if tracker and not ONE_OF_MANY:
            for setup in setups.values():  # those that were complete before
                tracker.follow(setup)
    return dict(zip(setups, results, strict=True))


for command in (table, report, merge, summaries, bench):
    app.command()(reporting()(command))


@app.command()
@reporting()
def methods(only: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them alone.")] = None) -> None:
    """List the methods with their hyper-parameters and citations."""
    for name, kind in ({only: find(only)} if only else METHODS).items():
        console.print(f"[bold]{name}[/bold]  {kind.title}, {kind.citation}")
        console.print(f"  mixup {'on' if kind.defaults('', '')['train.mixup'] else 'off'} by default", markup=False)
        _print_fields(kind)
        console.print()


@app.command()
def settings() -> None:
    """List every setting with its default: what --set and a TOML file take."""
    config = Config()
    for section in (config.data, config.partition, config.train, config.run):
        console.print(f"[bold]{section.section}[/bold]")
        _print_fields(type(section))
    console.print("[bold]model[/bold]")
    console.print(f"  model.name = open: one of {', '.join(MODELS)}, or package.module:callable", markup=False)
    console.print("  model.head = open: the layer that makes logits of features", markup=False)
    console.print("[bold]method[/bold]")
    console.print("  method.name = fedacd; its hyper-parameters: fedacd methods", markup=False)
    console.print("\nopen: the data set, the model or the method decides; the run folder says what.", markup=False)


def _print_fields(kind: type[Settings]) -> None:
    for spec in dataclasses.fields(kind):
        default = {None: " = open", dataclasses.MISSING: ""}.get(spec.default, f" = {spec.default}")
        what = allowed(spec, kinds_of(kind, spec.name))
        about = f"{spec.metadata['doc']} ({what})" if "doc" in spec.metadata else what  # without `setting`
        console.print(f"  {kind.section}.{spec.name}{default}: {about}", markup=False)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if show:
        print(f"fedacd {fedacd.__version__}")
        raise typer.Exit


def main() -> None:
    gc.freeze()  # what has been imported stays: to look through it when the process ends takes 0.3 seconds
    app()


if __name__ == "__main__":
    main()
