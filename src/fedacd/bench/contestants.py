"""Who takes part, by name."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedacd.bench.workload import Workload
from fedacd.methods import METHODS

PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16")}


@dataclass(frozen=True, kw_only=True)
class Contestant:
    name: str
    kind: str
    """plain, engine, pfl or flower."""
    title: str
    precision: str = "default"
    evaluate: bool = False
    """Every round."""
    needs: tuple[str, ...] = ()
    """Packages."""
    method: str | None = None
    clients: int | None = None
    """Where they are not the workload's."""

    @property
    def missing(self) -> list[str]:
        return [package for package in self.needs if importlib.util.find_spec(package) is None]

    def work(self, workload: Workload) -> Workload:
        """What this one trains."""
        method, clients = self.method or workload.method, self.clients or workload.clients
        return dataclasses.replace(workload, method=method, clients=clients)


def contestants(workload: Workload, device: str) -> dict[str, Contestant]:
    """All contestants of a workload on a kind of device, in the order of their turns."""
    return {contestant.name: contestant for contestant in _all(workload, device)}


def _all(workload: Workload, device: str) -> Iterator[Contestant]:
    if workload.sizes:
        yield from _of_every_size(workload, "bf16" if device == "cuda" else "fp32")
        return
    default = "plain loop" if device == "cpu" else "plain loop, torch's default (tf32 in convolutions only)"
    yield Contestant(name="plain", kind="plain", title=default)
    if device == "cuda":
        yield Contestant(name="plain-tf32", kind="plain", title="plain loop, tf32", precision="tf32")
    for precision in PRECISIONS[device]:
        name, title = f"engine-{precision}", f"fedacd, {precision}"
        yield Contestant(name=name, kind="engine", title=title, precision=precision)
        if workload.evaluated:
            title += ", evaluated every round"
            yield Contestant(name=f"{name}-eval", kind="engine", title=title, precision=precision, evaluate=True)
    if workload.against_others:
        yield Contestant(name="pfl", kind="pfl", title=f"pfl{_version('pfl')}, simulated backend", needs=("pfl",))
        title = f"Flower{_version('flwr')}, simulation with ray{_version('ray')}"
        yield Contestant(name="flower", kind="flower", title=title, needs=("flwr", "ray"))


def _of_every_size(workload: Workload, precision: str) -> Iterator[Contestant]:
    for method in ("fedacd", "scaffold"):
        for clients in workload.sizes:
            title = f"{METHODS[method].title}, {clients:,} clients, {precision}"
            name = f"{method}-{clients}"
            yield Contestant(name=name, kind="engine", title=title, precision=precision, method=method, clients=clients)


def _version(package: str) -> str:
    """A blank and the version, or nothing for a package that is not there."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return f" {importlib.metadata.version(package)}"
    return ""


def by_process(everybody: Sequence[Contestant], device: str) -> list[list[Contestant]]:
    """Who shares a process: on a GPU, those that differ in the number of clients alone.

    With small clients that is the host's speed, and one process has been 1.4 times as fast as another with the same
    clients. On a CPU the peak of memory is a process's, which would not tell them apart.
    """
    shared: dict[str, list[Contestant]] = {}
    for one in everybody:
        shared.setdefault(one.method or one.name if device == "cuda" else one.name, []).append(one)
    return list(shared.values())


def baselines(workload: Workload, device: str) -> tuple[str, ...]:
    """The contestants that the others are compared with; of the plain loops, the last one is the one that counts."""
    if workload.sizes:
        return tuple(name for name, one in contestants(workload, device).items() if one.clients == workload.sizes[0])
    return ("plain",) if device == "cpu" else ("plain", "plain-tf32")
