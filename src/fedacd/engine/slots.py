"""Many clients at once: continuous batching.

K slots hold K clients in training, stacked on a leading axis, and one program advances all of them by one step. A slot
whose client is done hands over the outcome and takes the next job at once, whichever run it comes from, so unequal
clients cost nothing. Everything that a step needs lies on the device before it starts: pixels, a client's draws for its
whole round, and its position in them. So the program, compiled and captured as a CUDA graph, is replayed without any
work of the host, which meanwhile gets the next clients ready. How far every slot is, the host knows without asking.

Shapes: K slots, S steps of the longest client's round.
"""

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedacd.engine.batches import Draws, Images, draws_of, one_step
from fedacd.engine.clean import CleanPrograms
from fedacd.engine.local import (
    TOO_LARGE,
    CleanPass,
    Fixed,
    Job,
    Moving,
    Outcome,
    TallyOf,
    begin,
    clean_pass,
    finish,
    gradient_under_vmap,
    here,
    hyper_parameters,
    require_outline,
    scalar,
    step,
    survey,
)
from fedacd.engine.program import copy_all, program
from fedacd.engine.trees import alike, leaves, mapped, outline, refilled
from fedacd.errors import UpdateError
from fedacd.methods import Method, Tensors
from fedacd.models.net import Net

SLOTS = 24
"""The most that are used; docs/performance.md has the measurements."""

SHARE_OF_MEMORY = 0.7
"""How much of the free memory the slots may take; the rest is for evaluation and aggregation."""


class Slot(NamedTuple):
    """A client in training. All tensors of K slots are stacked."""

    moving: Moving
    position: Tensor
    """Steps done."""
    fixed: Fixed
    steps: Tensor
    """Steps to do; 0 in an idle slot."""
    values: Tensors
    """The method's hyper-parameters that may differ from slot to slot."""
    draws: Draws
    """[S, ...]"""


def advance(net: Net, method: Method, images: Images, kind: str, slot: Slot) -> tuple[Moving, Tensor]:
    """One step of one slot, pure; without effect in a slot that has nothing left to do."""
    at = slot.position.clamp(max=slot.steps - 1).clamp(min=0)
    draws = Draws(*(values.index_select(0, at[None])[0] for values in slot.draws))
    method = with_values(method, slot.values)
    moved = step(net, method, slot.moving, slot.fixed, one_step(images, draws, kind), gradient_under_vmap)
    active = slot.position < slot.steps
    moved = mapped(lambda old, new: torch.where(active, alike(new, old), old), slot.moving, moved)
    return moved, slot.position + active


def with_values(method: Method, values: Tensors) -> Method:
    """A copy of a method with tensors for some of its hyper-parameters."""
    method = copy.copy(method)
    for name, value in values.items():
        object.__setattr__(method, name, value)  # frozen for users, not for this copy
    return method


def variable(job: Job) -> list[str]:
    """The hyper-parameters that a step can take as tensors, so that runs which differ in them can share it.

    Raises a RuntimeError where a step cannot be stacked at all, as that of a model which draws random numbers.
    """
    slot = mapped(lambda tensor: tensor[None].clone(), _slot_of(job))
    _all_slots(job)(slot, job.images.tensors)
    found = []
    for name, value in hyper_parameters(job.method).items():
        if isinstance(value, float):
            trial = slot._replace(values={name: torch.full((1,), value, device=job.members.device)})
            with contextlib.suppress(Exception):
                _all_slots(job)(trial, job.images.tensors)
                found.append(name)
    return found


def _slot_of(job: Job, values: Tensors | None = None, clean: CleanPass = clean_pass) -> Slot:
    """A client's slot at its start."""
    job = here(job)
    moving, fixed = begin(job, clean)
    if "epoch" in job.method.survey_at:
        moving = moving._replace(client=survey(job, moving.now, moving.client, "epoch", clean)[0])
    position, steps = (scalar(number, job.members.device, torch.int64) for number in (0, job.plan.steps))
    return Slot(moving, position, fixed, steps, values or {}, draws_of(job.plan, job.members))


