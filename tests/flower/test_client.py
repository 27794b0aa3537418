"""What a site says to the server where it cannot train: nothing of its data, for which it has a log of its own."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.flower.local import deployment

flwr = pytest.importorskip("flwr.app", reason="flwr is not installed: make test-flower")

from fedacd.flower import client, wire  # noqa: E402
from fedacd.flower.central import Central  # noqa: E402


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process of Flower's has, and a log that a test can read."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)


def why_not(folder: Path, names: str = "0123456789", accepted: int = 0, **node: object) -> str:
    """The reason that a site gives for not training a round of Scaffold on digits."""
    central = Central(deployment(folder / "run", method__name="scaffold"))
    order = {
        "config": json.dumps(central.config.flat()),
        "client": 0,
        "round": 1,
        "accepted": accepted,
        "shape": [1, 8, 8],
        "classes": 10,
        "class_names": list(names),
    }
    content = wire.send_shared(central.state.server.shared, order)
    about: dict[str, Any] = {"partition-id": 0, "data": "digits", "state": str(folder / "secret"), **node}
    context = flwr.Context(1, 1, about, flwr.RecordDict(), {})
    answer = client.app(flwr.Message(content, 1, "train"), context)
    assert set(answer.content) == {wire.REFUSAL}
    return str(answer.content[wire.REFUSAL]["why"])


DATA = "its data cannot be used; the site's log says why"


def test_names_of_files_stay_at_the_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("smith", "jones"):
        (tmp_path / "scans" / "3").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "scans" / "3" / f"{name}.png")
    (tmp_path / "scans" / "3" / "smith.png").write_bytes(b"no image")
    assert why_not(tmp_path, data=str(tmp_path / "scans")) == DATA
    assert "scans/3/smith.png" in caplog.text and "Traceback" not in caplog.text


def test_names_of_classes_stay_at_the_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y = np.zeros((2, 8, 8), np.uint8), np.arange(2)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, class_names=["a", "smith"])
    assert why_not(tmp_path, "abcdefghij", data=str(tmp_path / "own.npz")) == DATA
    assert "classes smith are not known to the server" in caplog.text


def test_the_place_of_the_state_stays_at_the_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = "what it keeps between rounds cannot be used; the site's log says why"
    assert why_not(tmp_path, accepted=1) == told
    assert "secret" in caplog.text and "does not hold this site's state after round 1" in caplog.text


def test_what_nobody_expected_stays_at_the_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower would send the text of the exception."""

    def site(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/scans/smith.png")

    monkeypatch.setattr(client, "Site", site)
    assert why_not(tmp_path) == "it failed with PermissionError; the site's log says why"
    assert "smith.png" in caplog.text and "Traceback" in caplog.text


def test_what_the_operator_has_to_mend_is_said(tmp_path: Path) -> None:
    assert why_not(tmp_path, device="cdua").startswith("node-config device = 'cdua': must be")
    assert why_not(tmp_path, data="").startswith("node-config data is not set")
