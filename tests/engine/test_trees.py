"""Trees of tensors, beside torch's own way through them."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as theirs

from fedacd.engine.trees import leaves, mapped, outline, refilled


class Pair(NamedTuple):
    first: Any
    second: Any


def number(value: float) -> Tensor:
    return torch.tensor(value)


TREES = [
    number(1),
    {},
    [],
    (number(1), [number(2), {"b": number(3), "a": number(4)}]),
    Pair({"z": number(1)}, Pair(number(2), ())),
    [Pair(number(1), {}), Pair(number(2), {})],
]


@pytest.mark.parametrize("tree", TREES)
def test_as_torch_does_it(tree: Any) -> None:
    tensors, spec = theirs.tree_flatten(tree)
    assert {*map(id, leaves(tree))} == {*map(id, tensors)} and len(leaves(tree)) == len(tensors)
    for found in (mapped(torch.neg, tree), refilled(tree, map(torch.neg, leaves(tree)))):
        negated, same_spec = theirs.tree_flatten(found)
        assert same_spec == spec and negated == [-tensor for tensor in tensors]


def test_the_order_of_a_dict_does_not_count() -> None:
    one, other = {"a": number(1), "b": [number(2)]}, {"b": [number(2)], "a": number(1)}
    assert leaves(one) == leaves(other) == [number(1), number(2)]
    assert outline(one) == outline(other)
    assert [*refilled(other, leaves(one))] == ["b", "a"] and refilled(other, leaves(one)) == other
    same = number(3)
    assert refilled([same, same], [number(4), number(5)]) == [number(4), number(5)]


def test_several_trees_at_once() -> None:
    one, other = Pair({"a": number(1), "b": number(2)}, ()), Pair({"b": number(20), "a": number(10)}, ())
    found = mapped(lambda *tensors: torch.stack(tensors), one, other)
    assert isinstance(found, Pair) and found.second == ()
    assert {name: value.tolist() for name, value in found.first.items()} == {"a": [1, 10], "b": [2, 20]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([number(1), number(2)], [number(1)]),
        ({"a": number(1)}, {"b": number(1)}),
        ({"a": number(1)}, {"a": number(1), "b": number(2)}),
        (Pair(number(1), ()), (number(1), ())),
        ([number(1)], torch.ones(1)),
    ],
)
def test_trees_that_differ_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(ValueError, match=r"differ|shorter"):
        mapped(torch.add, one, other)
    with pytest.raises((ValueError, TypeError)):
        mapped(torch.add, other, one)


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_and_too_many_tensors_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} tensors for"):
        refilled([number(1), number(2)], [number(1)] * count)


@pytest.mark.parametrize("other", [None, 1.0, "text"])
def test_what_is_not_a_tensor_is_refused(other: Any) -> None:
    for act in (leaves, outline, lambda tree: mapped(torch.neg, tree)):
        with pytest.raises(TypeError, match="in place of a tensor"):
            act({"a": [other]})


def test_the_outline_is_what_trees_have_in_common() -> None:
    like = [outline(tree) for tree in TREES]
    assert len(set(like)) == len(TREES)
    assert like == [outline(mapped(torch.neg, tree)) for tree in TREES]
    for other in (torch.tensor(1.0), torch.ones(1, dtype=torch.int64)):
        assert outline([other]) != outline([number(1)])
