"""From settings to everything a run needs: data, model, method, partition, device, and the whole resolved config."""

import contextlib
import ctypes
import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacd import data, models, partition
from fedacd.config import Config, Data
from fedacd.data import Dataset
from fedacd.engine.batches import Images
from fedacd.engine.plan import Stream, num_participants, torch_seed
from fedacd.environment import rank_and_size
from fedacd.errors import ConfigError, DataError, ModelError
from fedacd.lookup import of_another_python
from fedacd.methods import METHODS, Method, find
from fedacd.models import Factory
from fedacd.models.net import Net

# What cuBLAS needs to be deterministic; torch looks once, at the first matrix product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run that is ready to start; every mistake of the user's has been found by now."""

    config: Config
    dataset: Dataset
    method: Method
    net: Net
    members: Sequence[NDArray[np.int64]]
    """The samples of each client."""
    device: torch.device

    @property
    def out(self) -> Path:
        """The run's folder: `run.out`, or a name made from what decides the run."""
        config = self.config
        if config.run.out is not None:
            return Path(config.run.out).expanduser()
        skew = f"-beta{config.partition.beta:g}" if "dirichlet" in config.partition.scheme else ""
        name = f"{self.dataset.name}-{config.method.name}{skew}-seed{config.run.seed}-{config.digest()}"
        return Path("runs") / name.replace(":", "-")

    def at(self, folder: Path) -> "Setup":
        """The same run with another folder."""
        return dataclasses.replace(self, config=self.config.replace({"run.out": str(folder)}))


def prepare(
    values: Mapping[str, Any],
    *,
    dataset: Dataset | None = None,
    model: Factory | None = None,
    method: Method | None = None,
    members: Sequence[NDArray[np.int64]] | None = None,
    load: Callable[[str], Dataset] = data.load,
) -> Setup:
    """Resolve `section.key` settings; an object given from Python takes the place of the name in the settings.

    `load` finds the data of a name; several runs may share one that remembers.
    """
    _refuse_overruled(values, dataset, model, method, members)
    if members is not None:
        values = {"partition.clients": len(members), **values, "partition.scheme": "custom"}
    config = Config.build(values)
    device = _device(config)
    if method is not None:
        kind: type[Method] = type(method)
        config = config.replace({"method.name": _label(kind), **_options(method)})
    else:
        kind = find(config.method.name)
        kind.build(config.method.options)  # a wrong hyper-parameter is found before any data are read

    if dataset is not None:
        config = config.replace({"data.name": dataset.name})
    else:
        dataset = load(config.data.name)
    _check_data(config.data, dataset)
    if model is not None:
        config = config.replace({"model.name": models.label(model)})

    config = config.replace({"run.device": str(device)}).fill({"data.fingerprint": dataset.fingerprint})
    config, method = fill_open(config, kind, dataset)
    config, net = build_net(config, kind, dataset.shape, dataset.num_classes, model)
    return Setup(
        config=config,
        dataset=dataset,
        method=method,
        net=net,
        members=_members(config, dataset, members),
        device=device,
    )


def _refuse_overruled(
    values: Mapping[str, Any],
    dataset: Dataset | None,
    model: Factory | None,
    method: Method | None,
    members: Sequence[NDArray[np.int64]] | None,
) -> None:
    """A setting in whose place an object would come without a word."""
    objects: dict[str, object] = {}
    if dataset is not None:
        objects["data.name"] = dataset.name
    if model is not None:
        objects["model.name"] = models.label(model)
    if members is not None:
        objects |= {"partition.scheme": "custom", "partition.file": None}
    for key, name in objects.items():
        if values.get(key) not in (None, name):
            what = key.partition(".")[0].replace("data", "dataset")
            raise ConfigError(f"{key} = {values[key]!r} is set beside a {what} that is given itself: leave it out.")
    if method is not None and (given := sorted(key for key in values if key.startswith("method."))):
        raise ConfigError(f"{given[0]} is set beside a method object: give its value to the object.")


def fill_open(config: Config, kind: type[Method], dataset: Dataset) -> tuple[Config, Method]:
    """What is left open takes the data set's or the method's value."""
    config = config.fill(dataset.defaults)
    config = config.fill(kind.defaults(dataset.name, str(config.model.name)))
    config = config.fill({"data.mean": list(dataset.mean), "data.std": list(dataset.std)})
    method = kind.build(config.method.options)
    return config.replace(_options(method)), method


def build_net(
    config: Config, kind: type[Method], shape: tuple[int, int, int], num_classes: int, model: Factory | None = None
) -> tuple[Config, Net]:
    """The run's model with its initial weights, and the config with its fingerprint.

    Refused: a model that is not the config's any more, or that the method cannot work on. Whether it is the config's
    cannot be told under another Python: that is a warning.
    """
    weights_seed = torch_seed(config.run.seed, Stream.WEIGHTS)
    net = models.build(model or str(config.model.name), shape, num_classes, config.model.options, weights_seed)
    mark = models.fingerprint(model or str(config.model.name), net)
    if mark is not None:
        if (there := config.model.options.get("fingerprint", mark)) != mark:
            if not (python := of_another_python(there)):
                raise ModelError(f"model.fingerprint: '{config.model.name}' is not the model of this config any more.")
            what = f"whether '{config.model.name}' has changed cannot be told here"
            warnings.warn(f"model.fingerprint is of Python {python}: {what}.", stacklevel=2)
        config = config.replace({"model.fingerprint": mark})
    if kind.needs_features and not net.head_names:
        raise ModelError(
            f"method {kind.title} works on features, and model '{config.model.name}' has none: its forward does not "
            "end in an nn.Linear with one output per class (model.head names it)."
        )
    return config, net


