"""A site's round: the engine's own training on the site's own data.

What a client keeps between rounds (`Client`) lies in one file on the site's disk, replaced as a whole. It holds two
states: the one that the last round was trained from and the one that it led to. The server says in which round it last
took a reply of this site's, and the site goes on from the state of that round. So a reply that came too late, a round
that is repeated and a server that is set back to its checkpoint leave no trace, and a restarted site loses nothing.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedacd import data, partition
from fedacd.config import Config, Settings, setting
from fedacd.data import NAMED, Dataset
from fedacd.data.dataset import numbered
from fedacd.engine.batches import Images
from fedacd.engine.local import Job, run_client
from fedacd.engine.plan import Stream, generator, local_plan, torch_seed
from fedacd.engine.setup import arithmetic, build_net, device_of
from fedacd.engine.trees import mapped
from fedacd.errors import ConfigError, DataError, RecordError
from fedacd.files import read_safetensors, write_safetensors, writing
from fedacd.methods import Client, Method, Reply, Server, Shared, Tensors, find


@dataclass(frozen=True, kw_only=True)
class Node(Settings):
    """What a site says of itself with --node-config, dashes for underscores."""

    section: ClassVar[str] = "node-config"
    partition_id: int = setting(-1, "the site's client number, from 0", at_least=0)
    num_partitions: int | None = setting(
        None, "clients that share `data`; left out: all of it is the site's", at_least=1
    )
    data: str = setting("", "a known name, an .npz file or a folder of class folders")
    state: str | None = setting(None, "folder for what the site keeps between rounds")
    packages: str = setting("", "whose models and methods a run may name, such as 'ours, theirs'; fedacd's always")
    device: str = setting("cpu", "cpu, cuda, cuda:N, or auto, which is cuda where there is one")
    threads: int | None = setting(None, "CPU threads; torch's own choice", at_least=1)

    @classmethod
    def _key(cls, name: str) -> str:
        return f"{cls.section} {name.replace('_', '-')}"


class Order(NamedTuple):
    """What the server asks of a site."""

    config: Config
    client: int
    round: int
    accepted: int
    """The last round in which the server took this site's reply, 0 for none."""
    shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...] = ()
    """Just numbers, or none, where the server does not know them."""


def node_of(node_config: Mapping[str, Any]) -> Node:
    if "partition-id" not in node_config:
        raise ConfigError("node-config partition-id is not set: it is the site's client number, from 0.")
    return Node.build({key.replace("-", "_"): value for key, value in node_config.items()})


class Site:
    """A site that is about to train a round."""

    def __init__(self, node: Node, order: Order) -> None:
        self.node, self.order, self.config = node, order, order.config
        if order.client != node.partition_id:
            raise ConfigError(f"this site is client {node.partition_id}, not {order.client}.")
        self.device = device_of(node.device, "node-config device")
        _require_known_code(node, self.config)
        self.dataset, self.members = _data(node, order)
        self.method: Method = find(self.config.method.name).build(self.config.method.options)
        _, self.net = build_net(self.config, type(self.method), self.dataset.shape, order.num_classes)
        # What the server starts from: a fresh client is made of it, and the names and shapes of all that follows.
        self.first: Server = self.method.init_server(self.net, generator(self.config.run.seed, Stream.SERVER, 0))

    @property
    def state_file(self) -> Path:
        home = Path(self.node.state or "~/.local/share/fedacd/sites").expanduser()
        return home / f"{self.config.course()}-client{self.order.client}.safetensors"

    def train(self, shared: Shared) -> Reply:
        """Train the round, keep the client's state, and return what may leave the site."""
        labels = self.dataset.y_train
        counts = torch.from_numpy(np.bincount(labels[self.members], minlength=self.order.num_classes))
        before = self._load(self.method.init_client(self.net, self.first.shared, counts))
        with arithmetic(self.config.run.precision, self.node.threads, self.config.run.deterministic):
            outcome = run_client(self._job(shared, before, self.device))
        self._save(before, _on(outcome.client, torch.device("cpu")))
        return Reply(*(_on(part, torch.device("cpu")) for part in outcome.reply))

    def _job(self, shared: Shared, client: Client, device: torch.device) -> Job:
        config, round_, number = self.config, self.order.round, self.order.client
        members, labels = torch.from_numpy(self.members).to(device), self.dataset.y_train[self.members]
        return Job(
            net=self.net.to(device, bf16=config.run.precision == "bf16"),
            method=self.method,
            shared=Shared(*(_on(part, device) for part in shared)),
            client=_on(client, device),
            images=Images(
                pixels=torch.tensor(self.dataset.x_train, device=device),
                labels=torch.tensor(self.dataset.y_train, device=device),
                mean=torch.tensor(config.data.mean, device=device),
                std=torch.tensor(config.data.std, device=device),
                crop=config.data.crop or 0,
            ),
            members=members,
            test=members[:0],
            plan=local_plan(config.run.seed, round_, number, labels, config.train, config.data),
            train=config.train,
            lr=config.train.lr_in(round_),
            seed=torch_seed(config.run.seed, Stream.TORCH, round_, number),
            measure=False,
        )

    def _load(self, fresh: Client) -> Client:
        """The state after the round that the server last took a reply of."""
        accepted, path = self.order.accepted, self.state_file
        if not accepted or not (fresh.private or fresh.memo):
            return fresh
        tensors, about = read_safetensors(path, "site") if path.exists() else ({}, {"rounds": []})
        if accepted not in about["rounds"]:
            raise RecordError(
                f"{path} does not hold this site's state after round {accepted}, on which method "
                f"{self.method.title} depends. Restore the file, or start the run in a new run.out."
            )
        which = f"{about['rounds'].index(accepted)}/"
        return Client(
            fresh.counts,
            {name: tensors[f"{which}private/{name}"] for name in fresh.private},
            {name: tensors[f"{which}memo/{name}"] for name in fresh.memo},
        )

    def _save(self, before: Client, after: Client) -> None:
        flat: Tensors = {}
        for which, client in enumerate((before, after)):
            flat |= {f"{which}/private/{name}": tensor for name, tensor in client.private.items()}
            flat |= {f"{which}/memo/{name}": tensor for name, tensor in client.memo.items()}
        path, rounds = self.state_file, [self.order.accepted, self.order.round]
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_safetensors(path, flat, {"holds": "site", "rounds": rounds})
        path.chmod(0o600)


