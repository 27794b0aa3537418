"""The package from Python: the README's lines, results, inference."""

import dataclasses
import importlib
import linecache
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedacd
from fedacd.config import setting
from fedacd.data import Dataset
from fedacd.engine.setup import prepare
from fedacd.errors import ConfigError, DataError, RecordError
from fedacd.files import read_safetensors, write_safetensors
from fedacd.methods import CReFF, FedACD, FedNH, Method

TINY: dict[str, Any] = {"clients": 3, "participation": 0.7, "rounds": 2, "epochs": 1}


class Perceptron(nn.Module):
    """A user's own model; it knows nothing of fedacd."""

    def __init__(self, num_classes: int, image_size: tuple[int, int] = (8, 8)) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(image_size[0] * image_size[1], 32), nn.ReLU(), nn.Linear(32, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class Shifted(Perceptron):
    """With a constant that is drawn."""

    shift: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.register_buffer("shift", torch.randn(1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.shift)


def test_own_arrays_and_own_model(digits: Dataset, tmp_path: Path) -> None:
    data = fedacd.Dataset.from_arrays(digits.x_train, digits.y_train, digits.x_test, digits.y_test)
    result = fedacd.run(
        {"partition.scheme": "iid"},
        dataset=data,
        model=Perceptron,
        clients=5,
        rounds=8,
        lr=0.1,
        out=str(tmp_path / "run"),
    )
    assert result.final["accuracy_last"] > 0.8
    labels = result.model.predict(digits.x_test).numpy()
    per_class = [(labels == digits.y_test)[digits.y_test == k].mean() for k in range(10)]
    assert np.mean(per_class) == pytest.approx(result.final["accuracy_last"])
    assert result.config.model.name == "tests.test_api:Perceptron"
    with pytest.raises(RecordError, match=r"needs your own model 'tests.test_api:Perceptron': give it, load"):
        fedacd.Result.load(result.folder)
    models: tuple[Any, ...] = (Perceptron, "tests.test_api:Perceptron")
    for model in models:
        again = fedacd.Result.load(result.folder, model=model)
        torch.testing.assert_close(again.model(digits.x_test), result.model(digits.x_test))
        assert again.final == result.final


def test_a_registered_model_itself_is_as_by_its_name(digits: Dataset, tmp_path: Path) -> None:
    """FedNH's scale is 20 with the ResNet; its file needs no model given again."""
    settings = {"data.name": "digits", "method.name": "fednh"}
    config = prepare(settings, dataset=digits, model=fedacd.MODELS["resnet18"]).config
    assert config == prepare(settings | {"model.name": "resnet18"}, dataset=digits).config
    assert config.method.options["scale"] == 20
    result = fedacd.run(dataset=digits, model=fedacd.MODELS["small-cnn"], out=tmp_path / "run", **TINY)
    torch.testing.assert_close(
        fedacd.Result.load(result.folder).model(digits.x_test), result.model(digits.x_test), rtol=0, atol=0
    )


def test_a_model_that_is_not_the_files_is_refused(digits: Dataset, tmp_path: Path) -> None:
    def wide(num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, num_classes))

    def narrow(num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, num_classes))

    folder = fedacd.run(dataset=digits, model=wide, method="fedavg", out=tmp_path / "run", **TINY).folder
    for model, method, message in (
        (narrow, None, r"model or method: '1\.bias' is \[9\] there and \[8\] here"),
        (Perceptron, None, r"model or method: '1\.bias' is \[9\] there and None here"),
        (wide, FedNH(), r"model or method: '3\.bias' is \[10\] there and None here"),
        (wide, CReFF(), r"model or method: 'head' is None there and \[10, 9\] here"),
    ):
        with pytest.raises(RecordError, match=message):
            fedacd.Result.load(folder, model=model, method=method)


def test_a_model_of_the_same_shapes_that_is_another_is_warned_of(digits: Dataset, tmp_path: Path) -> None:
    def trained(num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, num_classes))

    def edited(num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, num_classes))

    folder = fedacd.run(dataset=digits, model=trained, method="fedavg", out=tmp_path / "run", **TINY).folder
    fedacd.Result.load(folder, model=trained)
    with pytest.warns(UserWarning, match="not the model that was trained"):
        fedacd.Result.load(folder, model=edited)


