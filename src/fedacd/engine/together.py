"""Which runs are trained together, and by what.

On a CUDA device: slots, for all runs that share a program. On a CPU: one client after the other, in as many processes
as there are cores.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedacd.engine.batches import Images
from fedacd.engine.crew import Loop, Trainer
from fedacd.engine.local import Job, begin, hyper_parameters
from fedacd.engine.plan import local_plan, num_participants, participants
from fedacd.engine.setup import Setup, cores
from fedacd.engine.slots import SLOTS, Slots, variable
from fedacd.engine.spread import can_fork
from fedacd.engine.trees import outline
from fedacd.errors import ConfigError

AT_ONCE = 12
"""Runs that share a GPU at a time: enough to keep the slots busy while some wait for their round's last client."""

Say = Callable[[str], None]


def groups(setups: Sequence[Setup]) -> list[list[Setup]]:
    """Runs that one trainer can work on at the same time, each group in the given order."""
    found: dict[str, list[Setup]] = {}
    tried: dict[str, tuple[list[str], str]] = {}
    for number, setup in enumerate(setups):
        shared = json.dumps(_program(setup, tried), sort_keys=True, default=_identity) if uses_slots(setup) else ""
        key = shared or f"run {number}"
        found.setdefault(key, []).append(setup)
    return list(found.values())


def uses_slots(setup: Setup) -> bool:
    return setup.device.type == "cuda" or setup.config.run.slots is not None


def trainer_for(group: Sequence[Setup], say: Say, at_once: int = AT_ONCE, ranks: int = 1) -> Trainer:
    """For so many runs at once, of whose clients a rank trains its share.

    `say` is told what a user should know: how long compiling took, that memory was short.
    """
    first = group[0].config
    if not uses_slots(group[0]):
        return Loop()
    try:
        names = variable(_tiny_job(group[0]))
    except Exception as error:
        say(f"training one client at a time: this run cannot be stacked ({type(error).__name__}: {str(error)[:160]})")
        return Loop()
    S = max(_steps(setup) for setup in group)
    useful = math.ceil(sum(_width(setup) for setup in group[:at_once]) / ranks)
    # The same bits alone and in company take the same number of slots.
    K = first.run.slots or (SLOTS if first.run.deterministic else min(SLOTS, useful))
    return Slots(K, S, names, say=say)


def workers_for(setup: Setup) -> int:
    """How many processes a run on a CPU is spread over."""
    wanted, threads = setup.config.run.workers, setup.config.run.threads or 1
    if uses_slots(setup) or wanted == 1 or (wanted is None and threads > 1):
        return 1
    if not can_fork():
        if wanted is None:
            return 1
        raise ConfigError(f"run.workers = {wanted}: this process cannot be forked any more; use 1, or torchrun.")
    return wanted or min(cores(), num_participants(len(setup.members), setup.config.train.participation))


def _steps(setup: Setup) -> int:
    """Of its longest client, in a round."""
    train = setup.config.train
    return train.epochs * math.ceil(max(map(len, setup.members)) / train.batch_size)


def _width(setup: Setup) -> float:
    """How many slots a run keeps busy: with more, the others wait for a round's longest client."""
    config, sizes = setup.config, np.array([len(members) for members in setup.members])
    steps = np.ceil(sizes / config.train.batch_size)
    ratio = config.train.participation
    rounds = [participants(config.run.seed, round_, len(sizes), ratio) for round_ in range(1, 51)]
    return float(sum(steps[chosen].sum() for chosen in rounds) / sum(steps[chosen].max() for chosen in rounds))


def _program(setup: Setup, tried: dict[str, tuple[list[str], str]]) -> Mapping[str, Any]:
    """What runs must have in common to share a program; `tried` keeps what was found about runs before."""
    config, method = setup.config, setup.method
    settings = config.flat()
    shared = {key: value for key, value in settings.items() if key.split(".")[0] in ("data", "model")}
    shared |= {"train.images": config.train.images, "train.batch_size": config.train.batch_size}
    shared |= {key: settings[key] for key in ("run.precision", "run.device", "run.slots", "run.deterministic")}
    shared["method"] = id(type(method))  # names may be those of several
    shared["model"] = setup.net.code()
    values = hyper_parameters(method)
    kind = json.dumps([shared, values], default=_identity)
    if kind not in tried:
        try:
            tiny = _tiny_job(setup)
            tried[kind] = variable(tiny), repr(outline(begin(tiny)))
        except Exception:  # whatever it is, training tells
            tried[kind] = [], ""
    free, shared["state"] = tried[kind]
    shared["values"] = {name: value for name, value in values.items() if name not in free}
    constants = hashlib.blake2b(digest_size=8)
    for name, tensor in setup.net.constants().items():
        constants.update(name.encode() + tensor.numpy().tobytes())
    return shared | {"constants": constants.hexdigest()}


def _identity(value: Any) -> str:
    """For what has no JSON: a tensor or an object is equal to itself alone."""
    return f"{type(value).__name__} {id(value)}"


def _tiny_job(setup: Setup) -> Job:
    """One step on two made samples: to try what a method and a model can do."""
    config, net, method = setup.config, setup.net, setup.method
    channels, *size = setup.dataset.shape
    constants = torch.tensor(config.data.mean), torch.tensor(config.data.std)
    pixels = torch.arange(2 * channels * math.prod(size)).remainder(251).to(torch.uint8).reshape(2, *size, channels)
    images = Images(
        pixels=pixels,
        labels=torch.tensor([0, 1]),
        mean=constants[0],
        std=constants[1],
        crop=config.data.crop or 0,
    )
    server = method.init_server(net, np.random.default_rng(0))
    counts = torch.ones(setup.dataset.num_classes, dtype=torch.int64)
    return Job(
        net=net,
        method=method,
        shared=server.shared,
        client=method.init_client(net, server.shared, counts),
        images=images,
        members=torch.tensor([0, 1]),
        test=torch.tensor([0, 1]),
        plan=local_plan(
            0, 1, 0, np.arange(2), config.replace({"train.batch_size": 2, "train.epochs": 1}).train, config.data
        ),
        train=config.train,
        lr=config.train.lr,
        seed=0,
        measure=False,
    )
