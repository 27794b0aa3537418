"""A mistake in a run's settings ends the run as failed, with one line that says what to mend: real processes."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from fedacd.flower.settings import deployment_of
from fedacd.records import RunFolder
from tests.flower.federation import TINY, Federation

MISTAKES: dict[str, tuple[Mapping[str, Any], str]] = {
    "method": ({"method.name": "scafold"}, "unknown method 'scafold'. Did you mean 'scaffold'?"),
    "names": (
        {"flower.class_names": "['five', 'four']"},
        "flower.class_names = ['five', 'four']: 2 names, and digits has 10 classes.",
    ),
    "rounds": ({"train.rounds": 2.5}, "train.rounds = 2.5: must be a whole number"),
    "other-run": ({"method.name": "fedavg"}, "method.name"),
}


@pytest.mark.timeout(240)
def test_a_mistake_ends_the_run_as_failed_without_a_traceback(federation: Federation) -> None:
    there = federation.project / "runs" / "other-run"
    settings = {**TINY, "data.name": str(federation.data), "run.out": str(there), "method.name": "scaffold"}
    with RunFolder(there) as folder:  # of another run
        folder.start(deployment_of(settings).config, [])
    for name, (mistake, _) in MISTAKES.items():
        federation.submit(name, mistake)
    numbers = dict(zip(MISTAKES, federation.runs[-len(MISTAKES) :], strict=True))
    for name, (_, message) in MISTAKES.items():
        run = _ended(federation, numbers[name])
        log = federation.flwr("log", numbers[name], "federation", "--show")
        print(log)
        assert run["status"] == "finished:failed"
        assert message in run["status-details"] and "Mend it in pyproject.toml" in run["status-details"]
        (line,) = [line for line in log.splitlines() if "fedacd: " in line]
        assert message in line and "Mend it in pyproject.toml" in line
        assert "Traceback" not in log and "fedacd.errors" not in log


def _ended(federation: Federation, number: str) -> dict[str, Any]:
    limit = time.monotonic() + 60
    while True:
        said = federation.flwr("list", "federation", "--run-id", number, "--format", "json")
        (run,) = json.loads(said)["runs"]
        if run["status"].startswith("finished"):
            return dict(run)
        assert time.monotonic() < limit, said
        time.sleep(0.5)
