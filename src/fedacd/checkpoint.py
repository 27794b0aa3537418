"""A run's checkpoint: all that it needs to go on, as one file of tensors that is replaced as a whole.

It is stamped with the course of its config, which leaves out the number of rounds: a run can be given more of them.
"""

from pathlib import Path
from typing import Any, NamedTuple

from fedacd.config import Config
from fedacd.errors import RecordError
from fedacd.files import read_about, read_safetensors, write_safetensors
from fedacd.methods import Client, Server, Shared, Tensors


class State(NamedTuple):
    """A checkpoint."""

    round: int
    """The last finished one."""
    server: Server
    clients: list[Client]


def save_state(path: Path, state: State, config: Config) -> None:
    about = {"holds": "checkpoint", "round": state.round, "clients": len(state.clients), "config": config.course()}
    write_safetensors(path, _flatten(state), about)


def load_state(path: Path, config: Config) -> State:
    """Read the checkpoint of this very run."""
    flat, about = read_safetensors(path, "checkpoint")
    if about.get("config") not in (config.course(), config.digest()):  # the digest before there was a course
        raise RecordError(f"{path} is the checkpoint of another config. Restore the right one, or remove it.")
    server = Server(Shared(_below(flat, "params/"), _below(flat, "extra/")), _below(flat, "hidden/"))
    clients = [
        Client(
            flat[f"client/{number}/counts"],
            _below(flat, f"client/{number}/private/"),
            _below(flat, f"client/{number}/memo/"),
        )
        for number in range(about["clients"])
    ]
    return State(about["round"], server, clients)


def saved_round(path: Path) -> int | None:
    """The round of a checkpoint, from its metadata alone; None where there is none."""
    about: dict[str, Any] | None = read_about(path, "checkpoint") if path.exists() else None
    return about["round"] if about else None


def _flatten(state: State) -> Tensors:
    server = state.server
    flat = {f"params/{k}": v for k, v in server.shared.params.items()}
    flat |= {f"extra/{k}": v for k, v in server.shared.extra.items()}
    flat |= {f"hidden/{k}": v for k, v in server.hidden.items()}
    for number, client in enumerate(state.clients):
        flat[f"client/{number}/counts"] = client.counts
        flat |= {f"client/{number}/private/{k}": v for k, v in client.private.items()}
        flat |= {f"client/{number}/memo/{k}": v for k, v in client.memo.items()}
    return flat


def _below(flat: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in flat.items() if name.startswith(prefix)}
