"""`fedacd bench`: this engine against a plain PyTorch loop and, where they are installed, pfl and Flower.

    workload.py       what is trained
    plain.py          the plain loop, as a good user would write it
    engines.py, pfl_loop.py, flower_loop.py   one turn of each contestant
    worker.py, job.py   a turn in a process of its own
    measure.py        turns, medians, ratios
    machine.py        the hardware, and whether it is idle
    show.py, command.py   the table, the command line

A turn's time starts after its warm-up: data, start of processes and compilation do not count (compilation is shown
apart). All rates are taken over a few rounds, and the seconds of a whole run are extrapolated from them.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedacd.bench import job, machine, workload
from fedacd.bench.contestants import Contestant, baselines, by_process, contestants
from fedacd.bench.job import Job
from fedacd.bench.measure import Measured, Row, Turn, summarise, take_turns
from fedacd.bench.workload import FULL_RUN, Workload, find
from fedacd.engine.setup import cores
from fedacd.errors import ConfigError, unknown
from fedacd.files import write_atomically

__all__ = ["Report", "Row", "Table", "check_file", "run", "write_json"]

PLAIN_ROUNDS = 3
"""The most rounds over which a plain loop is timed."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The outcome of one workload."""

    workload: str
    what: str
    dataset: str
    real_data: bool
    runs_at_a_time: int
    samples_of_a_full_run: float
    baselines: list[str]
    rows: list[Row]
    left_out: list[str]
    """Contestants whose packages are missing, and how to install them."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a bench found."""

    quick: bool
    device: str
    machine: dict[str, Any]
    repeats: int
    not_idle: list[str]
    """Signs that others used the machine, with the moment at which they were seen."""
    tables: list[Table]

    @property
    def failed(self) -> list[str]:
        return [row.name for table in self.tables for row in table.rows if row.error]


def run(
    *,
    workloads: Sequence[str] | None = None,
    rounds: int | None = None,
    repeats: int | None = None,
    device: str = "auto",
    only: Sequence[str] | None = None,
    quick: bool = False,
    profile: Path | None = None,
    say: Say = lambda _: None,
) -> Report:
    """Let the contestants take turns. `say` is told what happens.

    `workloads`: of federation, paper and growth; the first on a CPU, the first two on a GPU. `rounds` to time in a
    turn: 2 on a CPU, 10 on a GPU, of which a plain loop does at most 3; 8 and 300 for growth. `repeats`: turns of each,
    3; 4 where they change places. `only`: names of contestants. `quick`: tiny sizes, one turn: a smoke test.
    `profile`: a file for the time of every kernel of a GPU.
    """
    where = _device(device)
    kind = where.type
    if profile and kind != "cuda":
        raise ConfigError(f"profile = {str(profile)!r}: there is no GPU whose kernels could be timed.")
    rounds = None if rounds is None else _at_least_1("rounds", rounds)
    names = workloads or ["federation", "paper"][: 2 if kind == "cuda" else 1]
    works = [find(name, device=kind, quick=quick) for name in names]
    change_places = kind == "cuda" and any(work.sizes for work in works)
    repeats = _at_least_1("repeats", (1 if quick else 4 if change_places else 3) if repeats is None else repeats)
    chosen = _choose(works, kind, only)

    seen = [f"at the start: {sign}" for sign in machine.not_idle(where)]
    for sign in seen:
        say(f"The machine is NOT idle, {sign}.")
    tables = []
    for work, everybody in chosen:
        say(f"{work.name}: {work.what}")
        here = {name: contestant for name, contestant in everybody.items() if not contestant.missing}

        def measure(names: Sequence[str], work: Workload = work, here: dict[str, Contestant] = here) -> Sequence[Turn]:
            timed = rounds or (work.rounds_on_gpu if kind == "cuda" else work.rounds_on_cpu)
            turns = _turn(work, [here[name] for name in names], str(where), timed, profile)
            for name, turn in zip(names, turns, strict=True):
                found = f"{turn.rate:,.0f} samples/s" if isinstance(turn, Measured) else f"failed: {turn}"
                say(f"{work.name}: {here[name].title}: {found}")
            return turns

        def look(repeat: int) -> None:
            for sign in machine.not_idle(where, first=False, seconds=0.5) if repeat else ():
                seen.append(f"before turn {repeat + 1}: {sign}")
                say(f"The machine is NOT idle, {seen[-1]}.")

        groups = [[one.name for one in group] for group in by_process(list(here.values()), kind)]
        turns = take_turns(groups, repeats, measure, look)
        tables.append(_table(work, everybody, turns, kind))
    return Report(
        quick=quick,
        device=str(where),
        machine=machine.describe(where),
        repeats=repeats,
        not_idle=seen,
        tables=tables,
    )


