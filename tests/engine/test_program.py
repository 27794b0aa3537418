"""A whole traced step of all slots against the untraced, and programs on a CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from fedacd.data import Dataset
from fedacd.engine import clean
from fedacd.engine.batches import Images, Ready
from fedacd.engine.clean import CleanPrograms
from fedacd.engine.local import Job, tally_of
from fedacd.engine.program import program
from fedacd.engine.rounds import Simulation
from fedacd.engine.slots import _all_slots, _slot_of, _stacked
from fedacd.methods import METHODS
from tests.engine.test_slots import a_run, some


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


@pytest.mark.parametrize("name", METHODS)
def test_a_traced_step_of_all_slots_equals_the_untraced(name: str, data: Dataset) -> None:
    """In float64, so that only a wrong trace shows; two steps, so that the second uses what the first left."""
    jobs = list(Simulation(a_run(data, name)).open().values())[:3]
    for job in jobs:
        job.net.train(True)
    S = max(job.plan.steps for job in jobs)
    stack = _stacked([_slot_of(job) for job in jobs], S)
    stack, pictures = tree_map(_double, (stack, jobs[0].images.tensors))
    flat, spec = tree_flatten((stack, pictures))
    step = _all_slots(_in_double(jobs[0]))

    def run(*flat: Tensor) -> None:
        step(*tree_unflatten(list(flat), spec))

    mine, theirs = ([tensor.clone() for tensor in flat] for _ in range(2))
    with torch.no_grad():
        graph: Any = make_fx(run)(*(tensor.clone() for tensor in flat))
    for _ in range(2):
        with torch.no_grad():
            graph(*mine)
        run(*theirs)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    weights = tree_leaves(tree_unflatten(theirs, spec)[0].moving.now)
    assert any(not torch.equal(w, old) for w, old in zip(weights, tree_leaves(stack.moving.now), strict=True))


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _in_double(job: Job) -> Job:
    shared, client = tree_map(_double, (job.shared, job.client))
    return job._replace(shared=shared, client=client)


def test_on_a_cpu_a_program_is_the_function_itself() -> None:
    x = torch.zeros(3)

    def count(held: dict[str, Tensor]) -> None:
        held["x"] += 1

    run = program(count, {"x": x}, say=pytest.fail)
    assert x.tolist() == [0, 0, 0]
    run()
    run()
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize(("number", "batch"), [(0, 500), (1, 1), (100, 100), (100, 50), (100, 30), (100, 500)])
def test_programs_tally_any_share_of_the_test_set(
    number: int, batch: int, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of many ranks may have none of it. In one batch, in equal parts, with padding."""
    monkeypatch.setattr(clean, "batch_of", lambda samples, images, net: batch)
    run = Simulation(a_run(data))
    given = run.net, run.method, run.state.server.shared, run.images, run.test[:number]
    counts = CleanPrograms(pytest.fail).tally(*given)
    assert counts["seen"].sum() == number
    for name, value in tally_of(*given).items():
        torch.testing.assert_close(counts[name], value)


@pytest.mark.parametrize(
    ("samples", "size", "fused", "expected"),
    [
        (1, 32, True, 1),
        (9_999, 28, True, 9_999),
        (10_000, 32, True, 10_000),
        (10_001, 32, True, 5_001),
        (25_000, 32, True, 8_334),
        (10_000, 64, True, 2_000),
        (10_000, 32, False, 2_000),
    ],
)
def test_test_images_go_in_equal_parts_where_kernels_need_little_memory(
    samples: int, size: int, fused: bool, expected: int
) -> None:
    on_a_gpu: Any = SimpleNamespace(is_cuda=True)
    pixels, one = torch.empty(1, size, size, 3), torch.ones(1)
    net: Any = SimpleNamespace(fused=fused)
    assert clean.batch_of(samples, Ready(pixels=pixels, labels=on_a_gpu, mean=one, std=one), net) == expected
    assert clean.batch_of(samples, Images(pixels=pixels, labels=on_a_gpu, mean=one, std=one), net) == 2_000
