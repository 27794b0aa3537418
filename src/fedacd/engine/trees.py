"""Trees of tensors: tensors in dicts, tuples, named tuples and lists.

What torch.utils._pytree does, for these alone: the host of a GPU goes through them for every client, and torch's way
took it a third of its time.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a tree, those of a dict by their names: trees that differ in the order of a dict give the same."""
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
        return [tree[name] for name in sorted(tree)]
    if isinstance(tree, (tuple, list)):
        return tree
    raise TypeError(f"{tree!r} in place of a tensor")


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree like the first, of what `function` makes of its tensors and of those at the same places in the others."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    is_dict = isinstance(tree, dict)
    for other in others:
        alike = isinstance(other, dict) and other.keys() == tree.keys() if is_dict else type(other) is type(tree)
        if not alike:
            raise ValueError(f"trees that differ: {outline(tree)} and {outline(other)}")
    if is_dict:
        return {name: mapped(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    return _like(tree, [mapped(function, *each) for each in zip(_parts(tree), *others, strict=True)])


def _like(tree: Any, parts: list[Any]) -> Any:
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def alike(new: Tensor, old: Tensor) -> Tensor:
    """The new one, where it is of the old one's type and shape."""
    if new.dtype != old.dtype or new.shape != old.shape:
        raise ValueError(f"{old.dtype} {list(old.shape)} has become {new.dtype} {list(new.shape)}")
    return new


def refilled(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """A tree like this one, of other tensors in the order of `leaves`."""
    others = list(tensors)
    if len(others) != len(leaves(tree)):
        raise ValueError(f"{len(others)} tensors for {outline(tree)}")
    others.reverse()
    return _filled(tree, others)


def _filled(tree: Any, others: list[Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return others.pop()
    parts = [_filled(part, others) for part in _parts(tree)]
    if isinstance(tree, dict):
        by_name = dict(zip(sorted(tree), parts, strict=True))
        return {name: by_name[name] for name in tree}
    return _like(tree, parts)


def outline(tree: Any) -> Any:
    """What trees have in common that differ in their tensors' values alone, or in the order of dicts; hashable."""
    if isinstance(tree, Tensor):
        return tree.dtype, tree.shape
    names = tuple(sorted(tree)) if isinstance(tree, dict) else type(tree)
    return names, tuple(map(outline, _parts(tree)))
