"""The federation by Flower's simulation: FedAvg, and a ClientApp that trains as the plain loop does.

Every client has a CPU core of its own; on a GPU eight clients share it at a time. ray keeps the processes, and each
reads the data when it first needs them, in the round that is not timed.
"""

import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import torch

from fedacd.bench import plain, workload
from fedacd.bench.contestants import Contestant
from fedacd.bench.job import Job
from fedacd.bench.machine import peak_memory
from fedacd.bench.measure import Event, Measured, window
from fedacd.bench.workload import Workload
from fedacd.models import CNN

SHARING_A_GPU = 8


@functools.cache
def _client_side(work: Workload, device: str) -> tuple[list[torch.Tensor], plain.Data, plain.Recipe]:
    """What a ray process needs to train any client."""
    dataset, _ = workload.load(work)
    setup = workload.setups(work, dataset, {"run.device": device})[0]
    where = torch.device(device)
    members = [torch.from_numpy(members).to(where) for members in setup.members]
    return members, workload.plain_data(setup, where), workload.plain_recipe(setup)


def train(work: Workload, device: str, message: Any, context: Any) -> Any:
    """The ClientApp: load the global weights, train, send back."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    members, data, recipe = _client_side(work, device)
    index = members[context.node_config["partition-id"]]
    model = CNN((3, *data.images.shape[2:]), data.num_classes)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.to(device)
    plain.train_client(model, data, index, recipe, recipe.lr)
    about = {"num-examples": len(index), "process": os.getpid(), "memory": peak_memory(torch.device(device))}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(about)}
    return Message(content=RecordDict(content), reply_to=message)


def run(job: Job, work: Workload, contestant: Contestant) -> Measured:
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    dataset, real = workload.load(work)
    rounds = job.rounds + 1
    events: list[Event] = []
    memory: dict[int, int] = {}
    trained: list[int] = []

    def gather(replies: Sequence[Any], _: str) -> Any:
        about = [reply["metrics"] for reply in replies]
        memory.update({one["process"]: one["memory"] for one in about})
        trained.append(sum(one["num-examples"] for one in about))
        return MetricRecord({"num-examples": trained[-1]})

    def note(round_: int, _: Any) -> None:
        if round_:
            events.append(Event(0, round_, time.perf_counter(), work.epochs * trained[round_ - 1]))

    def serve(grid: Any, context: Any) -> None:
        torch.manual_seed(0)
        start = CNN(dataset.shape, dataset.num_classes)
        strategy = FedAvg(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
            train_metrics_aggr_fn=gather,
        )
        strategy.start(grid, ArrayRecord(start.state_dict()), num_rounds=rounds, evaluate_fn=note)

    kind, _, number = job.device.partition(":")
    if number:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", number)  # ray counts what it sees from 0
    client_app, server_app = ClientApp(), ServerApp()
    client_app.train()(functools.partial(train, work, kind))
    server_app.main()(serve)
    on_gpu = kind == "cuda"
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 1 / SHARING_A_GPU if on_gpu else 0.0}},
    )
    samples, seconds = window(events, rounds + 1)
    return Measured(
        samples=samples,
        seconds=seconds,
        rounds=job.rounds,
        real_data=real,
        peak_memory=sum(memory.values()),
        how=f"{len(memory)} processes" + ("" if on_gpu else ", 1 core each"),
    )
