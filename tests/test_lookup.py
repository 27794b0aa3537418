"""The mark of code: it changes with what the code does, and with nothing else."""

import functools
import importlib
import linecache
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedacd
from fedacd.config import setting
from fedacd.data import Dataset
from fedacd.errors import ConfigError
from fedacd.lookup import code_mark, of_another_python
from fedacd.methods import METHODS, FedProx, Method
from fedacd.models import build, fingerprint

CELL = """
from dataclasses import dataclass
from typing import ClassVar
import torch
import fedacd
SCALE = 1.0
TABLE = {"a": 1}
UNUSED = 1

def helper(x):
    return x * SCALE

def make(mu):
    @dataclass(frozen=True, kw_only=True)
    class Prox(fedacd.Method):
        rho: float = fedacd.config.setting(0.1, "something")
        FACTOR: ClassVar[int] = 3
        def loss(self, out, y, w, now, shared, client, eps=1e-6):
            \"\"\"Documented.\"\"\"
            inner = lambda v: helper(v) if v in {"a", "b", "c", "d"} else v
            return inner(super().loss(out, y, w, now, shared, client)) + mu * self.FACTOR + eps + TABLE["a"]
    return Prox
"""


def cell(source: str = CELL, **values: Any) -> dict[str, Any]:
    """What a cell of a notebook leaves: code without a file."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec"), space)
    return space | values


def prox(old: str = "", new: str = "", mu: Any = 0.5) -> str:
    """The fingerprint of the method above, changed."""
    assert old in CELL
    mark: str = cell(CELL.replace(old, new) if old else CELL)["make"](mu).fingerprint()
    return mark


class TestMethod:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("+ eps", "- eps"),
            ("1e-6", "1e-5"),
            ("[int] = 3", "[int] = 4"),
            ("SCALE = 1.0", "SCALE = 2.0"),
            ('"a": 1', '"a": 2'),
            ("x * SCALE", "x / SCALE"),
            ('"d"}', '"e"}'),
            ("helper(v) if", "v if"),
            ("mu * self", "mu + self"),
        ],
    )
    def test_an_edit_counts(self, old: str, new: str) -> None:
        assert prox(old, new) != prox()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("SCALE = 1.0", "\n\n# elsewhere\nSCALE = 1.0"),
            ("UNUSED = 1", "UNUSED = 2"),
            ("return x *", "return x  *  "),
            ("[int] = 3", "[int] = 3  # three"),
            ("eps=1e-6", "eps: float = 1e-6"),
            ("setting(0.1", "setting(0.2"),  # it is in the config
        ],
    )
    def test_what_changes_nothing_does_not(self, old: str, new: str) -> None:
        assert prox(old, new) == prox()

    @pytest.mark.parametrize(
        "value",
        [0.25, 1, True, None, "x", (1, 2), (1, 3), [1], {"a": 1}, {"a": 2}, {"a"}, np.ones(2), torch.ones(2),
         torch.zeros(2), torch.ones(()), torch.ones(2).bfloat16(), np.array([None]), nn.LazyLinear(2),
         abs, nn.ReLU(), functools.partial(F.leaky_relu, negative_slope=0.1), types.SimpleNamespace(a=1)],
    )  # fmt: skip
    def test_what_a_closure_holds_counts(self, value: Any) -> None:
        assert prox(mu=value) != prox() and prox(mu=value) == prox(mu=value)

    def test_values_are_told_apart(self) -> None:
        values = [1, 1.0, True, "1", (1,), [1], {1}, {1: 1}, torch.ones(1), torch.zeros(1), np.ones(1)]
        assert len({prox(mu=value) for value in values}) == len(values)

    def test_weights_of_a_model_that_is_held_count(self) -> None:
        one, two = nn.Linear(2, 2), nn.Linear(2, 2)
        assert prox(mu=one) == prox(mu=one) != prox(mu=two)

    def test_methods_of_the_package_have_none(self) -> None:
        assert [method.fingerprint() for method in METHODS.values()] == [None] * len(METHODS)

    def test_settings_of_ones_own_are_of_the_class(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Own(FedProx):
            rho: float = setting(0.1, "something")

        class Bare(FedProx):
            title = "Own"

        assert Own.fingerprint() == Bare.fingerprint()  # its settings are in the config

    def test_calling_changes_nothing(self) -> None:
        space = cell()
        before = code_mark(space["helper"], [])
        for _ in range(1000):
            space["helper"](2.0)
        assert code_mark(space["helper"], []) == before

    def test_an_edited_file_is_not_what_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        file = tmp_path / "edited_later.py"
        file.write_text("import fedacd\nclass Own(fedacd.Method):\n    def check(self, reply, shared): return 'a'\n")
        import edited_later  # type: ignore[import-not-found]

        before = edited_later.Own.fingerprint()
        file.write_text(file.read_text().replace("'a'", "'b'"))
        linecache.clearcache()
        assert edited_later.Own.fingerprint() == before

    def test_other_modules_of_ones_own_are_followed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "own_helpers.py").write_text("def part(x): return x\ndef other(x): return x\n")
        space = cell("import own_helpers\nfrom own_helpers import other\ndef f(x): return own_helpers.part(x)\n")
        before = code_mark(space["f"], [])
        helpers = sys.modules["own_helpers"]
        for name, changes in {"other": False, "part": True}.items():
            monkeypatch.setattr(helpers, name, lambda x: x + 1)
            assert (code_mark(space["f"], []) != before) is changes

    def test_a_decorated_function_is_seen(self) -> None:
        source = "import torch, functools\n@DECORATOR\ndef f(x): return x + 1\n"
        for decorator in ("torch.no_grad()", "functools.cache", "functools.partial", "property", "staticmethod"):
            one, two = (
                code_mark(cell(text.replace("DECORATOR", decorator))["f"], [])
                for text in (source, source.replace("+ 1", "+ 2"))
            )
            assert one != two, decorator

    def test_cycles_end(self) -> None:
        held: list[Any] = [1]
        held.append(held)
        assert prox(mu=held) == prox(mu=held)

    def test_what_has_no_repr(self) -> None:
        class Odd:
            def __repr__(self) -> str:
                raise ValueError

        Odd.__module__ = "torch"
        assert prox(mu=Odd()) == prox(mu=Odd())


def test_every_process_has_the_same(tmp_path: Path) -> None:
    """Typed in, read from a file, read from its bytecode; whatever the order of sets."""
    (tmp_path / "as_file.py").write_text(CELL)
    ask = "print(make((0.5, frozenset(['x', 'y', 'z']), {'p', 'q', 'r'}, object())).fingerprint())"
    scripts = [CELL + ask, f"from as_file import make\n{ask}", f"from as_file import make\n{ask}"]
    found = [
        subprocess.run(
            [sys.executable, "-"],
            input=script,
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(["", *sys.path])},
        ).stdout
        for seed, script in enumerate(scripts)
    ]
    assert len(set(found)) == 1 and len(found[0]) > 16


class TestPython:
    def test_it_is_named(self) -> None:
        mark = str(cell()["make"](1).fingerprint())
        assert mark.endswith(f"-py{sys.version_info.major}.{sys.version_info.minor}")
        assert of_another_python(mark) is None
        assert of_another_python("0123456789abcdef-py2.7") == "2.7"
        assert of_another_python("0123456789abcdef") is None

    def test_a_method_of_another_is_taken_with_a_warning(self) -> None:
        class Own(Method):
            pass

        with pytest.warns(UserWarning, match=r"method\.fingerprint is of Python 2\.7: whether 'Own' has changed"):
            assert Own.build({"fingerprint": "0" * 16 + "-py2.7"}) == Own()


NET = """
import torch
from torch import nn
class Base(nn.Module):
    def act(self, x):
        return x.relu()

