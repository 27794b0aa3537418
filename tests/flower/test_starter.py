"""The project that `fedacd flower init` writes."""

import os
import re
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
    assert ready.config.partition.clients == 4 and ready.config.run.out == "runs/first"


def test_it_is_whole_and_its_scripts_are_sound(project: Path) -> None:
    files = [path for path in project.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"README.md", ".gitignore", "federation.env", "fedacd-superlink.service"}
    scripts = [path for path in files if path.suffix == ".sh"]
    assert len(scripts) == 4
    for script in scripts:
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)


def _called(script: Path, *arguments: str, **environment: str) -> str:
    """What a script calls, with its settings, where Flower's commands only say so."""
    commands = script.parent / "venv" / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (commands / name).write_text(f'#!/bin/sh\necho "{name} $* in $FLWR_HOME, telemetry $FLWR_TELEMETRY_ENABLED"\n')
        (commands / name).chmod(0o755)
    plain = {key: value for key, value in os.environ.items() if key not in ("SUPERLINK", "SUPERLINK_PORT", "SITE_PORT")}
    done = subprocess.run([script, *arguments], env=plain | environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_nothing_written_or_made_depends_on_where_the_folder_lies(project: Path, tmp_path: Path) -> None:
    assert not any(str(tmp_path) in path.read_text() for path in project.rglob("*") if path.is_file())
    assert _called(project / "flwr.sh", "list") == f"flwr list in {project}/flwr-home, telemetry 0"
    moved = project.rename(tmp_path / "elsewhere")
    assert _called(moved / "flwr.sh", "list") == f"flwr list in {moved}/flwr-home, telemetry 0"
    connection = tomllib.loads((moved / "flwr-home" / "config.toml").read_text())["superlink"]["federation"]
    assert connection == {"address": "127.0.0.1:8000", "root-certificates": f"{moved}/keys/ca.crt"}
    assert f"--node-config state='{moved}/state/site-2' partition-id=2" in _called(
        moved / "supernode.sh", "2", "partition-id=2"
    )


def test_one_file_says_where_the_server_is(project: Path) -> None:
    """Sites go to the gate; the SuperLink and what starts runs stay on the machine, whatever the file says."""
    assert "--superlink 127.0.0.1:8000 " in _called(project / "supernode.sh", "0", "")
    (line,) = [line.strip() for line in (project / "README.md").read_text().splitlines() if ":8443}" in line]
    env = project / "federation.env"
    env.write_text(re.sub(r"^SUPERLINK=.*$", line, env.read_text(), flags=re.MULTILINE))
    assert "--superlink federation.example.org:8443 " in _called(project / "supernode.sh", "0", "")
    assert "--superlink other:1 " in _called(project / "supernode.sh", "0", "", SUPERLINK="other:1")
    assert "--host 127.0.0.1 --port 8000 " in _called(project / "superlink.sh")
    _called(project / "flwr.sh")
    assert 'address = "127.0.0.1:8000"' in (project / "flwr-home" / "config.toml").read_text()
    assert "--host 127.0.0.1 --port 9443 " in _called(project / "superlink.sh", SUPERLINK_PORT="9443")


def test_a_site_may_name_its_own_folder_for_its_state(project: Path) -> None:
    said = _called(project / "supernode.sh", "0", "partition-id=0 state='/srv/state'")
    assert "--node-config partition-id=0 state='/srv/state' in " in said


@pytest.mark.parametrize("script", ["flwr.sh", "superlink.sh", "supernode.sh"])
def test_a_script_without_flower_says_what_to_do(project: Path, script: str) -> None:
    command, env = [str(project / script), "0", "partition-id=0"], {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 127
    assert "is not on the PATH: activate the environment" in done.stderr


def test_what_is_written_is_its_user_s_alone(project: Path) -> None:
    _called(project / "flwr.sh")
    _called(project / "superlink.sh")
    _called(project / "supernode.sh", "0", "")
    for name in ("flwr-home", "flwr-home/config.toml", "state", "state/site-0"):
        assert (project / name).stat().st_mode & 0o077 == 0
    assert all("UMask=0077" in path.read_text() for path in (project / "systemd").iterdir())


def test_there_is_no_plain_text_mode_in_it(project: Path) -> None:
    said = "".join(path.read_text() for path in project.rglob("*") if path.is_file())
    assert "insecure" not in said
    assert "--enable-supernode-auth" in said and "--auth-supernode-private-key" in said


def test_the_readme_says_what_the_units_assume(project: Path) -> None:
    """Every folder and user of the units is made by a command of the README; every file that it names is there."""
    readme, units = (project / "README.md").read_text(), [path.read_text() for path in (project / "systemd").iterdir()]
    assert len(units) == 2
    for unit in units:
        assert "User=fedacd" in unit and "useradd" in readme and "/usr/sbin/nologin fedacd\n" in readme
        (writable,) = re.findall(r"ReadWritePaths=(.*)", unit)
        assert "/opt/fedacd" not in writable.split()
        for path in [*re.findall(r"(/(?:opt|etc)/fedacd)", unit), *writable.split()]:
            assert re.search(rf"sudo mkdir -p .*{path}\b", readme)
        assert (match := re.search(r"ExecStart=/opt/fedacd/(\S+)", unit)) and (project / match[1]).exists()
    for name in re.findall(r"systemd/fedacd[\w@-]+\.service", readme):
        assert (project / name).exists()


def test_the_commands_that_install_are_the_same_everywhere(project: Path) -> None:
    """Torch first, alone and pinned, as the Makefile does it."""
    top = Path(__file__).parents[2]
    made = subprocess.run(
        ["make", "--dry-run", "--always-make", "install-flower"], cwd=top, check=True, capture_output=True, text=True
    ).stdout
    assert re.search(r"pip install .*--constraint constraints-flower.txt torch\n", made)
    for page in (top / "docs" / "how-to" / "deploy.md", project / "README.md"):
        text = page.read_text()
        first, then = text.index("--constraint constraints-flower.txt torch\n"), text.index("-flower.txt '.[flower]'")
        assert first < then and "'fedacd[" not in text


def test_keys_are_the_owner_s_alone_and_the_certificate_names_the_hosts(project: Path) -> None:
    subprocess.run(["./make-keys.sh", "2", "federation.example.org", "10.1.2.3"], cwd=project, check=True)
    keys = project / "keys"
    assert all((keys / name).stat().st_mode & 0o077 == 0 for name in ("ca.key", "server.key", "site-0", "site-1"))
    command = ["openssl", "x509", "-in", str(keys / "server.pem"), "-noout", "-ext", "subjectAltName"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in ("DNS:localhost", "IP Address:127.0.0.1", "DNS:federation.example.org", "IP Address:10.1.2.3"):
        assert name in names
    subprocess.run(["openssl", "verify", "-CAfile", keys / "ca.crt", keys / "server.pem"], check=True)


def test_making_keys_again_leaves_what_is_there(project: Path) -> None:
    def make(*arguments: str, status: int = 0) -> tuple[set[str], str]:
        """Which files are new or have changed, and what was said."""
        before = {path.name: path.read_bytes() for path in keys.glob("*")}
        done = subprocess.run(["./make-keys.sh", *arguments], cwd=project, check=False, capture_output=True, text=True)
        assert done.returncode == status
        changed = {path.name for path in keys.glob("*") if path.read_bytes() != before.get(path.name)}
        return changed - {"ca.srl"}, done.stdout + done.stderr

    def hosts() -> str:
        command = ["openssl", "x509", "-in", str(keys / "server.pem"), "-noout", "-ext", "subjectAltName"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    keys = project / "keys"
    changed, said = make("federation.example.org", status=2)
    assert not changed and "'federation.example.org' is no number of sites" in said
    make("0", "federation.example.org", "10.1.2.3")
    names = hosts()
    assert make("1")[0] == {"site-0", "site-0.pub"}
    assert make("--renew")[0] == {"server.pem"} and hosts() == names
    (keys / "ca.key").rename(project / "ca.key")
    assert make("2")[0] == {"site-1", "site-1.pub"}
    for arguments in (["--renew"], ["0", "other.example.org"]):
        changed, said = make(*arguments, status=1)
        assert not changed and "keys/ca.key is not: bring it back" in said
    (project / "ca.key").rename(keys / "ca.key")
    assert make("0", "other.example.org")[0] == {"server.pem"}
    assert "other.example.org" in hosts() and "federation.example.org" not in hosts()
    subprocess.run(["openssl", "verify", "-CAfile", keys / "ca.crt", keys / "server.pem"], check=True)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="not empty"):
        init(tmp_path)
    with pytest.raises(ConfigError, match="without quotes"):
        init(tmp_path / "it's")
