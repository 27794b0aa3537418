import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedacd.models
from fedacd.errors import ModelError
from fedacd.models import MODELS, Net, build, fingerprint, label, wrap

SHAPE = (3, 16, 20)
C = 5


def make(options: dict[str, Any] | None = None, *, name: Any = "small-cnn", seed: int = 0) -> Net:
    return build(name, SHAPE, C, options or {}, seed)


def classifier(flat: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(flat, num_classes))


class Mine(nn.Module):
    def __init__(self, num_classes: int, in_channels: int, image_size: tuple[int, int], width: int = 4) -> None:
        super().__init__()
        self.a = nn.Linear(in_channels * image_size[0] * image_size[1], width)
        self.b = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> object:
        return self.b(self.a(x.flatten(1)))


class TestSeed:
    @pytest.mark.parametrize("name", MODELS)
    def test_same_seed_same_weights(self, name: str) -> None:
        a, b, c = (make(name=name, seed=seed).initial for seed in (3, 3, 2**64))
        assert all(torch.equal(a[key], b[key]) for key in a)
        assert not torch.equal(a["head.weight"], c["head.weight"])

    def test_global_rng_is_neither_read_nor_moved(self) -> None:
        torch.manual_seed(0)
        first, state = make().initial, torch.get_rng_state()
        torch.manual_seed(1)
        second = make().initial
        assert all(torch.equal(first[key], second[key]) for key in first)
        torch.manual_seed(0)
        assert torch.equal(torch.get_rng_state(), state)


class TestFactory:
    def test_gets_what_it_names(self) -> None:
        seen: list[dict[str, Any]] = []

        def some(num_classes: int, shape: tuple[int, int, int]) -> nn.Module:
            seen.append({"num_classes": num_classes, "shape": shape})
            return classifier(960, num_classes)

        def rest(*, in_channels: int, image_size: tuple[int, int], width: int = 0, **more: Any) -> nn.Module:
            seen.append({"in_channels": in_channels, "image_size": image_size, "width": width, **more})
            return classifier(960, more["num_classes"])

        make(name=some)
        make({"width": 7, "depth": 2}, name=rest)
        assert seen == [
            {"num_classes": C, "shape": SHAPE},
            {"in_channels": 3, "image_size": (16, 20), "width": 7, "num_classes": C, "depth": 2},
        ]

    def test_a_class_with_an_option(self) -> None:
        assert make(name=Mine).num_features == 4
        assert make({"width": 9}, name=Mine).num_features == 9
        assert make(name=functools.partial(Mine, width=6)).num_features == 6

    def test_head_goes_to_wrap(self) -> None:
        assert make({"head": "b"}, name=Mine).num_features == 4
        with pytest.raises(ModelError, match=r"model.head = 'a' is not the head .* it has 4 outputs for 5 classes"):
            make({"head": "a"}, name=Mine)
        with pytest.raises(ModelError, match=r"model.head = 3: must be the name of a layer"):
            make({"head": 3}, name=Mine)

    @pytest.mark.parametrize("option", ["widht", "num_classes"])
    def test_unknown_option(self, option: str) -> None:
        with pytest.raises(
            ModelError, match=rf"^model.{option} for model '.*:Mine': unknown option '{option}'.* Known: head, width\."
        ):
            make({option: 3}, name=Mine)
        with pytest.raises(
            ModelError, match=r"^model.width for model 'small-cnn': unknown option 'width'. Known: head\."
        ):
            make({"width": 3})

    @pytest.mark.parametrize(
        ("factory", "message"),
        [
            (lambda: 3, "must make an nn.Module, not int"),
            (lambda num_classes: 1 // 0, "called with num_classes: ZeroDivisionError"),
            (lambda depth: None, "called with nothing: TypeError: .*missing.* 'depth'"),
            (nn.Flatten(), "an object of Flatten, .*give a class"),
            (3, "an object of int, .*give a class"),
        ],
    )
    def test_what_is_no_factory(self, factory: Callable[..., nn.Module], message: str) -> None:
        with pytest.raises(ModelError, match=message):
            make(name=factory)

    def test_a_model_that_does_not_fit_is_named(self) -> None:
        with pytest.raises(ModelError, match=r"model '.*:TestFactory\..*<lambda>' fails on images of 3x16x20"):
            make(name=lambda: classifier(7, C))


class TestName:
    def test_unknown(self) -> None:
        with pytest.raises(ModelError, match=r"unknown model 'resnet'. Did you mean 'resnet18'\? .*module:callable"):
            make(name="resnet")

    def test_imported_from_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
        monkeypatch.chdir(tmp_path)
        (tmp_path / "own_models.py").write_text(
            "from torch import nn\n"
            "class Box:\n"
            "    @staticmethod\n"
            "    def make(shape, num_classes):\n"
            "        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], num_classes))\n"
            "number = 3\n"
        )
        (tmp_path / "own_broken.py").write_text("import absent_package\n")
        assert make(name="own_models:Box.make").num_features == 960
        for name, message in {
            "own_models:Box.mak": "'own_models' has no 'Box.mak'",
            "own_models:": "'own_models' has no ''",
            "own_models:number": "'own_models:number' is an object of int",
            "own_modelz:Box": "cannot import 'own_modelz': ModuleNotFoundError",
            "own_broken:Box": "cannot import 'own_broken': ModuleNotFoundError: No module named 'absent_package'",
            ":Box": "cannot import ''",
        }.items():
            with pytest.raises(ModelError, match=message):
                make(name=name)


def test_label() -> None:
    assert label("cnn") == "cnn"
    assert label(Mine) == f"{__name__}:Mine"
    assert label(functools.partial(Mine, width=3)) == f"{__name__}:Mine"
    assert label(classifier) == f"{__name__}:classifier"


@pytest.mark.parametrize("name", MODELS)
def test_a_registered_factory_is_its_name(name: str) -> None:
    assert label(MODELS[name]) == name
    assert fingerprint(MODELS[name], make(name=name)) is None
    part = functools.partial(MODELS[name])
    assert ":" in label(part)  # its arguments are not in a record
    assert fingerprint(part, make(name=part)) is not None


def test_a_factory_may_be_an_object_that_cannot_be_hashed() -> None:
    @dataclasses.dataclass
    class Sized:
        width: int

        def __call__(self, num_classes: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(960, self.width), nn.Linear(self.width, num_classes))

    assert fingerprint(Sized(3), make(name=Sized(3))) != fingerprint(Sized(4), make(name=Sized(4)))


def test_all_is_complete() -> None:
    public = {
        name
        for name, value in vars(fedacd.models).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("fedacd.models")
    }
    assert public | {"Factory", "MODELS"} == set(fedacd.models.__all__)


class Ending(nn.Module):
    """A layer, and what comes after it."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), end)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def test_a_model_that_ends_in_softmax_is_refused() -> None:
    """Softmax of softmax trains without a word, and badly. Log probabilities are logits."""
    with pytest.raises(ModelError, match="model 'Ending' gives probabilities, and every loss here wants logits"):
        wrap(Ending(nn.Softmax(-1)), (1, 8, 8), 3)
    for end in (nn.LogSoftmax(-1), nn.Sigmoid(), nn.Identity()):
        wrap(Ending(end), (1, 8, 8), 3)
