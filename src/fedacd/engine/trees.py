"""Trees of tensors: tensors in dicts, tuples, named tuples and lists.

What torch.utils._pytree does, for these alone: the host of a GPU goes through them for every client, and there torch's
took a third of its time.
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
        return
    for part in tree.values() if isinstance(tree, dict) else tree:
        _collect(part, found)


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree like the first, of what `function` makes of its tensors and of those at the same places in the others."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {name: mapped(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    parts = [mapped(function, *each) for each in zip(tree, *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def refilled(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """A tree like this one, of other tensors in the order of `leaves`."""
    others = iter(tensors)
    return mapped(lambda _: next(others), tree)


def outline(tree: Any) -> Any:
    """What two trees have in common that differ in their tensors alone; hashable."""
    if isinstance(tree, Tensor):
        return None
    names = tuple(tree) if isinstance(tree, dict) else type(tree)
    return names, tuple(map(outline, tree.values() if isinstance(tree, dict) else tree))
