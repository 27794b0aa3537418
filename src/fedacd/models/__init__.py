"""Models by name, and how to bring your own.

A model is chosen by a name of `MODELS`, by `package.module:callable` (the current folder is searched first), or in
Python by a class or function that makes an nn.Module. Such a factory is called by keyword with what its signature
names of

    num_classes     C
    in_channels     1 or 3
    image_size      (H, W)
    shape           (channels, H, W)

and with the model's options (`model.width = 32` reaches an argument `width`). A signature with **kwargs takes any
option, and of the above `num_classes` beside what it names. The option `head` is not passed on: it names the layer that
makes logits of features (see `fedacd.models.net`). Nor is `fingerprint`, which stands for the code and the layers of a
factory that is not in `MODELS`: a run is not continued with a model that has changed.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from fedacd.errors import ModelError, unknown
from fedacd.lookup import code_mark, imported
from fedacd.models.cnn import CNN, SmallCNN
from fedacd.models.net import Net, Shape, wrap
from fedacd.models.resnet import ResNet18

__all__ = ["CNN", "MODELS", "Factory", "Net", "ResNet18", "SmallCNN", "build", "fingerprint", "label", "wrap"]

Factory = Callable[..., nn.Module]

MODELS: dict[str, Factory] = {"cnn": CNN, "small-cnn": SmallCNN, "resnet18": ResNet18}


def build(name: str | Factory, shape: Shape, num_classes: int, options: Mapping[str, Any], seed: int) -> Net:
    """The model for images of `shape` (channels, H, W); its initial weights depend on the seed alone."""
    shown = label(name)
    factory = _find(name) if isinstance(name, str) else name
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ModelError(
            f"model '{shown}' is an object of {type(factory).__name__}, not what makes one: give a class or a function "
            "that makes the nn.Module, so that every seed starts from weights of its own."
        )
    options = dict(options)
    head = options.pop("head", None)
    options.pop("fingerprint", None)
    if head is not None and not isinstance(head, str):
        raise ModelError(f"model.head = {head!r}: must be the name of a layer.")
    arguments = _arguments(factory, shown, shape, num_classes, options)
    # A key of its own: no other draw of the run starts from the same numbers.
    start = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1, np.uint64)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(start))
        module = _call(factory, shown, arguments)
        return wrap(module, shape, num_classes, head, name=shown)


def fingerprint(name: str | Factory, net: Net) -> str | None:
    """16 hex digits and the Python they hold for: they change with the layers or the code of a model of one's own and
    of its factory (see `code_mark`); None for those of `MODELS`."""
    shown = label(name)
    if shown in MODELS:
        return None
    factory = _find(name) if isinstance(name, str) else name
    return code_mark((factory, net.description), [shown.partition(":")[0].partition(".")[0]])


def label(name: str | Factory) -> str:
    """What a record calls a model: its name, or 'package.module:qualname' of a factory of one's own."""
    if isinstance(name, str):
        return name
    for known, factory in MODELS.items():
        if factory is name:
            return known
    while isinstance(name, functools.partial):  # of a registered factory it is one's own
        name = name.func
    named = name if hasattr(name, "__qualname__") else type(name)
    return f"{named.__module__}:{named.__qualname__}"


def _find(name: str) -> Any:
    """What stands behind a registered name or `package.module:callable`."""
    if ":" in name:
        return imported(name, "model", ModelError)
    if name not in MODELS:
        raise ModelError(unknown("model", name, MODELS) + " Your own: package.module:callable.")
    return MODELS[name]


def _arguments(
    factory: Factory, shown: str, shape: Shape, num_classes: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What to call the factory with; an option that it does not take is refused."""
    context = {"num_classes": num_classes, "in_channels": shape[0], "image_size": shape[1:], "shape": shape}
    try:
        parameters = inspect.signature(factory).parameters.values()
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    except ValueError:  # compiled code without a signature
        parameters, open_ended = {}.values(), True
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for option in options:
        if option in context or not (option in accepted or open_ended):
            known = accepted - context.keys() | {"head"}
            raise ModelError(f"model.{option} for model '{shown}': " + unknown("option", option, known))
    if open_ended:
        accepted.add("num_classes")
    return {key: value for key, value in context.items() if key in accepted} | dict(options)


def _call(factory: Factory, shown: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        module = factory(**arguments)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"model '{shown}', called with {', '.join(arguments) or 'nothing'}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"model '{shown}' must make an nn.Module, not {type(module).__name__}.")
    return module