def _check_data(settings: Data, dataset: Dataset) -> None:
    """What the user set must fit the data set that was found."""
    channels, *size = dataset.shape
    if dataset.num_classes < 2 or not len(dataset.x_test):
        raise DataError(f"data set {dataset.name} is a client's share: a run needs 2 classes or more and a test set.")
    if settings.fingerprint not in (None, dataset.fingerprint):
        raise ConfigError(
            f"data.fingerprint = {settings.fingerprint!r}: the data set {settings.name} here is another one, "
            f"{dataset.fingerprint}."
        )
    if (settings.crop or 0) >= min(size):
        raise ConfigError(f"data.crop = {settings.crop}: must be smaller than the images, {dataset.shape[1:]}.")
    for key, values in (("mean", settings.mean), ("std", settings.std)):
        if values is not None and len(values) != channels:
            raise ConfigError(f"data.{key} = {values}: must have {channels} values, one a channel.")


def _device(config: Config) -> torch.device:
    device = device_of(config.run.device, "run.device")
    _check_workers(config, device.type)
    if device.type == "cpu" and config.run.precision == "tf32":
        raise ConfigError("run.precision = 'tf32': only CUDA devices have it; use fp32 or bf16 on a CPU.")
    return device


def device_of(name: str, key: str) -> torch.device:
    """The device that a setting names; refused: one that this machine does not have. `key` is the setting's name."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # torchrun starts a process for each GPU
    kind, colon, number = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (colon and not number.isdigit())):
        raise ConfigError(f"{key} = {name!r}: must be cpu, cuda, cuda:N or auto.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"{key} = {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu or auto."
        )
    return torch.device(name)


def _check_workers(config: Config, kind: str) -> None:
    ranks, workers = rank_and_size()[1], config.run.workers or 1
    if kind == "cuda":
        most, what = torch.cuda.device_count(), "CUDA devices"
    else:
        most, what = cores(), "cores"
    if workers > 1 and (config.run.threads or 1) > 1:
        raise ConfigError(f"run.threads = {config.run.threads}: {workers} workers have one each; use run.workers = 1.")
    if workers > most:
        raise ConfigError(f"run.workers = {workers}: this machine has {most} {what} for them.")
    taking_part = num_participants(config.partition.clients, config.train.participation)
    if max(workers, ranks) > taking_part:
        clients = "1 client trains" if taking_part == 1 else f"{taking_part} clients train"
        raise ConfigError(f"run.workers = {max(workers, ranks)}: only {clients} in a round.")


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _label(kind: type[Method]) -> str:
    names = [name for name, known in METHODS.items() if known is kind]
    return names[0] if names else f"{kind.__module__}:{kind.__qualname__}"


def _options(method: Method) -> dict[str, Any]:
    mark = method.fingerprint()
    values = dataclasses.asdict(method) | ({} if mark is None else {"fingerprint": mark})
    return {f"method.{key}": value for key, value in values.items() if value is not None}


def _members(
    config: Config, dataset: Dataset, given: Sequence[NDArray[np.int64]] | None
) -> Sequence[NDArray[np.int64]]:
    if given is not None:
        return partition.check_lists(given, len(dataset.y_train), config.partition)
    return partition.split(dataset.y_train, dataset.num_classes, config.partition, config.run.seed)


@contextlib.contextmanager
def arithmetic(precision: str, threads: int | None = None, deterministic: bool = False) -> Iterator[None]:
    """Set what CUDA does with float32, tf32 only where it is asked for; how many CPU threads compute; and whether CUDA
    may try which convolution is the fastest, or must give the same bits every time. All of it
    comes back as it was, but for one thing: freed memory is kept from now on."""
    _keep_freed_memory()
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # type: ignore[attr-defined]
    before, threads_before = [switch.fp32_precision for switch in switches], torch.get_num_threads()
    for switch in switches:
        switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    torch.set_num_threads(threads or threads_before)
    tries_before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not deterministic
    # Not in vain: it imports torch's compiler, which takes a second.
    switched = deterministic and not torch.are_deterministic_algorithms_enabled()
    if switched:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        if switched:
            torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = tries_before
        torch.set_num_threads(threads_before)
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


@functools.cache
def _keep_freed_memory() -> None:
    """Have glibc keep what is freed: no more memory is in use, since the next step takes as much as the last.

    Otherwise a step's large tensors go back to the system and come again page by page: on a CPU a quarter of its
    time (docs/performance.md).
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        libc.mallopt(mmap_threshold, 32 * 2**20)  # the most that it accepts
        libc.mallopt(trim_threshold, 2**31 - 1)


def images_of(setup: Setup) -> Images:
    """The images of the data set on the device: those for training, then those for testing."""
    dataset, settings = setup.dataset, setup.config.data

    def on_device(*arrays: NDArray[Any]) -> Tensor:
        with warnings.catch_warnings():
            # Data sets are read-only arrays, which torch cannot mark as such; nothing here writes to them.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.cat([torch.from_numpy(array).to(setup.device) for array in arrays])

    return Images(
        pixels=on_device(dataset.x_train, dataset.x_test),
        labels=on_device(dataset.y_train, dataset.y_test),
        mean=torch.tensor(settings.mean, device=setup.device),
        std=torch.tensor(settings.std, device=setup.device),
        crop=settings.crop or 0,
    )
