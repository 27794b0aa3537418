"""A real federation on one machine, made and started as the starter's README says."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedacd.data import load
from fedacd.flower.starter import init
from fedacd.records import MODEL, read_rounds

BIN = Path(sys.executable).parent

TINY: Mapping[str, Any] = {
    "partition.clients": 4,
    "partition.beta": 0.5,
    "train.rounds": 3,
    "train.participation": 1.0,
    "train.epochs": 1,
    "train.lr": 0.05,
    "run.seed": 3,
}
"""Settings of a run that trains in no time."""


class Federation:
    """A SuperLink and sites, each a group of processes that can be killed, paused and started again."""

    def __init__(self, folder: Path, num_sites: int, *, gate: bool = False) -> None:
        """With a gate the sites come through nginx, as in earnest."""
        self.folder, self.num_sites, self.project = folder, num_sites, folder / "project"
        self.data = folder / "digits.npz"
        self.groups: dict[str, subprocess.Popen[bytes]] = {}
        self.runs: list[str] = []
        self._port, self.gate_port, self._site_port = free_ports(1, 1, num_sites)
        self._gate = gate

    def __enter__(self) -> Self:
        init(self.folder / "as-written")
        (self.folder / "as-written").rename(self.project)  # a project can be moved
        digits = load("digits")  # as a file: sites then need no scikit-learn, whose import takes seconds
        arrays = {name: getattr(digits, name) for name in ("x_train", "y_train", "x_test", "y_test")}
        np.savez(self.data, **arrays)
        subprocess.run(["./make-keys.sh", str(self.num_sites + 1)], cwd=self.project, check=True, capture_output=True)
        try:
            self.start_server()
            if self._gate:
                self._start("gate", gate_command(self.project, self.gate_port, self._port))
            for site in range(self.num_sites):
                self.register(site)
                self.start_site(site)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.groups):
            self.kill(name)

    # Processes.

    def start_server(self) -> None:
        self._start("superlink", ["./superlink.sh"])
        until(lambda: answers(self._port), 60, "the SuperLink does not listen")

    def register(self, site: int) -> None:
        self.flwr("supernode", "register", f"keys/site-{site}.pub", "federation")

    def start_site(self, site: int, *, key: int | None = None, again: bool = True) -> None:
        """As a service is: where the SuperLink still takes its killed forerunner for alive, it tries `again`."""
        config = f"partition-id={site} num-partitions={self.num_sites} data='{self.data}' threads=1"
        command = shlex.join(["./supernode.sh", str(site if key is None else key), config])
        self._start(f"site-{site}", ["bash", "-c", f"until {command}; do sleep 3; done" if again else command])

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.groups[name] = subprocess.Popen(
                command, cwd=self.project, env=self._env(), stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """At once, with everything that it started."""
        process = self.groups.pop(name)
        for number in (process.pid, *_below(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        """To a group of processes, such as SIGSTOP and SIGCONT."""
        process = self.groups[name]
        for one in (process.pid, *_below(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, number)

    def server_app(self) -> int | None:
        """The process number of the ServerApp, where one runs."""
        return next((pid for pid in _below(self.groups["superlink"].pid) if "flwr-serverapp" in _command(pid)), None)

    def _env(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if key not in ("PYTEST_CURRENT_TEST", "FLWR_HOME")}
        return env | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "SUPERLINK_PORT": str(self._port),
            "SUPERLINK": f"127.0.0.1:{self.gate_port if self._gate else self._port}",
            "SITE_PORT": str(self._site_port),
        }

    # Runs.

    def flwr(self, *arguments: str) -> str:
        done = self.try_flwr(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def try_flwr(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command, env = ["./flwr.sh", *arguments], self._env() | environment
        return subprocess.run(command, cwd=self.project, env=env, capture_output=True, text=True, check=False)

    def submit(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Start a run; its folder."""
        out = self.project / "runs" / name
        config = {
            **TINY,
            "data.name": str(self.data),
            "run.out": f"runs/{name}",
            "flower.round_seconds": 60,
            **settings,
        }
        text = (self.project / "pyproject.toml").read_text()
        head = text[: text.index("[tool.flwr.app.config]")]
        lines = [f"{key} = {_toml(value)}" for key, value in config.items()]
        (self.project / "pyproject.toml").write_text("\n".join([head + "[tool.flwr.app.config]", *lines]) + "\n")
        self.runs.append(json.loads(self.flwr("run", ".", "federation", "--format", "json"))["run-id"])
        return out

    def run(self, name: str, settings: Mapping[str, Any], seconds: float = 200) -> Path:
        """Start a run and wait for its end."""
        out = self.submit(name, settings)
        self.wait(out, seconds)
        return out

    def wait(self, out: Path, seconds: float = 200) -> None:
        until((out / MODEL).exists, seconds, f"{out} has no model yet", self.logs)

    def wait_for_round(self, out: Path, number: int, seconds: float = 120) -> None:
        until(lambda: len(read_rounds(out)) >= number, seconds, f"{out} is not at round {number}", self.logs)

    def logs(self) -> str:
        """Of every process; a ServerApp's is kept by the SuperLink."""
        said = {path.name: path.read_text() for path in sorted(self.folder.glob("*.log"))}
        said |= {f"run {run}": self.flwr("log", run, "federation", "--show") for run in self.runs[-1:]}
        return "\n".join(f"== {name}\n{text[-3000:]}" for name, text in said.items())


def gate_command(project: Path, port: int, behind: int) -> list[str]:
    """The command of an nginx that is the project's gate on 127.0.0.1:port, before the SuperLink's port."""
    text = (project / "gate.conf").read_text().replace("/opt/fedacd/", f"{project}/")
    text = text.replace("listen 8443 ssl", f"listen 127.0.0.1:{port} ssl").replace(":8000/", f":{behind}/")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {project}/nginx/{kind};\n" for kind in kinds)
    conf = project / "nginx" / "nginx.conf"
    conf.parent.mkdir(exist_ok=True)
    who = "user root;" if os.getuid() == 0 else ""  # its workers would be somebody who cannot write in a test's folder
    conf.write_text(
        f"{who} daemon off; pid nginx.pid; events {{}}\nhttp {{\naccess_log access.log;\n{folders}{text}}}\n"
    )
    return ["nginx", "-p", str(conf.parent), "-e", "stderr", "-c", str(conf)]


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def until(true: Callable[[], bool], seconds: float, otherwise: str, more: Callable[[], str] = lambda: "") -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, f"{otherwise} after {seconds} seconds\n{more()}"
        time.sleep(0.2)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_ports(*sizes: int) -> list[int]:
    """The first of as many consecutive free ports as each size asks for."""
    found: list[int] = []
    port = 20_000 + os.getpid() % 20_000
    for size in sizes:
        while any(answers(port + offset) for offset in range(size)):
            port += size
        found.append(port)
        port += size
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def _below(pid: int) -> list[int]:
    """Every process that a process has started, and those that they have."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return [number for child in found for number in (child, *_below(child))]