def _stacked(slots: Sequence[Slot], S: int) -> Slot:
    """Slots side by side, with room for S steps in each."""
    draws = Draws(*(_room(field, S) for field in zip(*(slot.draws for slot in slots), strict=True)))
    moving, position, fixed, steps, values = mapped(lambda *each: torch.stack(each), *(slot[:-1] for slot in slots))
    return Slot(moving, position, fixed, steps, values, draws)


def _room(field: Sequence[Tensor], S: int) -> Tensor:
    held = field[0].new_zeros(len(field), S, *field[0].shape[1:])
    for row, values in zip(held, field, strict=True):
        row[: len(values)] = values
    return held


class Slots:
    """A trainer for the jobs of runs that share a program: data, network, method, mixup, batch size, precision."""

    def __init__(
        self, K: int, S: int, names: Sequence[str] = (), *, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """`S` steps in the longest round of a client; `names` of the method's `variable` hyper-parameters."""
        self.K, self.S, self._names, self._say = K, S, names, say
        self._jobs: list[tuple[Any, Job, Fixed] | None] = [None] * K
        self._position = [0] * K
        self._outcomes: list[tuple[Any, Outcome | Exception]] = []
        self._stack: Slot | None = None
        self._places: list[list[Tensor]] = []
        """Of every slot: where all of it lies in the stack but the draws."""
        self._num_moving = 0
        self._outline: Any = None
        self._run: Callable[[], None] = lambda: None
        self._clean, self._measure = CleanPrograms(say), CleanPrograms(say, beside_training=True)
        self.tally: TallyOf = self._measure.tally
        self._compile_seconds = 0.0
        self._busy_steps = self._all_steps = 0

    @property
    def free(self) -> int:
        return self._jobs.count(None)

    @property
    def busy(self) -> bool:
        return self.free < self.K

    def about(self) -> dict[str, Any]:
        """What env.json says of the engine."""
        occupancy = self._busy_steps / self._all_steps if self._all_steps else None
        return {
            "kind": "slots",
            "slots": self.K,
            "occupancy": occupancy,
            "compile_seconds": self._compile_seconds + self._clean.compile_seconds + self._measure.compile_seconds,
            "peak_memory": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        }

    def start(self, tag: Any, job: Job) -> None:
        """Put a job into a free slot."""
        if self._stack is None:
            self._build(job)
        assert self._stack
        k = self._jobs.index(None)
        slot = self._slot_of(job)
        require_outline(self._outline, slot[:-1], job)
        copy_all(self._places[k], leaves(slot[:-1]))
        for held, values in zip(self._stack.draws, slot.draws, strict=True):
            held[k, : len(values)] = values  # what lies behind them is not looked at
        self._jobs[k], self._position[k] = (tag, job, slot.fixed), 0

    def _slot_of(self, job: Job) -> Slot:
        values = {name: scalar(getattr(job.method, name), job.members.device) for name in self._names}
        return _slot_of(job, values, self._clean)

    def launch(self) -> None:
        """Start as many steps as all busy slots can make before one of them needs the host."""
        busy = [k for k, held in enumerate(self._jobs) if held]
        if not busy:
            return
        count = min(self._next_stop(k) - self._position[k] for k in busy)
        for _ in range(count):
            self._run()
        for k in busy:
            self._position[k] += count
        self._busy_steps += count * len(busy)
        self._all_steps += count * self.K

    def _next_stop(self, k: int) -> int:
        held = self._jobs[k]
        assert held
        _, job, _ = held
        if "epoch" not in job.method.survey_at:
            return job.plan.steps
        return (self._position[k] // job.plan.epoch_steps + 1) * job.plan.epoch_steps

    def collect(self) -> list[tuple[Any, Outcome | Exception]]:
        """The outcomes of the jobs whose last step has been started; their slots are free again."""
        outcomes = self._outcomes
        for k, held in enumerate(self._jobs):
            if held is None:
                continue
            tag, job, fixed = held
            try:
                if self._position[k] == job.plan.steps:
                    assert self._stack
                    moving = self._copy(k)
                    self._jobs[k] = None
                    outcomes.append((tag, finish(job, moving, fixed, self._clean, self._measure)))
                elif "epoch" in job.method.survey_at and self._position[k] % job.plan.epoch_steps == 0:
                    self._survey_epoch(k, job)
            except torch.OutOfMemoryError:
                self._jobs[k] = held
                raise  # what there is comes with the next call
            except Exception as error:
                self._jobs[k] = None
                outcomes.append((tag, error))
        self._outcomes = []
        return outcomes

    def _copy(self, k: int) -> Moving:
        """What a slot's client has become."""
        assert self._stack
        places = self._places[k][: self._num_moving]  # `moving` comes first
        floats = iter(torch._foreach_mul([place for place in places if place.is_floating_point()], 1))
        copies = [next(floats) if place.is_floating_point() else place.clone() for place in places]
        moving: Moving = refilled(self._stack.moving, copies)
        return moving

    def _survey_epoch(self, k: int, job: Job) -> None:
        assert self._stack
        moving = self._copy(k)
        client, _ = survey(job, moving.now, moving.client, "epoch", self._clean)
        require_outline(outline(moving.client), client, job)
        copy_all([stacked[k] for stacked in leaves(self._stack.moving.client)], leaves(client))

    def drop(self, is_dropped: Callable[[Any], bool]) -> None:
        """Forget jobs; their slots are idle."""
        for k, held in enumerate(self._jobs):
            if held and is_dropped(held[0]):
                self._jobs[k] = None
                assert self._stack
                self._stack.steps[k] = 0
        self._outcomes = [(tag, outcome) for tag, outcome in self._outcomes if not is_dropped(tag)]

    def shrink(self) -> list[tuple[Any, Job]]:
        """After the device has run out of memory: half as many slots, and the jobs to be started again."""
        again = [(tag, job) for held in self._jobs if held for tag, job, _ in [held]]
        if self.K == 1:
            raise UpdateError(TOO_LARGE)
        self._resize(self.K // 2)
        self._stack, self._places, self._run = None, [], lambda: None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._say(f"out of device memory: going on with {self.K} slots")
        return again

    def _resize(self, K: int) -> None:
        self.K, self._jobs, self._position = K, [None] * K, [0] * K

    def _build(self, job: Job) -> None:
        """Make the stack, all idle, and the program for it."""
        slot = self._slot_of(job)
        if job.members.is_cuda and (most := _most_slots(job, slot)) < self.K:
            self._resize(most)
            self._say(f"{self.K} slots: as many as the device's memory has room for")
        stack = _stacked([slot] * self.K, self.S)
        stack.steps.zero_()
        started = time.perf_counter()
        self._run = program(_all_slots(job), stack, job.images.tensors, say=self._say)
        self._stack = stack  # only now: without a program there is nothing to start jobs in
        self._places = [[tensor[k] for tensor in leaves(stack[:-1])] for k in range(self.K)]
        self._num_moving, self._outline = len(leaves(stack.moving)), outline(slot[:-1])
        if job.members.is_cuda:
            seconds = time.perf_counter() - started
            self._compile_seconds += seconds
            self._say(f"made the program of {self.K} slots in {seconds:.0f} s")


def _most_slots(job: Job, slot: Slot) -> int:
    """How many slots there is memory for, by what one takes."""
    device = job.members.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    one = mapped(lambda tensor: tensor[None].clone(), slot)
    _all_slots(job)(one, job.images.tensors)
    each = torch.cuda.max_memory_allocated(device) - before
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(1, int(SHARE_OF_MEMORY * (torch.cuda.mem_get_info(device)[0] + unused) / each))


def _all_slots(job: Job) -> Callable[[Slot, tuple[Tensor, ...]], None]:
    """The step of all slots, in place, for jobs like this one."""

    def run(stack: Slot, pictures: tuple[Tensor, ...]) -> None:
        job.net.train(True)
        images = job.images.of(*pictures)
        moved, position = torch.vmap(lambda slot: advance(job.net, job.method, images, job.train.images, slot))(stack)
        # One by one: torch 2.11 compiles _foreach_copy_ into a kernel that does not build.
        for held, new in zip(leaves(stack.moving), leaves(moved), strict=True):
            held.copy_(new)
        stack.position.copy_(position)

    return run