def _device(name: str) -> torch.device:
    """The device that a run with this setting would use; refused as a run would refuse it."""
    tiny = find("federation", device="cpu", quick=True)
    dataset, _ = workload.load(tiny)
    return workload.setups(tiny, dataset, {"run.device": name})[0].device


def _at_least_1(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} = {value}: must be a whole number at least 1.")
    return value


def _choose(
    works: Sequence[Workload], kind: str, only: Sequence[str] | None
) -> list[tuple[Workload, dict[str, Contestant]]]:
    """Who takes part in which workload; one that is left without anybody is dropped."""
    known = {work.name: contestants(work, kind) for work in works}
    names = {name: None for everybody in known.values() for name in everybody}
    for name in only or ():
        if name not in names:
            raise ConfigError(unknown("contestant", name, names))
        if all(everybody[name].missing for everybody in known.values() if name in everybody):
            raise ConfigError(f"only = {name!r}: it is not installed (pip install 'fedacd[bench]').")
    wanted = names if only is None else only
    chosen = [(work, {name: one for name, one in known[work.name].items() if name in wanted}) for work in works]
    return [(work, everybody) for work, everybody in chosen if everybody]


def _turn(
    work: Workload, group: Sequence[Contestant], device: str, rounds: int, profile: Path | None
) -> Sequence[Turn]:
    kind = group[0].kind
    processes = min(cores(), work.cohort) if kind == "pfl" and device == "cpu" else 1
    timed = min(rounds, PLAIN_ROUNDS) if kind == "plain" else rounds
    what = Job(
        contestants=[one.name for one in group],
        workload=work.name,
        rounds=timed,
        device=device,
        quick=work.quick,
        profile=str(profile.absolute()) if profile else None,
    )
    return job.run_apart(what, job.command(processes))


def _table(work: Workload, everybody: dict[str, Contestant], turns: dict[str, list[Turn]], kind: str) -> Table:
    samples = FULL_RUN * work.samples_a_round
    measured = [turn for some in turns.values() for turn in some if isinstance(turn, Measured)]
    bases = [name for name in baselines(work, kind) if name in turns]
    return Table(
        workload=work.name,
        what=work.what,
        dataset=work.dataset,
        real_data=bool(measured) and all(turn.real_data for turn in measured),
        runs_at_a_time=len(work.runs),
        samples_of_a_full_run=samples,
        baselines=bases,
        rows=summarise(turns, {name: one.title for name, one in everybody.items()}, bases, samples),
        left_out=[
            f"{one.title.split(',')[0]} is not installed (pip install 'fedacd[bench]')."
            for one in everybody.values()
            if one.missing
        ],
    )


def check_file(path: Path) -> None:
    """Refuse a file that cannot be written, before hours of work go into it."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{str(path)!r}: must be a file in a folder that exists and can be written to.")


def write_json(report: Report, path: Path) -> None:
    """All numbers, each turn's among them."""
    write_atomically(path, (json.dumps(dataclasses.asdict(report), indent=2) + "\n").encode())
