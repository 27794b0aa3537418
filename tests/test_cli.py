"""The command line as a person meets it: what it prints, and what bad input gets."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedacd
from fedacd.cli import app, split_list
from fedacd.config import Config
from fedacd.data import Dataset
from fedacd.data import load as load_data
from fedacd.methods import METHODS
from fedacd.records import STATE, read_config, read_rounds

TINY = ["--dataset", "digits", "--clients", "3", "--participation", "0.7", "--rounds", "2", "--epochs", "1"]


def invoke(*arguments: str, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of a command that must end with this exit code, and never with a traceback."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in a folder of its own, with no data but digits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDACD_DATA", str(tmp_path / "data"))
    return tmp_path


def refused(*arguments: str, message: str) -> None:
    """One line on stderr, exit code 2, and nothing left behind."""
    before = sorted(Path.cwd().rglob("*"))
    _, stderr = invoke(*arguments, code=2)
    assert stderr.startswith(f"error: {message}"), stderr
    assert stderr.count("\n") == 1
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "fedacdd"], "unknown method 'fedacdd'. Did you mean 'fedacd'?"),
        (["--dataset", "cifar11"], "unknown data set 'cifar11'. Did you mean 'cifar"),
        (["--set", "train.momentun=0.5"], "unknown setting 'train.momentun'. Did you mean 'train.momentum'?"),
        (["--set", "method.lamda=0.5"], "unknown setting of FedACD 'method.lamda'. Did you mean 'method.lam'?"),
        (["--set", "method.lam"], "--set method.lam: write section.key=value"),
        (["--beta", "0"], "partition.beta = 0.0: must be a number above 0."),
        (["--beta", "much"], "partition.beta = 'much': must be a number above 0."),
        (["--participation", "1.5"], "train.participation = 1.5: must be a number above 0 and at most 1."),
        (["--rounds", "0"], "train.rounds = 0: must be a whole number at least 1."),
        (["--lr", "nan"], "train.lr = nan: must be a number above 0."),
        (["--lr", ""], "train.lr = '': must be a number above 0."),
        (["--lr=-1"], "train.lr = -1.0: must be a number above 0."),
        (["--clients", "2000"], "partition.clients = 2000: "),
        (["--precision", "half"], "run.precision = 'half': must be one of fp32, tf32, bf16."),
        (["--precision", "tf32", "--device", "cpu"], "run.precision = 'tf32': only CUDA devices have it"),
        (["--device", "cpu:3"], "run.device = 'cpu:3': must be cpu, cuda, cuda:N or auto."),
        (["--set", "data.mean=[0.1, 0.2]"], "data.mean = [0.1, 0.2]: must have 1 values, one a channel."),
        (["--set", 'data.mean=["a"]'], "data.mean = ['a']: must be a list of numbers."),
        (["--set", "data.std=[0.0]"], "data.std = [0.0]: must be a list of numbers above 0."),
        (["--set", "model.head={a=1}"], "model.head = {'a': 1}: must be a number, a text, true or false, or a list"),
        (["--seed", "0,1"], "run.seed = '0,1': a run has one value; fedacd sweep takes lists."),
        (["--lr", "0.1", "--set", "train.lr=0.2"], "train.lr is given twice, by its option and by --set."),
        (["--set", "data.crop=100"], "data.crop = 100: must be smaller than the images, (8, 8)."),
        (["--set", "partition.file=a.json"], "partition.file = 'a.json': goes with partition.scheme = 'custom' only."),
        (["--out", "x" * 300], f"cannot read {'x' * 300}: File name too long."),
        (["--device", "tpu"], "run.device = 'tpu': must be cpu, cuda, cuda:N or auto."),
        (["--device", "cuda:7"], "run.device = 'cuda:7': this machine has "),
        (["--model", "resnet19"], "unknown model 'resnet19'. Did you mean 'resnet18'?"),
        (["--model", "cnn"], "model 'cnn'"),
        (["--model", "nowhere.to:be"], "model 'nowhere.to:be': cannot import"),
        (["--mixup", "--no-mixup"], "train.mixup = 'true,false': a run has one value; fedacd sweep takes lists."),
        (["missing.toml"], "cannot read the config file missing.toml"),
        (["--dataset", "nothing.npz"], "there is no file or folder nothing.npz"),
        (["--set", "method.tau=1"], "method.tau = 1.0: must be a number above 0 and below 1."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_of_run(arguments: list[str], message: str) -> None:
    refused("run", *(["--dataset", "digits"] if "--dataset" not in arguments else []), *arguments, message=message)


def test_bad_input_of_a_sweep_is_found_before_anything_is_trained() -> None:
    refused("sweep", *TINY, "--method", "fedavg,fedadc", message="unknown method 'fedadc'. Did you mean 'fedacd'?")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a,b"], "run.out = 'a,b': a sweep has one folder"),
        (
            ["--set", "run.save_every=1,2"],
            "some of these runs are the same run: run.save_every must",
        ),
        (["--seed", "0,,1"], "run.seed = '': must be a whole number"),
    ],
)
def test_bad_lists_of_a_sweep(arguments: list[str], message: str) -> None:
    refused("sweep", *TINY, *arguments, message=message)


def test_a_folder_that_a_sweep_cannot_write_is_one_message() -> None:
    Path("file").touch()
    refused("sweep", *TINY, "--seed", "0,1", "--out", "file/runs", message="cannot write file/runs: Not a directory.")


def test_data_that_are_not_here_name_the_command() -> None:
    _, stderr = invoke("run", "--dataset", "cifar10", code=2)
    assert "fedacd data get cifar10" in stderr


@pytest.mark.parametrize("damage", ["truncated", "labels", "sizes"])
def test_bad_npz(damage: str) -> None:
    x, y = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 4
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "class_names": np.array(list("abcd"))}
    if damage == "labels":
        arrays["y_train"] = y + 1
    if damage == "sizes":
        arrays["x_test"] = x[:, :6]
    np.savez(Path("mine.npz"), **arrays)  # type: ignore[arg-type]
    if damage == "truncated":
        content = Path("mine.npz").read_bytes()
        Path("mine.npz").write_bytes(content[: len(content) // 2])
    _, stderr = invoke("run", "--dataset", "mine.npz", code=2)
    assert stderr.startswith("error: ")
    assert "mine" in stderr
    if damage == "labels":
        assert "4" in stderr  # the label that is too large
    assert not Path("runs").exists()


def test_a_run_prints_a_line_a_round_where_no_terminal_is(elsewhere: Path) -> None:
    stdout, _ = invoke("run", *TINY, "--out", "here")
    lines = stdout.splitlines()
    assert lines[0] == "FedACD on digits: 3 clients, capped-dirichlet, 2 rounds on cpu, into here"
    assert lines[1].startswith("FedACD on digits: round 1/2, accuracy ")
    assert lines[1].endswith("left")
    assert "s/round" in lines[2]
    assert lines[-1] == "Run folder: here"
    again, _ = invoke("run", *TINY, "--out", "here")
    assert again.splitlines()[0] == "FedACD on digits: here has 2 of 2 rounds"


def test_settings_come_from_file_then_options_then_set() -> None:
    Path("mine.toml").write_text("[train]\nrounds = 7\nlr = 0.5\n[method]\nname = 'fedavg'\n[run]\nseed = 3\n")
    invoke("run", "mine.toml", *TINY, "--lr", "0.2", "--set", "train.clip=5", "--no-mixup", "--out", "here")
    config = read_config(Path("here"))
    assert (config.train.rounds, config.train.lr, config.train.clip, config.run.seed) == (2, 0.2, 5.0, 3)
    assert (config.method.name, config.train.mixup) == ("fedavg", False)


def test_mixup_is_on_for_fedacd_only() -> None:
    for name in METHODS:
        invoke("run", *TINY, "--rounds", "1", "--method", name, "--out", name)
        assert read_config(Path(name)).train.mixup is (name == "fedacd")


def test_a_records_config_repeats_the_run() -> None:
    invoke("run", *TINY, "--out", "first")
    invoke("run", "first/config.toml", "--out", "second")
    first, second = (
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_rounds(Path(name))]
        for name in ("first", "second")
    )
    assert first == second
    refused(
        "run", "first", message=f"cannot read the config file first: Is a directory. Give {Path('first/config.toml')}."
    )


def test_a_method_of_ones_own_by_its_name(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("own_methods.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedacd.config import setting\n"
        "from fedacd.methods import Method\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Half(Method):\n"
        "    title = 'Half'\n"
        "    citation = 'nobody'\n"
        "    share: float = setting(0.5, 'of the loss', above=0)\n"
        "    def loss(self, out, y, w, now, shared, client):\n"
        "        return self.share * super().loss(out, y, w, now, shared, client)\n"
        "number = 3\n"
    )
    half = ["--method", "own_methods:Half", "--workers", "1", "--set"]
    invoke("run", *TINY, *half, "method.share=0.5", "--out", "half")
    invoke("run", *TINY, *half, "method.share=1", "--out", "whole")
    invoke("run", *TINY, "--method", "fedavg", "--workers", "1", "--out", "fedavg")
    accuracy = {name: read_rounds(Path(name))[-1]["train_loss"] for name in ("half", "whole", "fedavg")}
    assert accuracy["whole"] == accuracy["fedavg"] != accuracy["half"]
    assert read_config(Path("half")).method.name == "own_methods:Half"
    assert fedacd.Result.load("half", method="own_methods:Half").model.method.share == 0.5  # type: ignore[attr-defined]
    stdout, _ = invoke("report", "half", "fedavg", "-o", "report.html")
    assert stdout.startswith("FedAvg is ahead of Half on digits")
    for name, message in {
        "own_methods:Hal": "method 'own_methods:Hal': 'own_methods' has no 'Hal'. In Python the method itself can be",
        "own_methods:number": "method 'own_methods:number': must be a class derived from fedacd.Method.",
        "own_methods.py:Half": "method 'own_methods.py:Half': cannot import 'own_methods.py': ModuleNotFoundError: ",
        "own_methodz:Half": "method 'own_methodz:Half': cannot import 'own_methodz': ModuleNotFoundError: ",
    }.items():
        refused("run", *TINY, "--method", name, message=message)
    refused("run", *TINY, "--method", "own_methods:Half", "--set", "method.shar=1",
            message="unknown setting of Half 'method.shar'. Did you mean 'method.share'?")  # fmt: skip


def test_a_methods_fields_may_be_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("bare_fields.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedacd.methods import Method\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Bare(Method):\n"
        "    mu: float\n"
        "    nu: float = 3.0\n"
        "class Plain(Method):\n"
        "    mu: float = 3.0\n"
    )
    stdout, _ = invoke("methods", "bare_fields:Bare")
    assert "  method.mu: a number\n  method.nu = 3.0: a number\n" in stdout
    refused("run", *TINY, "--method", "bare_fields:Bare", message="method.mu has no default: give a number.")
    _, stderr = invoke("run", *TINY, "--method", "bare_fields:Plain", "--set", "method.mu=1", code=2)
    assert "unknown setting of Plain 'method.mu'" in stderr
    assert "To make 'mu' a setting, give it a type and the class @dataclass(frozen=True, kw_only=True)." in stderr


def test_a_mistake_in_a_method_is_located_once_in_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("wrong_methods.py").write_text(
        "from fedacd.methods import Method\n"
        "class Wrong(Method):\n"
        "    def loss(self, out, y, w, now, shared, client):\n"
        "        return out['nothing like it']\n"
    )
    arguments = ["sweep", *TINY, "--method", "wrong_methods:Wrong", "--seed", "0,1", "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stderr.count("return out['nothing like it']") == 1
    assert result.stderr.splitlines()[-2:] == [
        f"error: {number}/2 wrong_methods:Wrong, seed {seed}: KeyError: 'nothing like it'"
        for number, seed in ((1, 0), (2, 1))
    ]


def test_help_names_the_choices_and_keeps_the_case() -> None:
    stdout, _ = invoke("run", "--help")
    assert "[[CONFIG" not in stdout
    assert "Cpu" not in stdout
    assert "(fp32, tf32, bf16)" in stdout


def test_a_method_of_ones_own_without_a_title(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("bare_methods.py").write_text("from fedacd.methods import Method\nclass Bare(Method):\n    pass\n")
    stdout, _ = invoke("methods", "bare_methods:Bare")
    assert "bare_methods:Bare  Bare, no citation" in stdout
    refused("run", *TINY, "--method", "bare_methods:Bare", "--set", "method.fingerprint=0",
            message="method.fingerprint: 'Bare' is not the method of this config any more.")  # fmt: skip


def test_a_sweep_reads_its_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def load(name: str) -> Dataset:
        read.append(name)
        return load_data(name)

    monkeypatch.setattr("fedacd.data.load", load)
    invoke("sweep", *TINY, "--seed", "0,1", "--rounds", "1")
    assert read == ["digits"]


def test_a_damaged_checkpoint_does_not_stop_the_rest_of_a_sweep() -> None:
    arguments = [*TINY, "--method", "fedavg", "--rounds", "1", "--out", "all"]
    invoke("sweep", *arguments)
    (run,) = Path("all").iterdir()
    (run / STATE).write_bytes(b"not a checkpoint")
    stdout, stderr = invoke("sweep", *arguments, "--seed", "0,1", code=1)
    assert stderr.startswith(f"error: 1/2 FedAvg, seed 0: {run / STATE} is damaged or cut short")
    assert stderr.count("\n") == 1
    assert "2/2 FedAvg, seed 1: round 1/1" in stdout


def test_sweep_over_comma_lists() -> None:
    arguments = [*TINY, "--method", "fedavg,fedacd", "--seed", "0,1", "--mixup", "--no-mixup", "--out", "all"]
    stdout, _ = invoke("sweep", *arguments)
    folders = sorted(Path("all").iterdir())
    assert len(folders) == 8
    settings = {
        (config.method.name, config.run.seed, config.train.mixup) for config in map(read_config, folders)
    }  # fmt: skip
    assert len(settings) == 8
    assert "4/8 FedAvg, seed 1, mixup False: round 2/2" in stdout
    assert sum(str(folder) in stdout for folder in folders) == 8
    table = [line for line in stdout.splitlines() if line.lstrip().startswith(("fedavg ", "fedacd "))]
    assert len(table) == 8
    for line in table:
        assert "True" in line or "False" in line


@pytest.mark.parametrize(
    ("text", "items"),
    [("a,b", ["a", "b"]), ("a, b", ["a", "b"]), ("[1, 2],[3]", ["[1, 2]", "[3]"]), ('"a,b",c', ['"a,b"', "c"])],
)
def test_comma_lists_respect_brackets_and_quotes(text: str, items: list[str]) -> None:
    assert split_list(text) == items


def test_methods_lists_hyper_parameters_and_citations() -> None:
    stdout, _ = invoke("methods")
    for kind in METHODS.values():
        assert kind.citation in stdout
    assert "method.lam = 1.0: weight of L2 (a number at least 0)" in stdout
    alone, _ = invoke("methods", "fedprox")
    assert alone in stdout
    assert alone.count("mixup") == 1
    refused("methods", "fedpox", message="unknown method 'fedpox'. Did you mean 'fedprox'?")


def test_settings_lists_everything_that_set_takes() -> None:
    stdout, _ = invoke("settings")
    for key in Config().flat():
        if not key.startswith(("model.", "method.")):
            assert f"  {key} = " in stdout


def test_data_commands(elsewhere: Path) -> None:
    stdout, _ = invoke("data", "list")
    for name in ("digits", "cifar10", "cifar100", "tiny-imagenet", "fashion-mnist"):
        assert name in stdout
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8, 1)).astype(np.uint8), np.arange(60) % 3
    np.savez(Path("mine.npz"), x_train=x, y_train=y, x_test=x, y_test=y)
    assert invoke("data", "import", "mine.npz", "--name", "ours")[0] == "Use it with --dataset ours\n"
    assert "classes      3" in invoke("data", "check", "ours")[0]
    assert "ours" in invoke("data", "list")[0]
    invoke("run", *TINY, "--dataset", "ours", "--out", "here")
    _, stderr = invoke("data", "import", "mine.npz", "--name", "ours", code=2)
    assert "nothing is overwritten" in stderr
    _, stderr = invoke("data", "get", "cifar10", "--from", "mine.npz", code=2)
    assert "not the official cifar-10-python.tar.gz" in stderr
    _, stderr = invoke("data", "get", "mnist", code=2)
    assert stderr.startswith("error: unknown data set 'mnist'. Known: cifar10, ")


def test_a_full_output_folder(elsewhere: Path) -> None:
    """A limit on the size of files stands for a full disk: the checkpoint does not fit."""
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)); from fedacd.cli import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, "run", *TINY, "--out", "here"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: cannot write here/state.safetensors: File too large.")
    assert "Traceback" not in result.stderr
    assert not list(Path("here").glob("*.partial"))


def test_a_read_only_output_folder(elsewhere: Path) -> None:
    locked = elsewhere / "locked"
    locked.mkdir(mode=0o500)
    if os.geteuid() == 0:
        locked = Path("/sys")  # not even root may make a folder here
    refused("run", *TINY, "--out", str(locked / "run"), message=f"cannot write {locked}/run: ")


def test_version() -> None:
    assert invoke("--version")[0].startswith("fedacd ")


def test_a_run_on_digits_needs_little_memory() -> None:
    """At most 400 MB above what importing torch takes."""
    script = (
        "import resource, torch; peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak();"
        "import fedacd; fedacd.run(dataset='digits', rounds=2, epochs=1, out='here'); print(peak() - before)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 400_000  # kilobytes
