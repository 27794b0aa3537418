"""Clean passes on a GPU: one model at a time over many samples, as a program that is replayed batch by batch."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from fedacd.engine.batches import Images
from fedacd.engine.local import WIDE_BATCH, Job, Sums, clean_batch, clean_pass, tally_of
from fedacd.engine.program import program
from fedacd.methods import Client, Method, Shared, Tensors, Trained
from fedacd.metrics import tally
from fedacd.models.net import Net

OfBatch = Callable[[Any, Images, Tensor, Tensor], Any]
"""Of a model's tensors, images, a batch of their indices and its weights, 0 for padding: sums."""


class CleanPrograms:
    """`clean_pass` and `tally_of` by programs, made when the first model of a kind comes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self.compile_seconds = say, 0.0
        self._made: dict[Any, tuple[Any, Any, Callable[[], None]]] = {}

    def __call__(self, job: Job, now: Trained, client: Client, samples: Tensor) -> Sums:
        if not samples.is_cuda:
            return clean_pass(job, now, client, samples)

        def of_batch(model: Any, images: Images, index: Tensor, w: Tensor) -> Sums:
            now, shared, client = model
            return clean_batch(job._replace(shared=shared, images=images), now, client, index, w)

        job.net.train(False)
        sums: Sums = self._over(samples, (now, job.shared, client), job.images, job.method, of_batch)
        return sums

    def tally(self, net: Net, method: Method, shared: Shared, images: Images, samples: Tensor) -> Tensors:
        """Of a global model."""
        if not samples.is_cuda:
            return tally_of(net, method, shared, images, samples)

        def of_batch(shared: Shared, images: Images, index: Tensor, w: Tensor) -> Tensors:
            return tally(method.predict(net, shared, images.clean(index)), images.labels[index], w)

        net.train(False)
        counts: Tensors = self._over(samples, shared, images, method, of_batch)
        return counts

    @torch.no_grad()
    def _over(self, samples: Tensor, model: Any, images: Images, method: Method, of_batch: OfBatch) -> Any:
        leaves, shape = tree_flatten(model)
        kind = (shape, repr(method))  # whose hyper-parameters are constants of a program
        if kind not in self._made:
            started = time.perf_counter()
            self._made[kind] = self._make(model, images, of_batch)
            self.compile_seconds += time.perf_counter() - started
        (held, index, w), sums, run = self._made[kind]
        torch._foreach_copy_(tree_leaves(held), leaves)
        torch._foreach_zero_(tree_leaves(sums))
        for part in torch.split(samples, WIDE_BATCH):
            if len(part) < WIDE_BATCH:
                w[len(part) :] = 0
            index[: len(part)] = part
            run()
        w.fill_(1)
        return tree_map(torch.clone, sums)

    def _make(self, model: Any, images: Images, of_batch: OfBatch) -> tuple[Any, Any, Callable[[], None]]:
        held = tree_map(torch.clone, model)
        index = torch.zeros(WIDE_BATCH, dtype=torch.int64, device=images.labels.device)
        w = torch.ones(WIDE_BATCH, device=images.labels.device)

        def run(held: Any, index: Tensor, w: Tensor, pictures: tuple[Tensor, ...], sums: Any) -> None:
            more = of_batch(held, images.of(*pictures), index, w)
            for total, part in zip(tree_leaves(sums), tree_leaves(more), strict=True):
                total.add_(part)

        sums = tree_map(torch.zeros_like, of_batch(held, images, index, w))
        return (held, index, w), sums, program(run, held, index, w, images.tensors, sums, say=self._say)
