"""The federation by pfl: its simulated backend, FederatedAveraging and PyTorchModel.

On a CPU there is one process a core, started by torchrun: pfl then joins them with torch.distributed (gloo), deals the
round's clients out and sums their updates. On a GPU it is one process, since pfl gives every process a GPU of its own.
Local training is pfl's: it does not shuffle a client's samples, which is a little less work than the others do.
"""

import os
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedacd.bench import plain, workload
from fedacd.bench.contestants import Contestant
from fedacd.bench.engines import at_work
from fedacd.bench.job import Job
from fedacd.bench.machine import peak_memory
from fedacd.bench.measure import Event, Measured, window
from fedacd.bench.workload import Workload
from fedacd.models import CNN


class Model(CNN):
    """The paper's CNN with what pfl asks of a model: its loss on raw images, and its metrics."""

    def __init__(self, data: plain.Data, recipe: plain.Recipe) -> None:
        super().__init__((3, *data.images.shape[2:]), data.num_classes)
        self.data, self.recipe = data, recipe

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self(self.data.normalise(plain.augment(x, self.recipe.crop, self.recipe.flip))), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        self.eval()
        return {"loss": Weighted(float(F.cross_entropy(self(self.data.normalise(x)), y, reduction="sum")), len(y))}


class Clock:
    """A pfl callback that notes when a round is over."""

    def __init__(self, samples: int, device: torch.device) -> None:
        self.events: list[Event] = []
        self._samples, self._device = samples, device

    def on_train_begin(self, *, model: Any) -> Any:
        from pfl.metrics import Metrics

        return Metrics()

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        from pfl.metrics import Metrics

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.events.append(Event(0, central_iteration + 1, time.perf_counter(), self._samples))
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        """Nothing to do."""


def run(job: Job, work: Workload, contestant: Contestant) -> Measured | None:
    """One process's part; only the first one has a result."""
    os.environ["PFL_PYTORCH_DEVICE"] = job.device
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.model.pytorch import PyTorchModel

    device = torch.device(job.device)
    dataset, real = workload.load(work)
    setup = workload.setups(work, dataset, {"run.device": job.device})[0]
    data, recipe = workload.plain_data(setup, device), workload.plain_recipe(setup)
    clients = {
        number: [data.images[torch.from_numpy(members)], data.labels[torch.from_numpy(members)]]
        for number, members in enumerate(setup.members)
    }
    np.random.seed(0)  # every process draws the same rounds
    torch.manual_seed(0)
    users = FederatedDataset.from_slices(clients, get_user_sampler("random", list(clients)))
    module = Model(data, recipe).to(device)

    def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr, recipe.momentum, weight_decay=recipe.weight_decay)

    model = PyTorchModel(module, sgd, central_optimizer=torch.optim.SGD(module.parameters(), 1.0))
    rounds = job.rounds + 1  # the first one is the warm-up, and the one that pfl evaluates
    clock = Clock(sum(map(len, setup.members)) // work.clients * work.cohort * work.epochs, device)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=work.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_batch_size=recipe.batch_size,
            local_num_epochs=recipe.epochs,
            local_learning_rate=recipe.lr,
            local_max_grad_norm=recipe.clip,
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    processes = pytorch_ops.distributed.world_size
    memory = torch.tensor(float(peak_memory(device)), dtype=torch.float64)
    if processes > 1:
        torch.distributed.all_reduce(memory)
        if pytorch_ops.distributed.global_rank:
            return None
    samples, seconds = window(clock.events, rounds + 1)
    return Measured(
        samples=samples,
        seconds=seconds,
        rounds=job.rounds,
        real_data=real,
        peak_memory=int(memory),
        how=at_work(processes, device),
    )
