"""Run folders and summaries made up for the tests, by the package's own writers."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedacd.config import Config
from fedacd.files import write_safetensors
from fedacd.records import CONFIG, ENV, MATRICES, PARTITION, ROUNDS
from fedacd.tables.summaries import write_summaries


def make_run(
    folder: Path,
    *,
    method: str = "fedacd",
    seed: int = 0,
    rounds: int = 12,
    done: int | None = None,
    level: float = 0.5,
    classes: int = 4,
    clients: int = 5,
    matrices: bool = True,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: record,
    **settings: Any,
) -> Path:
    """A run whose accuracy rises to about `level`, of `done` out of `rounds` rounds."""
    rng = np.random.default_rng(seed)  # all methods have the same clients at a seed, as in true runs
    values = {"data.name": "digits", "method.name": method, "run.seed": seed, "train.rounds": rounds}
    values |= {"partition.clients": clients, "train.mixup": method == "fedacd"}
    values["data.fingerprint"] = f"{zlib.crc32(settings.get('data__name', 'digits').encode()):08x}"
    folder.mkdir(parents=True, exist_ok=True)
    config = Config.build(values | {key.replace("__", "."): value for key, value in settings.items()})
    (folder / CONFIG).write_text(config.to_toml())
    (folder / ENV).write_text(json.dumps({"sessions": [{"device": "cpu", "torch": "2.13.0", "commit": "abc"}]}))
    lines = []
    for number in range(1, (rounds if done is None else done) + 1):
        accuracy = level * (1 - 0.8 ** (number / rounds * 12))
        per_class = [min(1.0, max(0.0, accuracy * (0.5 + c / classes))) for c in range(classes)]
        chosen = sorted(rng.choice(clients, max(1, clients * 2 // 5), replace=False).tolist())
        shares = rng.dirichlet([50] * len(chosen)).tolist()
        lines.append(
            {"round": number, "accuracy": accuracy, "accuracy_client": accuracy * 0.9, "risk": 1 - accuracy}
            | {"kl_local": 2.0, "kl_test": 3.0, "per_class": per_class, "train_loss": 1 / number, "lr": 0.1}
            | {
                "participants": chosen,
                "weights": shares,
                "told": {},
                "bytes_up": 1e6,
                "bytes_down": 1e6,
                "seconds": 0.5,
            }
        )
    (folder / ROUNDS).write_text("".join(json.dumps(change(line)) + "\n" for line in lines))
    if matrices:
        counts = torch.from_numpy(rng.integers(0, 3, (clients, classes)))
        tensors = {"counts": counts}
        for client in lines[-1]["participants"] if lines else []:
            P = torch.from_numpy(rng.dirichlet([0.3] * classes, classes)).float()
            tensors |= {f"own/{client}": P * (counts[client] > 0)[:, None], f"test/{client}": P}
        write_safetensors(folder / MATRICES, tensors, {"holds": "matrices", "round": rounds})
    return folder


def make_many(root: Path, *, seeds: int = 3, **options: Any) -> Path:
    """Three methods on two skews of two data sets."""
    for data, base in (("cifar10", 0.6), ("cifar100", 0.4)):
        for beta in (0.1, 0.05):
            for method, gain in (("fedavg", 0.0), ("fedacd", 0.03), ("fedlc", 0.01)):
                for seed in range(seeds):
                    level = base + gain + 0.1 * beta + 0.004 * np.sin(seed * 7 + gain * 100)
                    make_run(
                        root / f"{data}-{beta}-{method}-{seed}", method=method, seed=seed, level=float(level),
                        data__name=data, partition__beta=beta, **options,
                    )  # fmt: skip
    return root


def make_summary(folder: Path, **options: Any) -> Path:
    """The summary of such a run, whose folder is gone."""
    return summed_up(make_run(folder, **options))


def summed_up(folder: Path) -> Path:
    """The summary of a run, whose folder is gone then."""
    ((path,), _) = write_summaries([folder], folder.parent)
    shutil.rmtree(folder)
    return path


def make_custom(folder: Path, *lists: list[int], **options: Any) -> Path:
    """A run whose clients hold these samples."""
    make_run(folder, partition__scheme="custom", **options)
    np.savez(folder / PARTITION, **{f"client_{i}": np.array(own) for i, own in enumerate(lists)})  # type: ignore[arg-type]
    return folder


def ramp(record: dict[str, Any]) -> dict[str, Any]:
    """Of accuracy round / 100, but 0.9 in round 13."""
    return record | {"accuracy": 0.9 if record["round"] == 13 else record["round"] / 100}


def flat(level: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The same accuracy in every round."""
    return lambda record: record | {"accuracy": level}
