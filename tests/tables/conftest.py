"""Made run folders, and a small table over digits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fedacd.cli_exits import reporting
from fedacd.config import Config
from fedacd.metrics import METRICS
from fedacd.records import CONFIG, ENV, ROUNDS
from fedacd.tables import declare
from fedacd.tables.command import merge, summaries, table
from fedacd.tables.declare import TABLES, Column, Row, Table
from fedacd.tables.paper import Reported
from fedacd.tables.wanted import Want, Wanted

FROM_DATA = {"data.mean": [0.5], "data.std": [0.25], "data.fingerprint": "abc"}


def line(round_: int, accuracy: float, **others: Any) -> dict[str, Any]:
    values = dict.fromkeys(METRICS, 0.5) | {"accuracy": accuracy}
    return {"round": round_, **values, "per_class": [accuracy], "seconds": 1.5, **others}


def made_run(folder: Path, want: Want, accuracies: Sequence[float], changed: Mapping[str, Any] | None = None) -> Path:
    """The folder of a run with these accuracies, one a round; `changed` are settings that differ from the wanted."""
    values = {**want.identity, **FROM_DATA, "run.device": "cpu", **(changed or {})}
    path = folder / want.name
    path.mkdir(parents=True)
    (path / CONFIG).write_text(Config.build(values).to_toml())
    (path / ROUNDS).write_text("".join(json.dumps(line(i, a)) + "\n" for i, a in enumerate(accuracies, 1)))
    return path


def made_session(run: Path, start: str, end: str | None, device: str = "slow cpu", from_round: int = 0) -> None:
    session: dict[str, Any] = {"from_round": from_round, "started": start, "ended": end, "device": device}
    session |= dict.fromkeys(("fedacd", "commit", "python", "torch", "numpy"), "1.0")
    (run / ENV).write_text(json.dumps({"sessions": [session]}))


@pytest.fixture
def small() -> Table:
    """Two methods on digits at two betas, three clients."""
    reported = [Reported(90.0, 1.0, "90.00±1.00"), Reported(80.0, 2.0, "80.00±2.00")]
    return Table(
        number=1,
        title="accuracy (%) on digits",
        varies="beta",
        rows=[
            Row(label="FedAvg", settings={"method.name": "fedavg"}),
            Row(label="FedACD", settings={"method.name": "fedacd"}),
        ],
        columns=[
            Column(
                group="digits",
                label=f"{beta:g}",
                settings={
                    "data.name": "digits",
                    "partition.beta": beta,
                    "partition.clients": 3,
                    "train.participation": 0.7,
                    "train.epochs": 1,
                },
                metric="accuracy",
                paper=number,
            )
            for number, beta in enumerate((0.3, 0.1))
        ],
        paper={"FedAvg": reported, "FedACD": reported},
    )


@pytest.fixture
def wanted(small: Table) -> Wanted:
    return Wanted(small, seeds=[0, 1, 2], rounds=2, precision="fp32")


@pytest.fixture
def only_small(small: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Table 1 is the small one, and commands run in a folder of their own, with no data but digits."""
    monkeypatch.setitem(TABLES, 1, small)
    assert declare.find("1") is small
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDACD_DATA", str(tmp_path / "data"))


_app = typer.Typer()
for _command in (table, merge, summaries):
    _app.command()(reporting()(_command))


def invoke(*arguments: object, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of a command that must end with this exit code, and never with a traceback."""
    result = CliRunner().invoke(_app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result.stdout, result.stderr
