"""The project that `fedacd flower init` writes."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from fedacd.errors import ConfigError
from fedacd.flower.settings import deployment_of
from fedacd.flower.starter import init


@pytest.fixture
def project(tmp_path: Path) -> Path:
    init(tmp_path / "federation")
    return tmp_path / "federation"


def test_its_settings_are_a_deployment_that_is_ready(project: Path) -> None:
    app = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "fedacd.flower.server:app", "clientapp": "fedacd.flower.client:app"}
    nested = {f"{section}.{key}": value for section, keys in app["config"].items() for key, value in keys.items()}
    ready = deployment_of(nested)
    assert ready.config.partition.clients == 4 and ready.config.run.out == str(project / "runs" / "first")


def test_no_mark_is_left_and_scripts_are_sound(project: Path) -> None:
    files = [path for path in project.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"README.md", ".gitignore", "config.toml", "fedacd-superlink.service"}
    assert not any("@DIR@" in path.read_text() for path in files)
    scripts = [path for path in files if path.suffix == ".sh"]
    assert len(scripts) == 3
    for script in scripts:
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)


def test_there_is_no_plain_text_mode_in_it(project: Path) -> None:
    said = "".join(path.read_text() for path in project.rglob("*") if path.is_file())
    assert "insecure" not in said
    assert "--enable-supernode-auth" in said and "--auth-supernode-private-key" in said


def test_keys_are_the_owner_s_alone_and_the_certificate_names_the_hosts(project: Path) -> None:
    subprocess.run(["./make-keys.sh", "2", "federation.example.org", "10.1.2.3"], cwd=project, check=True)
    keys = project / "keys"
    assert all((keys / name).stat().st_mode & 0o077 == 0 for name in ("ca.key", "server.key", "site-0", "site-1"))
    command = ["openssl", "x509", "-in", str(keys / "server.pem"), "-noout", "-ext", "subjectAltName"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in ("DNS:localhost", "IP Address:127.0.0.1", "DNS:federation.example.org", "IP Address:10.1.2.3"):
        assert name in names
    subprocess.run(["openssl", "verify", "-CAfile", keys / "ca.crt", keys / "server.pem"], check=True)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="not empty"):
        init(tmp_path)
    with pytest.raises(ConfigError, match="without quotes"):
        init(tmp_path / "it's")
