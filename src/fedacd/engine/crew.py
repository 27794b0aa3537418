"""Runs side by side: their jobs go into one queue, a trainer takes them from it, a run whose round is complete goes on.

A failure concerns one run; the others go on. While the trainer's device is busy with the steps that were started last,
the numbers of the rounds before are read back, as far as they have arrived.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from fedacd.engine.local import TOO_LARGE, Job, Outcome, TallyOf, run_client, tally_of
from fedacd.engine.rounds import Simulation
from fedacd.errors import UpdateError, WorkerError

_T = TypeVar("_T")

Event = tuple[Simulation, dict[str, Any] | Exception]
"""A run's next record, or what ended it."""


class Trainer(Protocol):
    """Whoever trains clients. A job carries a tag, by which its outcome is known."""

    tally: TallyOf
    """Of a global model."""

    @property
    def free(self) -> int:
        """How many jobs may be started now."""

    @property
    def busy(self) -> bool: ...

    def start(self, tag: Any, job: Job) -> None: ...

    def launch(self) -> None:
        """Set the device to work; do not wait for it."""

    def collect(self) -> list[tuple[Any, Outcome | Exception]]:
        """What has been finished since."""

    def drop(self, is_dropped: Callable[[Any], bool]) -> None:
        """Forget jobs."""

    def shrink(self) -> list[tuple[Any, Job]]:
        """Make do with less memory; the jobs that have to be started again."""

    def about(self) -> dict[str, Any]: ...


class Loop:
    """One client after the other."""

    def __init__(self) -> None:
        self.tally: TallyOf = tally_of
        self._job: tuple[Any, Job] | None = None

    @property
    def free(self) -> int:
        return 0 if self._job else 1

    @property
    def busy(self) -> bool:
        return self._job is not None

    def start(self, tag: Any, job: Job) -> None:
        self._job = tag, job

    def launch(self) -> None:
        pass

    def collect(self) -> list[tuple[Any, Outcome | Exception]]:
        if not self._job:
            return []
        (tag, job), self._job = self._job, None
        try:
            return [(tag, run_client(job))]
        except Exception as error:
            return [(tag, error)]

    def drop(self, is_dropped: Callable[[Any], bool]) -> None:
        if self._job and is_dropped(self._job[0]):
            self._job = None

    def shrink(self) -> list[tuple[Any, Job]]:
        raise UpdateError(TOO_LARGE)

    def about(self) -> dict[str, Any]:
        return {"kind": "loop"}


class Crew:
    """The runs that a trainer works on."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._queue: deque[tuple[tuple[Simulation, int], Job]] = deque()
        self._unread: list[Simulation] = []
        self._runs: set[Simulation] = set()
        self._launched = False
        self._ended: list[Event] = []

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._unread or self._ended or self.trainer.busy)

    def add(self, run: Simulation) -> None:
        """Take a run on, from where it stands."""
        self._runs.add(run)
        if not run.done:
            self._guard(run, lambda: self._open(run))

    def drop(self, run: Simulation) -> None:
        """Let go of a run; what it has under way is lost."""
        self._runs.discard(run)
        self.trainer.drop(lambda tag: tag[0] is run)
        self._queue = deque(entry for entry in self._queue if entry[0][0] is not run)
        self._unread = [other for other in self._unread if other is not run]

    def turn(self) -> list[Event]:
        """Work until something is finished; the records since the last turn, and the runs that have failed."""
        try:
            if not self._launched:
                self._start_jobs()
                self.trainer.launch()
                self._launched = True
        except torch.OutOfMemoryError:
            self._queue.extendleft(reversed(self.trainer.shrink()))
            return []
        unread, self._unread = self._unread, []
        read = set[Simulation]()
        for run in unread:
            if run not in self._runs:
                continue  # a round before has ended it
            # One round at a time: a record goes with the run's state.
            if run in read or (self.trainer.busy and not run.readable):
                self._unread.append(run)
                continue
            read.add(run)
            self._guard(run, lambda run=run: self._ended.append((run, run.record())))  # type: ignore[misc]
        if not self._ended:
            self._launched = False
            for (run, number), outcome in self._collected():
                if run in self._runs:  # not one that an outcome before has ended
                    self._guard(run, lambda at=(run, number, outcome): self._feed(*at))  # type: ignore[misc]
        events, self._ended = self._ended, []
        return events

    def _start_jobs(self) -> None:
        while self._queue and self.trainer.free:
            tag, job = self._queue[0]
            try:
                self.trainer.start(tag, job)
                self._queue.popleft()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._fail(tag[0], error)

    def _collected(self) -> list[tuple[Any, Outcome | Exception]]:
        try:
            return self.trainer.collect()
        except torch.OutOfMemoryError:
            self._queue.extendleft(reversed(self.trainer.shrink()))
            return []

    def _feed(self, run: Simulation, number: int, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, UpdateError) and run.world.size > 1:
            raise WorkerError(str(outcome)) from outcome  # the other ranks do not know of it: all end together
        if isinstance(outcome, Exception):
            raise outcome
        if self._with_room(run, lambda: run.feed(number, outcome)):
            self._with_room(run, lambda: run.close(self.trainer.tally))
            self._unread.append(run)
            if not run.done:
                self._open(run)

    def _open(self, run: Simulation) -> None:
        jobs = self._with_room(run, run.open)
        self._queue.extend(((run, number), job) for number, job in jobs.items())

    def _with_room(self, run: Simulation, act: Callable[[], _T]) -> _T:
        """Sums and evaluation live on what the slots leave over: where that is too little, with fewer of them."""
        try:
            return act()
        except torch.OutOfMemoryError:
            if run.world.size > 1:  # the other ranks are further on
                raise
            self._queue.extendleft(reversed(self.trainer.shrink()))
            return act()

    def _guard(self, run: Simulation, act: Callable[[], None]) -> None:
        """What goes wrong in `act` ends this run alone."""
        try:
            act()
        except Exception as error:
            self._fail(run, error)

    def _fail(self, run: Simulation, error: Exception) -> None:
        self.drop(run)
        self._ended.append((run, error))