def _require_known_code(node: Node, config: Config) -> None:
    """The server sends names, and what has a name of one's own is imported: the site says from where that may be."""
    allowed = {package.strip() for package in node.packages.split(",")}
    for key, name in (("model.name", config.model.name), ("method.name", config.method.name)):
        module, is_own, _ = (name or "").partition(":")
        if is_own and module.partition(".")[0] not in allowed:
            raise ConfigError(
                f"{key} = '{name}': this site takes no code from there. Who trusts it names its package at the site: "
                f"node-config packages = '{module.partition('.')[0]}'."
            )


def _data(node: Node, order: Order) -> tuple[Dataset, NDArray[np.int64]]:
    """The site's data set and which of its training samples are the site's."""
    if not node.data:
        raise ConfigError("node-config data is not set: a known name, an .npz file or a folder of class folders.")
    dataset, config = _renumbered(data.load(node.data, share=True), node, order), order.config
    if dataset.shape != order.shape or dataset.num_classes > order.num_classes:
        raise DataError(
            f"node-config data = {node.data!r}: images {dataset.shape} of {dataset.num_classes} classes; this run has "
            f"{order.shape} and {order.num_classes}."
        )
    if node.num_partitions is None:
        return dataset, np.arange(len(dataset.y_train))
    if node.num_partitions != config.partition.clients:
        raise ConfigError(
            f"node-config num-partitions = {node.num_partitions}: the run has partition.clients = "
            f"{config.partition.clients}."
        )
    return dataset, partition.split(dataset.y_train, dataset.num_classes, config.partition, config.run.seed)[
        order.client
    ]


def _renumbered(dataset: Dataset, node: Node, order: Order) -> Dataset:
    """The data with the server's labels, by the names of the classes; labels without names are the server's already."""
    names, known = dataset.class_names, order.class_names
    if names == known:  # in which one may be there twice
        return dataset
    if set(names) <= set(known):
        label = np.array([known.index(name) for name in names], np.int64)
        y_train, y_test = label[dataset.y_train], label[dataset.y_test]
        return dataclasses.replace(dataset, y_train=y_train, y_test=y_test, class_names=known)
    if names == numbered(len(names)):
        return dataset
    if known != numbered(len(known)):
        unknown = [name for name in names if name not in known]
        raise DataError(
            f"node-config data = {node.data!r}: classes {', '.join(unknown)} are not known to the server, which has "
            f"{', '.join(known)}."
        )
    if node.data in NAMED and node.data == order.config.data.name:
        return dataset  # the server does not know the names, but whose labels they are
    raise ConfigError(
        "this site's classes have names and the server knows none: set flower.class_names there, or give an .npz file "
        "without class_names here that has the run's labels."
    )


def _on(tree: Any, device: torch.device) -> Any:
    return mapped(lambda tensor: tensor.to(device), tree)