def test_a_model_file_runs_nothing_that_is_not_asked_for(tmp_path: Path) -> None:
    about: dict[str, Any] = {
        "holds": "model",
        "model": "os:system",
        "model_options": {"command": f"touch {tmp_path}/ran"},
    }
    about |= {"method": "fedavg", "method_options": {}, "shape": [1, 8, 8], "mean": [0.5], "std": [0.5]}
    write_safetensors(tmp_path / "model.safetensors", {"params/w": torch.zeros(1)}, about | {"class_names": ["a", "b"]})
    with pytest.raises(RecordError, match="your own model 'os:system'"):
        fedacd.GlobalModel.load(tmp_path)
    assert not (tmp_path / "ran").exists()
    write_safetensors(tmp_path / "model.safetensors", {"params/w": torch.zeros(1)}, about)
    with pytest.raises(RecordError, match="does not say its class_names"):
        fedacd.GlobalModel.load(tmp_path)


def test_model_answers_with_probabilities_and_refuses_other_images(digits: Dataset, tmp_path: Path) -> None:
    model = fedacd.run(dataset=digits, out=str(tmp_path / "run"), **TINY).model
    p = model(digits.x_test[:7])
    assert p.shape == (7, 10)
    torch.testing.assert_close(p.sum(1), torch.ones(7))
    torch.testing.assert_close(model(torch.tensor(digits.x_test[:7])), p)
    torch.testing.assert_close(model(digits.x_test[:7, ..., 0]), p)  # no channel axis
    with pytest.raises(DataError, match=r"must be uint8 \[N, 8, 8, 1\]"):
        model(digits.x_test[:7].astype(np.float32))
    with pytest.raises(DataError, match=r"must be uint8"):
        model(digits.x_test[:7, :5])


def test_images_may_be_a_view(digits: Dataset, tmp_path: Path) -> None:
    model = fedacd.run(dataset=digits, out=str(tmp_path / "run"), **TINY).model
    mirrored = digits.x_test[:7, :, ::-1]  # torch knows no negative strides
    torch.testing.assert_close(model(mirrored), model(mirrored.copy()), rtol=0, atol=0)


def test_a_models_constants_are_in_its_file(digits: Dataset, tmp_path: Path) -> None:
    """They were drawn when the run began: another seed would draw others."""
    result = fedacd.run(dataset=digits, model=Shifted, seed=3, out=tmp_path / "run", **TINY)
    again = fedacd.Result.load(result.folder, model=Shifted)
    torch.testing.assert_close(again.model(digits.x_test), result.model(digits.x_test), rtol=0, atol=0)
    file = tmp_path / "run" / "model.safetensors"
    tensors, about = read_safetensors(file, "model")
    del tensors["constants/shift"], about["checksum"]
    write_safetensors(file, tensors, about)
    with pytest.raises(RecordError, match=r"does not hold the model's constant 'shift' as \[1, 8, 8\]"):
        _ = fedacd.Result.load(result.folder, model=Shifted).model


def test_a_method_object_and_a_callback(digits: Dataset, tmp_path: Path) -> None:
    seen: list[int] = []
    result = fedacd.run(
        dataset=digits,
        method=FedACD(lam=0.5, weighting="uniform"),
        out=str(tmp_path / "run"),
        on_round=lambda record: seen.append(record["round"]),
        **TINY,
    )
    assert seen == [1, 2]
    assert result.config.method.name == "fedacd"
    assert result.config.method.options["lam"] == 0.5
    assert result.history[0]["weights"] == pytest.approx([0.5, 0.5])
    assert result.config.train.mixup is True


def test_a_method_of_ones_own(digits: Dataset, tmp_path: Path) -> None:
    class Lazy(Method):
        """FedAvg under another name."""

        title = "Lazy"
        citation = "nobody"

    result = fedacd.run(dataset=digits, method=Lazy(), out=str(tmp_path / "run"), **TINY)
    assert len(result.history) == 2
    assert str(result.config.method.name).endswith("Lazy")
    for method in (Lazy(), Lazy):
        again = fedacd.Result.load(result.folder, method=method)
        torch.testing.assert_close(again.model(digits.x_test), result.model(digits.x_test))
    with pytest.raises(ConfigError, match=r"method\.lam is set beside a method object"):
        fedacd.run({"method.lam": 2.0}, dataset=digits, method=FedACD(lam=0.5))


