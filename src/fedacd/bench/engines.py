"""The contestants of this project: the plain loop, and the engine through its public entrance."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedacd import api
from fedacd.bench import plain, workload
from fedacd.bench.contestants import Contestant
from fedacd.bench.job import Job
from fedacd.bench.machine import peak_memory, peak_memory_of_children
from fedacd.bench.measure import Event, Measured, window
from fedacd.bench.workload import Workload
from fedacd.engine.rounds import MOST_UNREAD
from fedacd.engine.setup import Setup
from fedacd.models import CNN
from fedacd.records import ENV


def run_plain(job: Job, work: Workload, contestant: Contestant) -> Measured:
    """The plain loop over a few rounds, after one client's training to warm up."""
    device = torch.device(job.device)
    if contestant.precision == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    dataset, real = workload.load(work)
    runs = workload.setups(work, dataset, {"run.device": job.device})
    recipe, data = workload.plain_recipe(runs[0]), workload.plain_data(runs[0], device)
    cohorts = workload.cohorts(runs, job.rounds, device)
    torch.manual_seed(0)
    np.random.seed(0)
    model = CNN(dataset.shape, dataset.num_classes).to(device)
    plain.federated_round(model, data, cohorts[0][:1], recipe, recipe.lr)

    started = _now(device)
    for number, cohort in enumerate(cohorts):
        plain.federated_round(model, data, cohort, recipe, recipe.lr * 0.99**number)
    seconds = _now(device) - started
    return Measured(
        samples=sum(len(index) for cohort in cohorts for index in cohort) * recipe.epochs,
        seconds=seconds,
        rounds=job.rounds,
        real_data=real,
        peak_memory=peak_memory(device),
        how=at_work(1, device),
    )


def at_work(processes: int, device: torch.device) -> str:
    """Processes, and on a CPU the threads of each, in words."""
    words = f"{processes} process{'es' * (processes > 1)}"
    if device.type != "cpu":
        return words
    threads = torch.get_num_threads()
    return f"{words}, {threads} thread{'s' * (threads > 1)}{' each' * (processes > 1)}"


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def run_engine(job: Job, work: Workload, contestant: Contestant) -> Measured:
    """This engine. Its first round is the warm-up and compiles; its last one is evaluated; neither counts.

    The clock is read when a round is reported, with its line of the record on the disk, and its checkpoint unless
    numbers of clients are compared: the state of a thousand of them is gigabytes. On a GPU
    that may be some rounds late. So that it is as late at the end of the window as at its start, and the device as
    busy, as many rounds more are left out at either end.
    """
    dataset, real = workload.load(work)
    late = MOST_UNREAD + 1 if job.device.startswith("cuda") else 0
    rounds = job.rounds + 2 + 2 * late
    settings = {
        "run.device": job.device,
        "run.precision": contestant.precision,
        "run.eval_every": 1 if contestant.evaluate else rounds,
        **({"run.save_every": rounds} if work.sizes else {}),
        "train.rounds": rounds,
    }
    events: list[Event] = []
    with tempfile.TemporaryDirectory(prefix="fedacd-bench-") as folder:
        runs = workload.setups(work, dataset, settings, Path(folder))
        numbers = {setup.out: number for number, setup in enumerate(runs)}

        def on_round(setup: Setup, record: dict[str, Any]) -> None:
            samples = work.epochs * sum(len(setup.members[client]) for client in record["participants"])
            events.append(Event(numbers[setup.out], record["round"], time.perf_counter(), samples))

        with profiled(job.profile):
            train_together(runs, on_round)
        last = runs[events[-1].run].out
        engine: dict[str, Any] = json.loads((last / ENV).read_text())["sessions"][-1].get("engine") or {}
    samples, seconds = window((event for event in events if event.round > late), rounds - late)
    device = torch.device(job.device)
    memory = engine.get("peak_memory")
    if not memory:
        others = (engine.get("workers") or 1) - 1
        memory = peak_memory(device) + others * (0 if device.type == "cuda" else peak_memory_of_children())
    return Measured(
        samples=samples,
        seconds=seconds,
        rounds=job.rounds,
        real_data=real,
        peak_memory=memory,
        how=_how(engine, device),
        engine=engine,
    )


@contextlib.contextmanager
def profiled(path: str | None) -> Iterator[None]:
    """Write down where a GPU's time goes."""
    if path is None:
        yield
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        yield
    averages = profiler.key_averages()
    table = averages.table(sort_by="cuda_time_total", row_limit=60, max_name_column_width=120)
    Path(path).write_text(table)


def train_together(runs: Sequence[Setup], on_round: Callable[[Setup, dict[str, Any]], None]) -> None:
    """Train several runs at a time; what goes wrong in one of them ends the turn."""
    for result in api.train_all(runs, on_round):
        if isinstance(result, Exception):
            raise result


def _how(engine: dict[str, Any], device: torch.device) -> str:
    workers = engine.get("workers") or 1
    if engine.get("slots"):
        return f"{workers} process{'es' * (workers > 1)}, {engine['slots']} slots"
    return f"{workers} processes, 1 thread each" if workers > 1 and device.type == "cpu" else at_work(workers, device)
