"""Trees of tensors: tensors in dicts, tuples, named tuples and lists.

What torch.utils._pytree does, for these alone: the host of a GPU goes through them for every client, and torch's way
took it a third of its time.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in its order."""
    found: list[Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    else:
        for part in _parts(tree):
            _collect(part, found)


def _parts(tree: Any) -> Iterable[Any]:
    if isinstance(tree, dict):
        return tree.values()
    if isinstance(tree, (tuple, list)):
        return tree
    raise TypeError(f"{tree!r} in place of a tensor")


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree like the first, of what `function` makes of its tensors and of those at the same places in the others."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    for other in others:
        if type(other) is not type(tree) or (isinstance(tree, dict) and other.keys() != tree.keys()):
            raise ValueError(f"trees that differ: {outline(tree)} and {outline(other)}")
    if isinstance(tree, dict):
        return {name: mapped(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    parts = [mapped(function, *each) for each in zip(_parts(tree), *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def leaves_as(tree: Any, other: Any) -> list[Tensor]:
    """The tensors of the other tree in the order of the first: names count, not the order of a dict."""
    found: list[Tensor] = []
    mapped(lambda _, tensor: found.append(tensor), tree, other)
    return found


def refilled(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """A tree like this one, of other tensors in the order of `leaves`."""
    others = list(tensors)
    if len(others) != len(leaves(tree)):
        raise ValueError(f"{len(others)} tensors for {outline(tree)}")
    others.reverse()
    return mapped(lambda _: others.pop(), tree)


def outline(tree: Any) -> Any:
    """What two trees have in common that differ in their tensors alone; hashable."""
    if isinstance(tree, Tensor):
        return None
    names = tuple(tree) if isinstance(tree, dict) else type(tree)
    return names, tuple(map(outline, _parts(tree)))
