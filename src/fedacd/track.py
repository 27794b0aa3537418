"""`--track`: what a round records, sent on to TensorBoard or MLflow while the run goes on.

    tensorboard   <run folder>/tensorboard: every number a scalar; per-class accuracies, weights and what clients told
                  as histograms
    mlflow        where MLFLOW_TRACKING_URI says, by default a local file of MLflow's choosing; every number a metric,
                  per-class accuracies and weights as one series each. One MLflow run for each run folder

rounds.jsonl stays the record; a tracker is a copy of it. So a resumed run goes on in the same tracked run: what is
missing there is filled in from rounds.jsonl, and no step is there twice. A tracker that fails is left with a message,
and the run goes on without it.
"""

import contextlib
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from fedacd.engine.setup import Setup
from fedacd.errors import ConfigError, unknown
from fedacd.records import read_rounds

FOLDER = "tensorboard"
EXPERIMENT = "fedacd"


class Sink(Protocol):
    """One tracked run."""

    def last(self) -> int:
        """The last round that is there already."""

    def log(self, record: Mapping[str, Any]) -> None: ...

    def close(self, finished: bool) -> None: ...


class Tracker:
    """Follows any number of runs. `on_round` goes to `train_all`; `follow` fills in what a folder holds already."""

    def __init__(self, kind: str, *, say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)) -> None:
        """`kind` names the tracker; one that is not installed is refused now, not after the first round."""
        if kind not in SINKS:
            raise ConfigError(unknown("tracker", kind, SINKS))
        self._kind, self._say = kind, say
        self._module, self._open = SINKS[kind]
        self._sinks: dict[str, Sink | None] = {}
        self._logged: dict[str, int] = {}
        _require(kind, self._module)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_round(self, setup: Setup, record: Mapping[str, Any]) -> None:
        """Log a round, after all earlier ones that are not there yet."""
        with self._forgiving(setup):
            self._catch_up(setup, record["round"] - 1)
            self._log(setup, record)
            if record["round"] == setup.config.train.rounds:
                self._end(setup, finished=True)

    def follow(self, setup: Setup) -> None:
        """Log what the run's folder holds: for a run that was complete before tracking began."""
        with self._forgiving(setup):
            if setup.out.is_dir() and (rounds := read_rounds(setup.out)):
                self._catch_up(setup, rounds[-1]["round"])
                self._end(setup, finished=rounds[-1]["round"] == setup.config.train.rounds)

    def close(self) -> None:
        """Close what is open; a run that is not at its end can be gone on with."""
        for key, sink in list(self._sinks.items()):
            if sink:
                with contextlib.suppress(Exception):
                    sink.close(finished=False)
            self._sinks[key] = None

    def _catch_up(self, setup: Setup, end: int) -> None:
        key = str(setup.out)
        if key in self._logged:
            if self._logged[key] >= end:
                return
        else:
            self._sinks[key] = sink = self._open(setup)
            self._logged[key] = sink.last()
        for record in read_rounds(setup.out):
            if record["round"] <= end:
                self._log(setup, record)

    def _log(self, setup: Setup, record: Mapping[str, Any]) -> None:
        key = str(setup.out)
        sink = self._sinks.get(key)
        if sink and record["round"] > self._logged[key]:
            sink.log(record)
            self._logged[key] = record["round"]

    def _end(self, setup: Setup, *, finished: bool) -> None:
        if sink := self._sinks.get(str(setup.out)):
            sink.close(finished)
            self._sinks[str(setup.out)] = None

    @contextlib.contextmanager
    def _forgiving(self, setup: Setup) -> Iterator[None]:
        """Whatever a tracker's library raises, the run is worth more."""
        key = str(setup.out)
        try:
            yield
        except Exception as error:
            self._say(
                f"tracking of {setup.out} by {self._kind} has stopped ({type(error).__name__}: {error}); the run goes "
                "on, and the same command with --track fills in the rest"
            )
            self._sinks[key], self._logged[key] = None, sys.maxsize


def _require(kind: str, module: str) -> ModuleType:
    import importlib

    # Runs are nobody else's business: MLflow reports its use over the network unless it is told not to.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"--track {kind} needs a package that is not installed ({error}): pip install 'fedacd[{kind}]'."
        ) from None


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of a record; what is null was not measured."""
    return {
        key: float(value)
        for key, value in record.items()
        if isinstance(value, int | float) and key != "round" and math.isfinite(value)
    }


def series(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The lists of a record by name: `per_class` by class; `weights` and what was told by client."""
    clients = [f"client_{client:03}" for client in record.get("participants") or ()]
    lists = {"weights": record.get("weights"), **{f"told_{key}": v for key, v in (record.get("told") or {}).items()}}
    found = {
        name: dict(zip(clients, values, strict=False)) for name, values in lists.items() if isinstance(values, list)
    }
    found["per_class"] = {f"class_{i:03}": value for i, value in enumerate(record.get("per_class") or ())}
    known = {name: {k: float(v) for k, v in group.items() if _is_number(v)} for name, group in found.items()}
    return {name: group for name, group in known.items() if group}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


class TensorBoard:
    """Event files in the run's folder. They are written anew at each start: a file of events cannot be mended."""

    def __init__(self, setup: Setup) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = setup.out / FOLDER
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer: Any = SummaryWriter(str(folder))
        table = "\n".join(["| setting | value |", "|---|---|", *_rows(setup)])
        self._writer.add_text("config", table, 0)

    def last(self) -> int:
        return 0

    def log(self, record: Mapping[str, Any]) -> None:
        for key, value in scalars(record).items():
            self._writer.add_scalar(key, value, record["round"])
        for key, group in series(record).items():
            self._writer.add_histogram(key, np.array(list(group.values())), record["round"])
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


def _rows(setup: Setup) -> list[str]:
    return [f"| {key} | {str(value).replace('|', chr(92) + '|')} |" for key, value in setup.config.flat().items()]


class MLflow:
    """One MLflow run for each run folder, found again by a tag made of the folder and the config."""

    def __init__(self, setup: Setup) -> None:
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        text = f"{setup.out.resolve()} {setup.config.course()}"
        tag = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        found = self._client.search_runs([number], f"tags.`fedacd.run` = '{tag}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"fedacd.run": tag, "fedacd.folder": str(setup.out)}
        self._run = self._client.create_run(number, run_name=setup.out.name, tags=tags).info.run_id
        for key, value in setup.config.flat().items():
            if value is not None:
                self._client.log_param(self._run, key, value)

    def last(self) -> int:
        return max((metric.step for metric in self._client.get_metric_history(self._run, "round")), default=0)

    def log(self, record: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        numbers = scalars(record)
        numbers |= {f"{name}/{key}": value for name, group in series(record).items() for key, value in group.items()}
        numbers["round"] = record["round"]  # last, so that `last` counts whole rounds only
        metrics = [Metric(key, value, 0, record["round"]) for key, value in numbers.items()]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._run, metrics=metrics[start : start + 1000])

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")


SINKS: Mapping[str, tuple[str, Callable[[Setup], Sink]]] = {
    "tensorboard": ("torch.utils.tensorboard", TensorBoard),
    "mlflow": ("mlflow", MLflow),
}
"""By name: the module that must be there, and what opens a tracked run."""