class Block(Base):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)
        self._draw = [torch.rand(2)]
    def forward(self, x):
        return self.act(self.linear(x))

class Net(nn.Module):
    def __init__(self, num_classes, act=torch.tanh):
        super().__init__()
        self.block, self.head, self.act_ = Block(960), nn.Linear(960, num_classes), act
    def forward(self, x):
        return self.head(self.act_(self.block(x.flatten(1))))

def factory(num_classes):
    return nn.Sequential(Net(num_classes), nn.Identity())
"""

EDITS = (("x.relu()", "x.abs()"), ("self.act(self.l", "-self.act(self.l"))
"""Of the base of an inner layer, and of the layer."""


def net_mark(make: Any, seed: int = 0) -> str | None:
    return fingerprint(make, build(make, (3, 16, 20), 5, {}, seed))


class TestModel:
    @pytest.mark.parametrize("made_by", ["Net", "factory"])
    def test_parts_count(self, made_by: str) -> None:
        first = net_mark(cell(NET)[made_by])
        assert net_mark(cell(NET)[made_by], seed=1) == first  # and what is drawn does not
        for old, new in (*EDITS, ("Block(960)", "Block(960).half().float()")):
            assert net_mark(cell(NET.replace(old, new))[made_by]) != first

    def test_layers_count_wherever_the_factory_has_them_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def find(num_classes: int) -> nn.Module:
            module: nn.Module = importlib.import_module("found_by_name").made(num_classes)
            return module

        marks = set()
        for old, new in (("", ""), *EDITS):
            module = types.ModuleType("found_by_name")
            module.made = cell(NET.replace(old, new))["Net"]  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "found_by_name", module)
            marks.add(net_mark(find))
        assert len(marks) == 3

    def test_a_factory_counts(self) -> None:
        edited = cell(NET.replace("Sequential(Net(num_classes)", "Sequential(Net(num_classes=num_classes)"))
        assert net_mark(edited["factory"]) != net_mark(cell(NET)["factory"])

    def test_arguments_count(self) -> None:
        make = cell(NET)["Net"]
        slopes = (functools.partial(F.leaky_relu, negative_slope=slope) for slope in (0.1, 0.2))
        acts = [torch.tanh, torch.relu, F.elu, *slopes, lambda x: x + 1, lambda x: x + 2]
        assert len({net_mark(functools.partial(make, act=act)) for act in acts}) == len(acts)

    def test_layers_of_torch_with_functions(self) -> None:
        def make(act: Any) -> Any:
            return lambda num_classes: nn.Sequential(Wrap(act), nn.Flatten(), nn.Linear(960, num_classes))

        assert net_mark(make(torch.relu)) != net_mark(make(torch.tanh))
        assert net_mark(make(torch.relu)) == net_mark(make(torch.relu))


def test_old_numbers_are_not_given_for_new_code(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny: dict[str, Any] = {"dataset": digits, "clients": 3, "participation": 0.7, "rounds": 1, "epochs": 1}
    old, new = (cell(text.replace("960", "64"))["Net"] for text in (NET, NET.replace("x.relu()", "x.abs()")))
    folder = fedacd.run(model=old, method=cell()["make"](0.5)(), **tiny).folder
    assert fedacd.run(model=old, method=cell()["make"](0.5)(), **tiny).folder == folder
    assert fedacd.run(model=old, method=cell()["make"](0.25)(), **tiny).folder != folder
    assert fedacd.run(model=new, method=cell()["make"](0.5)(), **tiny).folder != folder
    method = cell()["make"](0.5)
    fedacd.Result.load(folder, model=old, method=method)
    with pytest.warns(UserWarning, match="not the model that was trained"):
        fedacd.Result.load(folder, model=new, method=method)
    with pytest.raises(ConfigError, match="'Prox' is not the method of this config any more"):
        fedacd.Result.load(folder, model=old, method=cell()["make"](0.25))


def test_a_model_of_another_python(digits: Dataset, tmp_path: Path) -> None:
    """Sites may have other versions of Python: that cannot be told from a change, and is a warning."""
    net, there = cell(NET.replace("960", "64"))["Net"], {"model.fingerprint": "0" * 16 + "-py2.7"}
    few: dict[str, Any] = {"dataset": digits, "model": net, "rounds": 1, "clients": 3, "out": tmp_path}
    with pytest.warns(
        UserWarning, match=r"model\.fingerprint is of Python 2\.7: whether '.*' has changed cannot be told"
    ):
        result = fedacd.run(there, **few)
    assert result.config.model.options["fingerprint"].endswith(f"-py{sys.version_info.major}.{sys.version_info.minor}")


class Wrap(nn.Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Any:
        return self.act(x)
