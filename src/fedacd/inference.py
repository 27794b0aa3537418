"""A trained global model, ready to be asked."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedacd import models
from fedacd.engine.batches import Images
from fedacd.engine.local import CLEAN_BATCH
from fedacd.engine.setup import arithmetic
from fedacd.errors import DataError, RecordError
from fedacd.files import read_safetensors
from fedacd.lookup import of_another_python
from fedacd.methods import METHODS, Method, Shared, Tensors, find
from fedacd.models import Factory
from fedacd.models.net import Net
from fedacd.records import CONSTANTS, MODEL

ABOUT = ("model", "model_options", "method", "method_options", "shape", "mean", "std", "class_names")
"""What a file of a model says beside its tensors."""


class GlobalModel:
    """Callable: uint8 images [N, H, W, channels] (or [N, H, W]) -> class probabilities [N, C], in full precision."""

    def __init__(
        self,
        net: Net,
        method: Method,
        shared: Shared,
        *,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        std: Sequence[float],
        class_names: Sequence[str],
    ) -> None:
        self.net, self.method, self.shared = net, method, shared
        self.shape, self.class_names = tuple(shape), tuple(class_names)
        self._mean, self._std = torch.tensor(mean), torch.tensor(std)

    @torch.no_grad()
    def __call__(self, images: Any) -> Tensor:
        # A copy: a data set's arrays are read-only, which torch cannot mark as such.
        pixels = torch.tensor(np.ascontiguousarray(images)) if not isinstance(images, Tensor) else images.cpu()
        channels, height, width = self.shape
        if pixels.ndim == 3 and channels == 1:
            pixels = pixels[..., None]
        if pixels.dtype != torch.uint8 or pixels.shape[1:] != (height, width, channels):
            raise DataError(
                f"images are {pixels.dtype} {list(pixels.shape)}: must be uint8 [N, {height}, {width}, {channels}]."
            )
        self.net.train(False)
        device = next(iter(self.shared.params.values())).device
        source = Images(pixels=pixels, labels=torch.empty(0), mean=self._mean, std=self._std)
        with arithmetic("fp32"):
            logits = [
                self.method.predict(self.net, self.shared, source.clean(index).to(device)).cpu()
                for index in torch.split(torch.arange(len(pixels)), CLEAN_BATCH)
            ]
        return torch.cat(logits).softmax(-1)

    def predict(self, images: Any) -> Tensor:
        """Class numbers [N]; `class_names` says what they mean."""
        return self(images).argmax(-1)

    @classmethod
    def load(
        cls, path: str | Path, *, model: str | Factory | None = None, method: str | Method | type[Method] | None = None
    ) -> "GlobalModel":
        """Read a model.safetensors, or that of a run's folder. A model or method of one's own is given again, itself or
        by its name: the file holds data, and does not choose what is run."""
        path = Path(path)
        path = path / MODEL if path.is_dir() else path
        tensors, about = read_safetensors(path, "model")
        if lacking := [key for key in ABOUT if key not in about]:
            raise RecordError(f"{path} does not say its {lacking[0]}.")
        for key, given, known in (("model", model, models.MODELS), ("method", method, METHODS)):
            if given is None and about[key] not in known:
                raise RecordError(f"{path} needs your own {key} '{about[key]}': give it, load(..., {key}=...).")
        shape = tuple(about["shape"])
        net = models.build(model or about["model"], shape, len(about["class_names"]), about["model_options"], seed=0)
        if not isinstance(method, Method):
            kind = method if isinstance(method, type) else find(method or about["method"])
            method = kind.build(about["method_options"])
        parts: dict[str, Tensors] = {part: {} for part in (*Shared._fields, CONSTANTS)}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            parts[part][key] = tensor
        constants = parts.pop(CONSTANTS)
        for part, wanted in method.init_server(net, np.random.default_rng(0)).shared._asdict().items():
            here, there = ({key: list(t.shape) for key, t in group.items()} for group in (wanted, parts[part]))
            for key in sorted(here | there):
                if here.get(key) != there.get(key):
                    what = f"'{key}' is {there.get(key)} there and {here.get(key)} here"
                    raise RecordError(f"{path} is of another model or method: {what}.")
        for name, tensor in net.constants().items():
            if name not in constants or constants[name].shape != tensor.shape:
                raise RecordError(f"{path}: it does not hold the model's constant '{name}' as {list(tensor.shape)}.")
            tensor.copy_(constants[name])
        trained = about["model_options"].get("fingerprint")
        if trained not in (None, models.fingerprint(model or about["model"], net)):
            text = "by its source or layers this is not the model that was trained; it may answer otherwise"
            if python := of_another_python(trained):
                text = f"trained under Python {python}: whether the model's source has changed cannot be told here"
            warnings.warn(f"{path}: {text}.", stacklevel=2)
        return cls(
            net,
            method,
            Shared(**parts),
            shape=shape,
            mean=about["mean"],
            std=about["std"],
            class_names=about["class_names"],
        )
