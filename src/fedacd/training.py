"""Runs in training and their folders: begun or resumed, recorded round by round, saved, ended."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedacd.engine.crew import Crew, Loop, Trainer
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import Setup
from fedacd.engine.spread import World, forked
from fedacd.engine.together import AT_ONCE, Say, trainer_for
from fedacd.errors import RecordError, UpdateError
from fedacd.methods import Shared
from fedacd.records import RunFolder, holds_model, read_rounds

SECONDS_AT_RISK, SHARE_FOR_SAVING = 5, 0.05
"""Where `run.save_every` is not set: the work that a kill may cost, unless saving would take too much of the time."""


class Finished(NamedTuple):
    """What a run came to."""

    history: list[dict[str, Any]]
    shared: Shared


def train_group(
    group: Sequence[Setup],
    world: World,
    workers: int,
    on_round: Callable[[Setup, dict[str, Any]], None] | None,
    say: Say,
) -> dict[int, Finished | Exception]:
    """Train runs that share a trainer, and keep their records; what each came to by the id of its setup."""
    images = None
    results: dict[int, Finished | Exception] = {}
    waiting, live = deque(group), dict[Simulation, Live]()
    at_once = AT_ONCE if world.size == 1 else 1  # ranks must agree on whose round comes next
    try:
        crew = Crew(trainer_for(group, say, at_once, world.size))
        while waiting or live:
            while waiting and len(live) < at_once:
                setup = waiting.popleft()
                try:
                    simulation = Simulation(setup, images, world)
                    images = simulation.images
                    run = Live(setup, simulation, crew.trainer, workers, say)
                    if run.complete:
                        results[id(setup)] = run.end()
                    else:
                        live[simulation] = run
                        crew.add(simulation)
                except Exception as error:
                    if world.size > 1 and not isinstance(error, UpdateError):
                        raise  # the other ranks do not know of it: all end together
                    results[id(setup)] = error
            for simulation, event in crew.turn():
                if simulation not in live:
                    continue
                run = live[simulation]
                try:
                    if isinstance(event, Exception):
                        raise event
                    run.take(event)
                    if on_round and world.rank == 0:
                        on_round(run.setup, event)
                    if run.complete:
                        results[id(run.setup)] = run.end()
                        crew.drop(simulation)
                        del live[simulation]
                except Exception as error:
                    if world.size > 1 and not isinstance(error, UpdateError):
                        raise
                    crew.drop(simulation)
                    run.stop(error)
                    results[id(run.setup)] = error
                    del live[simulation]
    except BaseException as error:
        unsaved = [reason for run in live.values() if (reason := run.stop(error))]
        if unsaved and isinstance(error, KeyboardInterrupt):
            raise unsaved[0] from None  # whoever interrupts is told that all is saved
        if not isinstance(error, Exception) or world.size > 1:
            raise
        for setup in group:
            results.setdefault(id(setup), error)
    return results


class Live:
    """A run in training and, on rank 0, its open folder."""

    def __init__(self, setup: Setup, simulation: Simulation, trainer: Trainer, workers: int, say: Say) -> None:
        self.setup, self.simulation = setup, simulation
        self.history: list[dict[str, Any]] = []
        self._folder: RunFolder | None = None
        with contextlib.ExitStack() as stack:
            if simulation.world.rank == 0:
                self._folder = stack.enter_context(RunFolder(setup.out))
                self._folder.start(setup.config, setup.members)
                if state := self._folder.resume(setup.config, say):
                    simulation.restore(state)
                self.history = read_rounds(self._folder.path)
            simulation.agree()
            self._recorded = self._saved = simulation.state
            self._saved_at, self._save_took = time.monotonic(), 0.0
            self._to_do = not self.complete or (self._folder is not None and not holds_model(self._folder.path))
            if self._to_do and self._folder:
                workers = 1 if self.complete else workers
                engine = lambda: trainer.about() | {"workers": max(workers, simulation.world.size)}  # noqa: E731
                stack.enter_context(self._folder.session(setup.device, simulation.state.round, engine))
                if workers > 1:
                    simulation.world = stack.enter_context(forked(workers, self._follow))
            self._open = stack.pop_all()

    @property
    def complete(self) -> bool:
        return self._recorded.round == self.setup.config.train.rounds

    def take(self, record: dict[str, Any]) -> None:
        """Keep a round's record, and its state when it is time to."""
        if self._folder:
            self._folder.append(record)
        self.history.append(record)
        self._recorded = self.simulation.state
        if not self._folder:
            return
        every = self.setup.config.run.save_every
        at_risk, bearable = time.monotonic() - self._saved_at, max(SECONDS_AT_RISK, self._save_took / SHARE_FOR_SAVING)
        due = record["round"] % every == 0 if every else at_risk > bearable
        if self.complete:
            self._folder.save_matrices(self.simulation.matrices, record["round"])
        if due or self.complete:
            self._save()

    def _save(self) -> None:
        assert self._folder
        started = time.monotonic()
        self._folder.save_state(self._recorded, self.setup.config)
        self._saved, self._saved_at = self._recorded, time.monotonic()
        self._save_took = self._saved_at - started

    def end(self) -> Finished:
        """Write the global model and close the folder."""
        shared = self.simulation.state.server.shared
        with self._open:
            if self._folder and self._to_do:
                self._folder.save_model(self.setup.net, shared, _about(self.setup))
        return Finished(self.history, shared)

    def stop(self, error: BaseException) -> RecordError | None:
        """Save what is recorded, unless the folder itself is the trouble, and close it; why it could not be saved."""
        can_save = isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, RecordError)
        try:
            with self._open:
                if can_save and self._folder and self._saved is not self._recorded:
                    self._save()
                raise error
        except BaseException as ended:
            if not can_save or not self._folder or self._saved is self._recorded:
                return None
            if isinstance(ended, RecordError):
                return ended
            what = f"saving {self._folder.path} was broken off ({type(ended).__name__})"
            return RecordError(f"{what}. What was saved before is intact: run the same command again.")

    def _follow(self, world: World) -> None:
        """What the other processes of a run do: all of the same, but for the records."""
        self.simulation.world = world
        crew = Crew(Loop())
        crew.add(self.simulation)
        while crew.busy:
            for _, event in crew.turn():
                if isinstance(event, Exception):
                    raise event


def _about(setup: Setup) -> dict[str, Any]:
    """What inference needs beside the weights."""
    config = setup.config
    return {
        "model": config.model.name,
        "model_options": config.model.options,
        "method": config.method.name,
        "method_options": config.method.options,
        "shape": setup.dataset.shape,
        "mean": config.data.mean,
        "std": config.data.std,
        "class_names": setup.dataset.class_names,
    }