def test_a_method_of_ones_own_may_leave_a_setting_open(digits: Dataset, tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Late(Method):
        first: int | None = setting(None, "round to begin with", at_least=1)

    for number, first in enumerate((None, 2)):
        result = fedacd.run(dataset=digits, method=Late(first=first), out=tmp_path / str(number), **TINY)
        assert result.config.method.options.get("first") == first
        assert fedacd.Result.load(result.folder, method=Late).model.method == Late(first=first)


def test_settings_that_an_object_would_overrule_are_refused(digits: Dataset) -> None:
    lists = [np.arange(100), np.arange(100, 250)]
    for settings, objects, message in (
        (
            {"partition.scheme": "shards"},
            {"partition": lists},
            r"partition\.scheme = 'shards' is set beside a partition",
        ),
        ({"partition.file": "x.json"}, {"partition": lists}, r"partition\.file = 'x.json' is set beside a partition"),
        ({"data.name": "cifar10"}, {"dataset": digits}, r"data\.name = 'cifar10' is set beside a dataset"),
        ({"model.name": "resnet18"}, {"model": Perceptron}, r"model\.name = 'resnet18' is set beside a model"),
        ({"train.lr": 0.5}, {"lr": 0.01}, r"train\.lr is given twice, by its option and in settings"),
    ):
        with pytest.raises(ConfigError, match=message):
            fedacd.run(settings, **{"dataset": digits, **objects})  # type: ignore[arg-type]


@pytest.mark.parametrize("inherited", [False, True])
def test_a_changed_method_is_another_run(
    inherited: bool, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edited loss must not get the numbers of the one before."""
    monkeypatch.chdir(tmp_path)

    def folder(factor: str, **options: Any) -> Path:
        Path("edited.py").write_text(
            "import fedacd\n"
            f"class {'Part' if inherited else 'Scaled(fedacd.Method)'}:\n"
            "    def loss(self, out, y, w, now, shared, client):\n"
            f"        return {factor} * super().loss(out, y, w, now, shared, client)\n"
            f"{'class Scaled(Part, fedacd.Method): pass' if inherited else ''}\n"
        )
        linecache.clearcache()
        sys.modules.pop("edited", None)
        importlib.invalidate_caches()
        return fedacd.run(dataset=digits, method="edited:Scaled", **TINY | options).folder

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first = folder("1.0")
    assert folder("1.0") == first != folder("0.5")
    with pytest.raises(RecordError, match=r"method\.fingerprint is"):
        folder("0.25", out=first)
    with pytest.raises(ConfigError, match=r"method\.fingerprint: 'Scaled' is not the method of this config any more"):
        fedacd.run({"method.fingerprint": "0" * 16}, dataset=digits, method="edited:Scaled", **TINY)
    with pytest.raises(ConfigError, match=r"unknown setting of FedAvg 'method\.fingerprint'"):
        fedacd.run({"method.fingerprint": "0" * 16}, dataset=digits, method="fedavg", **TINY)


def test_a_changed_model_is_another_run(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def net(width: int, activation: type[nn.Module]) -> Any:
        return lambda num_classes: nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), activation(), nn.Linear(width, num_classes)
        )

    monkeypatch.chdir(tmp_path)
    folders = {
        fedacd.run(dataset=digits, model=net(width, activation), **TINY).folder
        for width, activation in ((8, nn.ReLU), (9, nn.ReLU), (8, nn.Tanh), (8, nn.ReLU))
    }
    assert len(folders) == 3
    with pytest.raises(RecordError, match=r"model\.fingerprint is"):
        fedacd.run(dataset=digits, model=net(9, nn.Tanh), out=folders.pop(), **TINY)


def test_inference_is_in_full_precision_whatever_the_run_was(digits: Dataset, tmp_path: Path) -> None:
    result = fedacd.run(dataset=digits, precision="bf16", out=tmp_path / "run", **TINY)
    torch.testing.assert_close(
        fedacd.Result.load(result.folder).model(digits.x_test), result.model(digits.x_test), rtol=0, atol=0
    )


def test_plain_python_values_are_taken(digits: Dataset, tmp_path: Path) -> None:
    result = fedacd.run(dataset=digits, out=tmp_path / "run", **TINY | {"rounds": np.int64(1), "lr": np.float32(0.5)})
    assert (result.config.train.rounds, result.config.train.lr) == (1, 0.5)
    with pytest.raises(ConfigError, match=r"dataset is a int: must be a name or an object of fedacd\.Dataset\."):
        fedacd.run(dataset=5)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"method is the class FedACD: must be a name or an object of fedacd\.Method\."
    ):
        fedacd.run(dataset=digits, method=FedACD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("digits",), {}, r"settings is 'digits': must be a mapping, such as .* The data set is dataset=\.\.\."),
        ((fedacd.Config(),), {}, r"settings is a Config: must be a mapping, .* Give config\.flat\(\)\."),
        (([],), {}, r"settings is a list: must be a mapping"),
        ((), {"partition": "iid"}, r"partition is 'iid': must be a list .* settings: \{'partition\.scheme': 'iid'\}"),
    ],
)
def test_arguments_in_the_wrong_place(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedacd.run(*arguments, **options)


def test_a_data_set_by_its_path(digits: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(path, **{name: getattr(digits, name) for name in names})
    result = fedacd.run(dataset=path, out=tmp_path / "run", **TINY | {"rounds": 1})
    assert result.config.data.name == str(path)


def test_own_index_lists(digits: Dataset, tmp_path: Path) -> None:
    lists = [np.arange(100), np.arange(100, 250), np.arange(250, 300)]
    result = fedacd.run(dataset=digits, partition=lists, out=str(tmp_path / "run"), **TINY | {"participation": 1.0})
    assert (result.config.partition.scheme, result.config.partition.clients) == ("custom", 3)
    weighted = fedacd.run(
        dataset=digits, partition=lists, method="fedavg", out=str(tmp_path / "avg"), **TINY | {"participation": 1.0}
    )
    assert weighted.history[0]["told"]["n"] == [100, 150, 50]
    with pytest.raises(ConfigError, match=r"partition\.clients"):
        fedacd.run(dataset=digits, partition=lists[:2], out=str(tmp_path / "other"), **TINY)


@pytest.mark.parametrize("lacks", ["test set", "classes"])
def test_a_client_s_share_is_no_data_set_of_a_run(digits: Dataset, lacks: str) -> None:
    x, y = digits.x_train, digits.y_train
    arrays = (x, y, None, None) if lacks == "test set" else (x, y * 0, x, y * 0)
    with pytest.raises(DataError, match="is a client's share: a run needs 2 classes or more and a test set"):
        fedacd.run(dataset=Dataset.from_arrays(*arrays, share=True), method="fedavg", **TINY)


def test_an_unknown_option_names_the_nearest(digits: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'round'\. Did you mean 'rounds'\?"):
        fedacd.run(dataset=digits, round=3)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no fedacd run"):
        fedacd.Result.load(tmp_path)


def test_all_is_complete() -> None:
    public = {
        name
        for name, value in vars(fedacd).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").startswith("fedacd")
        and not isinstance(value, type(fedacd))
    }
    assert public | {"METHODS", "MODELS", "__version__"} == set(fedacd.__all__)


def test_a_model_by_its_run_folder_and_what_is_no_model(digits: Dataset, tmp_path: Path) -> None:
    result = fedacd.run(dataset=digits, out=tmp_path / "run", **TINY)
    model = fedacd.GlobalModel.load(result.folder)
    torch.testing.assert_close(model(digits.x_test), result.model(digits.x_test), rtol=0, atol=0)
    (tmp_path / "cut").write_bytes((result.folder / "model.safetensors").read_bytes()[:1000])
    for path, message in {
        "nowhere": "cannot read .*nowhere: No such file or directory",
        "": "cannot read .*model.safetensors: No such file or directory",
        "cut": "cut is damaged or cut short",
    }.items():
        with pytest.raises(RecordError, match=message):
            fedacd.GlobalModel.load(tmp_path / path)


def test_files_are_for_whoever_may_read_new_ones(digits: Dataset, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = fedacd.run(dataset=digits, out=tmp_path / "run", **TINY).folder
    finally:
        os.umask(before)
    assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir() if file.suffix} == {
        file.name: 0o640 for file in folder.iterdir() if file.suffix
    }


def test_progress_is_shown_where_somebody_looks(
    digits: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fedacd.run(dataset=digits, out=tmp_path / "silent", **TINY)
    assert capsys.readouterr().err == ""
    fedacd.run(dataset=digits, out=tmp_path / "told", progress=True, **TINY)
    accuracy = f"accuracy {100 * result.history[1]['accuracy']:.2f} %"
    assert f"round 2/2, {accuracy}, " in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fedacd.run(dataset=digits, out=tmp_path / "looked", **TINY)
    assert "\rround 1/2, accuracy" in capsys.readouterr().err
    fedacd.run(dataset=digits, out=tmp_path / "hushed", progress=False, **TINY)
    assert capsys.readouterr().err == ""


def test_a_result_is_shown_in_a_line(digits: Dataset, tmp_path: Path) -> None:
    text = repr(fedacd.run(dataset=digits, out=tmp_path / "run", **TINY))
    assert text.startswith(f"Result(folder='{tmp_path / 'run'}', rounds=2, final={{'accuracy': 0.")
    assert len(text) < 400 + len(str(tmp_path))
