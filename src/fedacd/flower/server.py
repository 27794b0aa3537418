"""The ServerApp: `serverapp = "fedacd.flower.server:app"`."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedacd.errors import FedacdError, RecordError, WorkerError
from fedacd.files import read_json, write_atomically
from fedacd.flower.central import Central
from fedacd.flower.privacy import require_same_terms
from fedacd.flower.settings import Deployment, deployment_of
from fedacd.flower.strategy import Deployed
from fedacd.records import ROUNDS, RunFolder, read_rounds

LOG = logging.getLogger("flwr")
DEPLOYMENT = "deployment.json"


MEND = "Mend it in pyproject.toml or with --run-config, and start the run again."


def main(grid: Grid, context: Context) -> None:
    """Train, or go on training. What cannot be done ends the run as failed, with its message in log and status."""
    try:
        serve(grid, deployment_of(context.run_config))
    except FedacdError as error:
        if error.exit_code != 2:  # not the user's to mend
            raise
        raise type(error)(f"{error} {MEND}") from None


def in_one_line(record: logging.LogRecord) -> bool:
    """Flower logs what ends a ServerApp with its traceback; the message of a FedacdError says it all."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FedacdError):
        record.msg, record.args, record.exc_info = "fedacd: %s", (error,), None
    return True


def serve(grid: Grid, deployment: Deployment) -> Central:
    """A deployment with its run folder. A line is on the disk before its checkpoint, and both before the next round."""
    config = deployment.config
    central = Central(deployment)  # a mistake in the settings is found before anything is written
    with RunFolder(Path(str(config.run.out)).expanduser()) as folder:
        require_same_terms(central.privacy, read_rounds(folder.path))
        _require_same_classes(folder.path / DEPLOYMENT, deployment.dataset.class_names)
        folder.start(config, [])
        about = {key: value for key, value in vars(deployment.flower).items() if value is not None}
        about["class_names"] = list(deployment.dataset.class_names)
        write_atomically(folder.path / DEPLOYMENT, (json.dumps(about, indent=2) + "\n").encode())
        if state := folder.resume(config, LOG.warning):
            central.restore(state, read_rounds(folder.path))

        def keep(line: dict[str, Any]) -> None:
            folder.append(line)
            folder.save_state(central.state, config)

        with folder.session(torch.device("cpu"), central.state.round, lambda: {"flower": True}):
            dataset = deployment.dataset
            Deployed(central, dataset.shape, dataset.class_names, keep).start(grid)
            if central.untrained:
                why = f"{folder.path / ROUNDS} says why"
                raise WorkerError(
                    f"no reply was used in any round up to {config.train.rounds}: there is no model ({why}). Mend the "
                    "sites, and start again in a new run.out."
                )
            folder.save_model(deployment.net, central.state.server.shared, _about(deployment))
    return central


def _require_same_classes(path: Path, names: Sequence[str]) -> None:
    """What the model's outputs mean stays as it was; files of before have no names."""
    there = read_json(path).get("class_names") if path.exists() else None
    if there is not None and there != list(names):
        raise RecordError(
            f"the classes are {', '.join(names)}, and this run was begun with {', '.join(there)}: flower.class_names "
            "or the server's data have changed. Choose another run.out."
        )


def _about(deployment: Deployment) -> dict[str, Any]:
    """What inference needs beside the weights."""
    config, dataset = deployment.config, deployment.dataset
    return {
        "model": config.model.name,
        "model_options": config.model.options,
        "method": config.method.name,
        "method_options": config.method.options,
        "shape": dataset.shape,
        "mean": config.data.mean,
        "std": config.data.std,
        "class_names": dataset.class_names,
    }


LOG.addFilter(in_one_line)
app = ServerApp()
app.main()(main)
