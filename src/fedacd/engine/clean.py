"""Clean passes by programs: one model at a time over many samples, batch by batch without any work of the host."""

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedacd.engine.batches import Images, Ready
from fedacd.engine.local import CLEAN_BATCH, WIDE_BATCH, WIDEST_BATCH, Job, Sums, clean_batch
from fedacd.engine.program import aside, copy_all, program
from fedacd.engine.trees import leaves, mapped, outline
from fedacd.methods import Client, Method, Shared, Tensors, Trained
from fedacd.metrics import tally
from fedacd.models.net import Net

MOST_READY = 2**28
"""Bytes of test images that are kept normalised."""

OfBatch = Callable[[Any, Images, Tensor, Tensor], Any]
"""Of a model's tensors, images, a batch of their indices and its weights, 0 for padding: sums."""


class CleanPrograms:
    """`clean_pass` and `tally_of` by programs, made when the first model of a kind comes.

    Those beside training, which does not wait for them, make tallies alone.
    """

    def __init__(self, say: Callable[[str], None], *, beside_training: bool = False) -> None:
        self._say, self._beside, self.compile_seconds = say, beside_training, 0.0
        self._made: dict[Any, CleanProgram] = {}
        self._tests: dict[int, tuple[Images, Tensor]] = {}

    def __call__(self, job: Job, now: Trained, client: Client, samples: Tensor) -> Sums:
        def of_batch(model: Any, images: Images, index: Tensor, w: Tensor) -> Sums:
            job.net.train(False)  # of the run that the program was made for
            now, shared, client = model
            return clean_batch(
                job._replace(shared=shared, images=images), now, client, index, w, surveyed=not self._beside
            )

        images, index = self._test(job.images, samples) if samples is job.test else (job.images, samples)
        sums: Sums = self._over(index, (now, job.shared, client), images, job.net, job.method, of_batch)
        return sums

    def tally(self, net: Net, method: Method, shared: Shared, images: Images, samples: Tensor) -> Tensors:
        """Of a global model, over the test set or always the same part of it."""

        def of_batch(shared: Shared, images: Images, index: Tensor, w: Tensor) -> Tensors:
            net.train(False)
            return tally(method.predict(net, shared, images.clean(index)), images.labels[index], w)

        images, index = self._test(images, samples)
        counts: Tensors = self._over(index, shared, images, net, method, of_batch)
        return counts

    def _test(self, images: Images, samples: Tensor) -> tuple[Images, Tensor]:
        """Test images and their indices; normalised once, since every model looks at them, unless they are many.

        One of many ranks may have none.
        """
        number = len(samples)
        if not 0 < number * images.pixels[0].numel() * 4 <= MOST_READY:
            return images, samples
        if number not in self._tests:
            self._tests[number] = images.ready(samples), torch.arange(number, device=samples.device)
        return self._tests[number]

    @torch.no_grad()
    def _over(self, samples: Tensor, model: Any, images: Images, net: Net, method: Method, of_batch: OfBatch) -> Any:
        batch = batch_of(len(samples), images, net)
        # A method's hyper-parameters are constants of a program.
        kind = (outline(model), type(images), batch, type(method), repr(method))
        with aside((model, samples)) if self._beside else contextlib.nullcontext():
            if kind not in self._made:
                started = time.perf_counter()
                self._made[kind] = CleanProgram(model, images, batch, of_batch, self._say)
                self.compile_seconds += time.perf_counter() - started
            return self._made[kind](model, samples)


def batch_of(samples: int, images: Images, net: Net) -> int:
    """How many images go through a network at a time."""
    if not images.labels.is_cuda:
        return CLEAN_BATCH
    _, H, W, _ = images.pixels.shape
    if not (isinstance(images, Ready) and net.fused and H * W <= 32 * 32):
        return WIDE_BATCH
    return math.ceil(samples / math.ceil(samples / WIDEST_BATCH))  # all of them, or equal parts


class CleanProgram:
    """One program. A model and its samples are copied in, and the position among them advances on the device."""

    def __init__(self, model: Any, images: Images, batch: int, of_batch: OfBatch, say: Callable[[str], None]) -> None:
        device, self._batch = images.labels.device, batch
        self._model = mapped(torch.clone, model)
        self._samples = torch.zeros(len(images.labels) + self._batch, dtype=torch.int64, device=device)
        self._bounds = torch.zeros(2, dtype=torch.int64, device=device)
        """The next sample, and their number."""
        within = torch.arange(self._batch, device=device)
        first = of_batch(self._model, images, within * 0, torch.ones(self._batch, device=device))
        self._sums = sums = mapped(torch.zeros_like, first)

        def run(
            model: Any, samples: Tensor, bounds: Tensor, within: Tensor, pictures: tuple[Tensor, ...], sums: Any
        ) -> None:
            position = bounds[0] + within
            index, w = samples[position.clamp(max=len(samples) - 1)], (position < bounds[1]).to(torch.float32)
            more = of_batch(model, images.of(*pictures), index, w)
            for total, part in zip(leaves(sums), leaves(more), strict=True):
                total.add_(part)
            bounds.copy_(torch.stack([bounds[0] + len(within), bounds[1]]))

        self._run = program(run, self._model, self._samples, self._bounds, within, images.tensors, sums, say=say)

    def __call__(self, model: Any, samples: Tensor) -> Any:
        copy_all(leaves(self._model), leaves(model))
        torch._foreach_zero_(leaves(self._sums))
        self._samples[: len(samples)] = samples
        self._bounds.zero_()[1:].fill_(len(samples))  # no copy from the host, which would wait for the device
        for _ in range(0, len(samples), self._batch):
            self._run()
        return mapped(torch.clone, self._sums)
