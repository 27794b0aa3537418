"""Clean passes on a GPU: one model at a time over many samples, as a program that is replayed batch by batch."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from fedacd.engine.local import WIDE_BATCH, Job, Sums, clean_batch, clean_pass
from fedacd.engine.program import program
from fedacd.methods import Client, Trained


class CleanProgram:
    """`clean_pass` by a program, made when the first client of its kind comes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self.compile_seconds = say, 0.0
        self._made: dict[Any, tuple[Any, Sums, Callable[[], None]]] = {}

    def __call__(self, job: Job, now: Trained, client: Client, samples: Tensor) -> Sums:
        if not samples.is_cuda:
            return clean_pass(job, now, client, samples)
        given = (now, job.shared, client)
        leaves, shape = tree_flatten(given)
        kind = (shape, repr(job.method))  # whose hyper-parameters are constants of a program
        if kind not in self._made:
            started = time.perf_counter()
            self._made[kind] = self._make(job, given)
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
        return tree_map(torch.clone, sums)  # type: ignore[no-any-return]

    def _make(self, job: Job, given: Any) -> tuple[Any, Sums, Callable[[], None]]:
        job.net.train(False)
        held = tree_map(torch.clone, given)
        index = torch.zeros(WIDE_BATCH, dtype=torch.int64, device=job.members.device)
        w = torch.ones(WIDE_BATCH, device=job.members.device)

        def of_batch(held: Any, index: Tensor, w: Tensor, pictures: tuple[Tensor, ...]) -> Sums:
            now, shared, client = held
            return clean_batch(job._replace(shared=shared, images=job.images.of(*pictures)), now, client, index, w)

        def run(held: Any, index: Tensor, w: Tensor, pictures: tuple[Tensor, ...], sums: Sums) -> None:
            for total, more in zip(tree_leaves(sums), tree_leaves(of_batch(held, index, w, pictures)), strict=True):
                total.add_(more)

        with torch.no_grad():
            sums = tree_map(torch.zeros_like, of_batch(held, index, w, job.images.tensors))
        return (held, index, w), sums, program(run, held, index, w, job.images.tensors, sums, say=self._say)
