"""Curves, costs and pictures: thinned, within their budget, and right."""

import base64
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedacd.report import collect, pictures
from fedacd.report.series import POINTS, thin
from tests.report.made import make_run, make_summary


def test_long_curves_are_thinned_and_keep_their_ends(tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=1000)
    (group,) = collect([tmp_path])["groups"]
    rounds = group["curves"]["round"]
    assert (len(rounds), rounds[0], rounds[-1]) == (POINTS, 1, 1000)
    assert len(group["curves"]["accuracy"]["mean"]) == POINTS
    assert thin(3) == [0, 1, 2]


def test_bands_are_standard_deviations_over_seeds(tmp_path: Path) -> None:
    def by_seed(record: dict[str, Any], level: float) -> dict[str, Any]:
        return record | {"accuracy": level}

    for seed, level in enumerate([0.4, 0.6]):
        make_run(tmp_path / str(seed), seed=seed, change=functools.partial(by_seed, level=level))
    (group,) = collect([tmp_path])["groups"]
    curve = group["curves"]["accuracy"]
    assert set(curve["mean"]) == set(curve["smooth"]) == {50.0}
    assert set(curve["sd"]) == {14.14}


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (group,) = collect([tmp_path])["groups"]
    assert group["curves"]["accuracy"]["sd"] is None


def test_the_mean_of_the_last_ten_rounds(tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=20, change=lambda record: record | {"accuracy": record["round"] / 100})
    (group,) = collect([tmp_path])["groups"]
    smooth = group["curves"]["accuracy"]["smooth"]
    assert smooth[:2] == [1.0, 1.5]
    assert smooth[-1] == pytest.approx(sum(range(11, 21)) / 10)


def test_the_cost_of_an_accuracy(tmp_path: Path) -> None:
    values = {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.4}
    make_run(tmp_path / "a", rounds=4, change=lambda record: record | {"accuracy": values[record["round"]]})
    (group,) = collect([tmp_path])["groups"]
    # Two of five clients take part, 2 MB each: 4 MB and half a second a round.
    assert group["records"] == [[[1, 0.5, 4.0, 10.0], [2, 1.0, 8.0, 30.0], [4, 2.0, 16.0, 40.0]]]


def test_whether_every_round_was_measured(tmp_path: Path) -> None:
    def rarely(record: dict[str, Any]) -> dict[str, Any]:
        return record if record["round"] % 2 else record | {"accuracy": None}

    make_run(tmp_path / "a")
    make_run(tmp_path / "b", method="fedavg", seed=0)
    make_run(tmp_path / "c", method="fedavg", seed=1, change=rarely)
    make_summary(tmp_path / "d", method="fedlc")
    assert [group["coarse"] for group in collect([tmp_path])["groups"]] == [False, True, True]


def test_unknown_times_stay_unknown(tmp_path: Path) -> None:
    def lost(record: dict[str, object]) -> dict[str, object]:
        return record | ({"seconds": None} if record["round"] == 3 else {})

    make_run(tmp_path / "a", rounds=4, change=lost)
    (group,) = collect([tmp_path])["groups"]
    assert group["curves"]["seconds"] == [0.5, 1.0, None, None]


def test_a_matrix_is_one_byte_an_entry() -> None:
    P = torch.tensor([[1.0, 0.0], [0.25, float("nan")]])
    text = pictures.pack(P)
    assert text is not None
    assert np.frombuffer(base64.b64decode(text), np.uint8).tolist() == [255, 0, 128, 0]
    assert pictures.pack(None) is None


def test_pictures_stay_within_their_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("fedacd", "fedavg"):
        for seed in range(2):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, classes=20, clients=10)
    whole = collect([tmp_path])
    assert len(whole["matrices"]) == 16
    monkeypatch.setattr(pictures, "BUDGET", 5000)
    cut = collect([tmp_path])
    # The same seed first, and every method before a second client.
    assert {(entry["method"], entry["seed"]) for entry in cut["matrices"]} == {(0, 0), (1, 0)}
    assert any("matrices of some clients are left out" in note for note in cut["notes"])


def test_what_is_not_recorded_is_absent(tmp_path: Path) -> None:
    def bare(record: dict[str, object]) -> dict[str, object]:
        return {key: record[key] for key in ("round", "accuracy")}

    make_run(tmp_path / "a", matrices=False, change=bare)
    data = collect([tmp_path])
    assert (data["matrices"], data["partitions"], data["shares"]) == ([], [], [])
    assert data["groups"][0]["per_class"] is None
    assert data["groups"][0]["row"]["seconds"] is None
