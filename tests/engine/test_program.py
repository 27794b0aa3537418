"""The rules by which a stacked convolution is traced, against plain convolution; and a whole traced step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from fedacd.data import Dataset
from fedacd.engine.local import Job
from fedacd.engine.program import DECOMPOSITIONS, program
from fedacd.engine.rounds import Simulation
from fedacd.engine.slots import _all_slots, _slot_of
from fedacd.methods import METHODS
from tests.engine.test_slots import a_run, some

aten = torch.ops.aten


def traced(function: Callable[..., Any], *arguments: Tensor) -> Callable[..., Any]:
    with torch.no_grad():
        return make_fx(function, DECOMPOSITIONS)(*arguments)


def grouped(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **how: Any) -> Tensor:
    return F.conv2d(x, weight, bias, groups=groups, **how)


SHAPES = pytest.mark.parametrize(
    ("groups", "channels", "out", "batch", "size", "kernel", "how"),
    [
        (1, 3, 4, 2, (8, 8), (3, 3), {}),
        (3, 1, 5, 4, (8, 8), (3, 3), {"padding": 1}),
        (4, 3, 6, 5, (9, 7), (5, 5), {"padding": 2}),
        (2, 3, 7, 8, (11, 11), (5, 5), {"stride": 2}),
        (5, 2, 3, 3, (7, 10), (3, 2), {"stride": (2, 3), "padding": (1, 0)}),
        (2, 8, 8, 2, (6, 6), (3, 3), {"padding": 1}),
        (2, 9, 5, 1, (5, 5), (1, 1), {}),
        (3, 3, 4, 6, (9, 9), (3, 3), {"dilation": 2, "padding": 2}),
        (2, 3, 4, 3, (8, 8), (3, 3), {"padding": 1, "stride": 2, "dilation": 2}),
        (24, 3, 8, 16, (8, 8), (5, 5), {}),
    ],
    ids=str,
)


@SHAPES
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("of_x", [True, False], ids=["gradient of x", "not of x"])
def test_convolutions_by_the_rules_are_convolutions(
    groups: int, channels: int, out: int, batch: int, size: tuple[int, int], kernel: tuple[int, int],
    how: dict[str, Any], has_bias: bool, of_x: bool,
) -> None:  # fmt: skip
    """Forward, and backward with respect to everything; a network's first layer has no gradient of its input."""
    double = {"dtype": torch.float64}
    x = torch.randn(batch, groups * channels, *size, **double)  # type: ignore[call-overload]
    weight = torch.randn(groups * out, channels, *kernel, **double)  # type: ignore[call-overload]
    inputs = [x, weight] + ([torch.randn(groups * out, **double)] if has_bias else [])  # type: ignore[call-overload]
    weights = torch.randn_like(grouped(x, weight, None, groups, **how))

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        leaves = [value.detach().requires_grad_(of_x or at > 0) for at, value in enumerate(given)]
        with torch.enable_grad():
            made = grouped(leaves[0], leaves[1], leaves[2] if has_bias else None, groups, **how)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            found = torch.autograd.grad((made * weights).sum(), wanted)
        return made.detach(), *found

    expected = run(*inputs)
    assert len(expected) == 1 + len(inputs) - (not of_x)
    torch.testing.assert_close(traced(run, *inputs)(*inputs), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False), (True, False, False), (False, False, True)])
def test_the_backward_rule_gives_what_is_asked_for(mask: tuple[bool, bool, bool]) -> None:
    x, weight = torch.randn(4, 6, 8, 8, dtype=torch.float64), torch.randn(10, 3, 3, 3, dtype=torch.float64)
    gradient = torch.randn(4, 10, 8, 8, dtype=torch.float64)

    def run(gradient: Tensor, x: Tensor, weight: Tensor) -> Any:
        return aten.convolution_backward(
            gradient, x, weight, [10], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, list(mask)
        )  # fmt: skip

    found, expected = traced(run, gradient, x, weight)(gradient, x, weight), run(gradient, x, weight)
    for mine, theirs, asked in zip(found, expected, mask, strict=True):
        assert (theirs is not None) == asked
        if asked:
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "run",
    [
        lambda x, w: F.conv_transpose2d(x, w.transpose(0, 1), padding=1),
        lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0]),
        lambda x, w: F.conv3d(x[:, :, None], w[:, :, None]),
        lambda x, w: F.conv2d(x, w, padding="same"),
        lambda x, w: F.conv2d(x[0], w),
    ],
    ids=["transposed", "1d", "3d", "same", "one image"],
)
def test_other_convolutions_stay_what_they_are(run: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, weight = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(traced(run, x, weight)(x, weight), run(x, weight), rtol=1e-10, atol=1e-10)


def test_no_narrow_convolution_is_left_in_a_stacked_step_of_three_channels() -> None:
    """Against the rules being passed by: what is traced is not the grouped convolution of three channels."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        return torch.vmap(F.conv2d)(x, w)

    graph: Any = traced(run, torch.randn(5, 2, 3, 8, 8), torch.randn(5, 4, 3, 3, 3))
    left = [node for node in graph.graph.nodes if node.target is aten.convolution.default]
    assert all(node.args[1].meta["val"].shape[1] % 8 == 0 for node in left)


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


@pytest.mark.parametrize("name", METHODS)
def test_a_traced_step_of_all_slots_equals_the_untraced(name: str, data: Dataset) -> None:
    """In float64, so that only a wrong rule shows; two steps, so that the second uses what the first left."""
    jobs = list(Simulation(a_run(data, name)).open().values())[:3]
    for job in jobs:
        job.net.train(True)
    S = max(job.plan.steps for job in jobs)
    stack = tree_map(lambda *tensors: torch.stack(tensors), *[_slot_of(job, S, {}) for job in jobs])
    stack, pictures = tree_map(_double, (stack, jobs[0].images.tensors))
    flat, spec = tree_flatten((stack, pictures))
    step = _all_slots(_in_double(jobs[0]))

    def run(*flat: Tensor) -> None:
        step(*tree_unflatten(list(flat), spec))

    mine, theirs = ([tensor.clone() for tensor in flat] for _ in range(2))
    graph = traced(run, *(tensor.clone() for tensor in flat))
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
