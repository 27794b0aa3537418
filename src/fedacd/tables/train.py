"""Train the runs that a table lacks."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedacd import data
from fedacd.api import Result, train_all
from fedacd.data import Dataset
from fedacd.display import RoundsProgress, console
from fedacd.engine.setup import Setup, prepare
from fedacd.errors import DataError, FedacdError, RecordError
from fedacd.files import require_folder
from fedacd.records import finished_rounds
from fedacd.tables.found import Found, differences
from fedacd.tables.match import Matched
from fedacd.tables.wanted import FROM_DATA, Want


def train_missing(runs: Sequence[Want], matched: Matched, out: Path, device: str) -> dict[str, Exception]:
    """Train to the end what is not finished. What a run failed of, by its name; the others go on."""
    missing = matched.missing(runs)
    datasets = {name: _load(name) for name in dict.fromkeys(want.dataset for want in missing)}
    _require_same_data(datasets, [*matched.done.values(), *matched.partly.values()])
    _setup(missing[0], datasets[missing[0].dataset], None, out, device)  # a mistake in what all share is found now
    require_folder(out)
    failed: dict[str, Exception] = {}
    for name, dataset in datasets.items():  # a data set after the other, for the memory's sake
        setups: dict[str, Setup] = {}
        for want in missing:
            if want.dataset == name:
                try:
                    setups[want.name] = _setup(want, dataset, matched.partly.get(want.key), out, device)
                except FedacdError as error:
                    failed[want.name] = error
        results = _train(setups) if setups else {}
        failed |= {label: result for label, result in results.items() if isinstance(result, Exception)}
    return failed


def _load(name: str) -> Dataset:
    try:
        return data.load(name)
    except DataError as error:
        raise DataError(f"{error} Or leave it out: --dataset chooses others; --from shows what is finished.") from None


def _require_same_data(datasets: Mapping[str, Dataset], runs: Sequence[Found]) -> None:
    for run in runs:
        if dataset := datasets.get(str(run.settings["data.name"])):
            here = {"mean": list(dataset.mean), "std": list(dataset.std), "fingerprint": dataset.fingerprint}
            flat = {f"data.{key}": value for key, value in here.items()}
            for difference in differences(run.settings, flat, sorted(FROM_DATA)):
                raise RecordError(
                    f"{run.path} was trained on another {dataset.name}: {difference}. Choose another --out."
                )


def _setup(want: Want, dataset: Dataset, begun: Found | None, out: Path, device: str) -> Setup:
    setup = prepare({**want.settings, "run.device": device}, dataset=dataset)
    place = begun.path if begun and begun.summary is None else out / setup.out.name
    return setup.at(place)


def _train(setups: Mapping[str, Setup]) -> dict[str, Result | Exception]:
    labels = {id(setup): f"{i}/{len(setups)} {name}" for i, (name, setup) in enumerate(setups.items(), 1)}
    rounds = {labels[id(setup)]: (_done(setup), setup.config.train.rounds) for setup in setups.values()}
    with RoundsProgress({label: (done, total) for label, (done, total) in rounds.items() if done != total}) as progress:
        results = train_all(
            [*setups.values()], lambda setup, record: progress(labels[id(setup)], record), say=progress.say
        )
    return dict(zip(setups, results, strict=True))


def _done(setup: Setup) -> int:
    done = 0
    with contextlib.suppress(RecordError):  # its run fails of it, and the others go on
        done = finished_rounds(setup.out) or 0
    if done:
        console.print(f"{setup.out} has {done} of {setup.config.train.rounds} rounds", markup=False)
    return done
