"""The gate before the SuperLink, with a real nginx: sites come in, and nobody else."""

import http.client
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedacd.flower.starter import init
from tests.flower.conftest import HAVE_FLOWER
from tests.flower.federation import Federation, answers, free_ports, gate_command, until

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

REFUSED = [
    "/",
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/runtime/pull-task-input",
    "/v1/fleetx/activate-node",
    "/v1",
    "/docs",
    "/openapi.json",
    "/health",
    "/V1/CONTROL/start-run",
    "/V1/FLEET/../control/start-run",
    "//v1//control//start-run",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/..//control/start-run",
    "/v1/fleet//../../v1/control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/%2E./control/start-run",
    "/v1/fleet%2f..%2fcontrol/start-run",
    "/v1/fleet/..%2fcontrol/start-run",
    "/v1/fleet/./x/../../control/start-run",
    "/v1/fleet/../control/start-run?/v1/fleet/",
    "/v1/control/start-run#/v1/fleet/",
    "https://127.0.0.1/v1/control/start-run",
    "https://127.0.0.1/v1/fleet/../control/start-run",
]
"""Answered by the gate itself."""

HARMLESS = [
    "/v1/fleet/%252e%252e/control/start-run",
    "/v1/fleet/..;/control/start-run",
    "/v1/fleet/..%5ccontrol/start-run",
    "/v1/control/../fleet/start-run",
    "/v1/control/%2e%2e/fleet/start-run",
]
"""Passed on, as a path below /v1/fleet/ from which a server that decodes it once does not get out."""


class _Behind(BaseHTTPRequestHandler):
    """In the SuperLink's place; it keeps the paths that reach it."""

    reached: list[str]

    def do_POST(self) -> None:
        type(self).reached.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate") / "project"
    init(folder)
    subprocess.run(["./make-keys.sh", "0"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def gate(project: Path) -> Iterator[int]:
    """The gate's port."""
    port, behind = free_ports(1, 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(project / "keys" / "server.pem", project / "keys" / "server.key")
    _Behind.reached = []
    with ThreadingHTTPServer(("127.0.0.1", behind), _Behind) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = gate_command(project, port, behind)
        subprocess.run([*command, "-t"], check=True)
        with subprocess.Popen(command) as nginx:
            try:
                until(lambda: answers(port), 20, "nginx does not listen")
                yield port
            finally:
                nginx.terminate()
        server.shutdown()


def _status(gate: int, project: Path, path: str, body: bytes = b"") -> int:
    context = ssl.create_default_context(cafile=str(project / "keys" / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", gate, context=context, timeout=30)
    try:
        connection.request("POST", path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_calls_of_sites_reach_the_superlink(gate: int, project: Path) -> None:
    assert _status(gate, project, "/v1/fleet/push-object", bytes(5 << 20)) == 200
    assert _Behind.reached.pop() == "/v1/fleet/push-object"


@pytest.mark.parametrize("path", REFUSED)
def test_nothing_else_does(gate: int, project: Path, path: str) -> None:
    assert _status(gate, project, path) in (400, 403)
    assert _Behind.reached == []


@pytest.mark.parametrize("path", HARMLESS)
def test_what_is_passed_on_is_below_fleet(gate: int, project: Path, path: str) -> None:
    assert _status(gate, project, path) == 200
    passed = _Behind.reached.pop()
    assert passed.startswith("/v1/fleet/") and "/../" not in passed and "%2e" not in passed.lower()


def test_a_body_over_the_limit_is_refused(gate: int, project: Path) -> None:
    assert _status(gate, project, "/v1/fleet/push-object", bytes((8 << 20) + 1)) == 413
    assert _Behind.reached == []


@pytest.mark.skipif(not HAVE_FLOWER, reason="flwr is not installed: make test-flower")
@pytest.mark.timeout(300)
def test_a_site_trains_through_the_gate_and_nobody_starts_runs_through_it(tmp_path: Path) -> None:
    with Federation(tmp_path, num_sites=1, gate=True) as federation:
        outside = {"SUPERLINK_PORT": str(federation.gate_port)}
        for command in (
            ["supernode", "list", "federation"],
            ["supernode", "register", "keys/site-1.pub", "federation"],
            ["run", ".", "federation"],
            ["list", "federation"],
        ):
            assert federation.try_flwr(*command, **outside).returncode != 0
        assert federation.flwr("supernode", "list", "federation", "--format", "json").count('"node-id"') == 1
        federation.run("gate", {"partition.clients": 1, "train.rounds": 1, "method.name": "fedavg"})
        log = (federation.project / "nginx" / "access.log").read_text()
        assert "POST /v1/fleet/push-object" in log
        assert {line.split()[8] for line in log.splitlines() if "/v1/control/" in line} == {"403"}
