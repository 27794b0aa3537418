"""The numbers and the words of the report."""

from pathlib import Path
from typing import Any

import pytest

from fedacd.records import summary
from fedacd.report import collect
from fedacd.report.compare import late_mean, show_p, spread
from fedacd.report.read import Run, read_runs
from tests.report.made import flat, make_run


def only(folder: Path) -> Run:
    ((run,), _) = read_runs([folder])
    return run


def pair(root: Path, levels: dict[str, list[float]], **options: Any) -> dict[str, Any]:
    for method, values in levels.items():
        for seed, level in enumerate(values):
            make_run(root / f"{method}-{seed}", method=method, seed=seed, change=flat(level), **options)
    (found,) = collect([root])["pairs"]
    return dict(found)


def test_the_last_ten_rounds_are_those_of_the_record(tmp_path: Path) -> None:
    run = only(make_run(tmp_path / "a", rounds=25))
    assert late_mean(run, "accuracy") == pytest.approx(summary(run.rounds)["accuracy"])
    assert late_mean(run, "accuracy", 12) == pytest.approx(sum(r["accuracy"] for r in run.rounds[2:12]) / 10)


def test_rounds_that_were_not_measured_do_not_count(tmp_path: Path) -> None:
    def rarely(record: dict[str, Any]) -> dict[str, Any]:
        return record if record["round"] == 1 else record | {"accuracy": None}

    run = only(make_run(tmp_path / "a", rounds=25, change=rarely))
    assert late_mean(run, "accuracy") == run.rounds[0]["accuracy"]


def test_mean_and_spread() -> None:
    assert spread([1.0, 3.0, None], 100) == {"mean": 200, "sd": pytest.approx(141.421356), "n": 2}
    assert spread([1.0]) == {"mean": 1, "sd": None, "n": 1}
    assert spread([None]) is None


def test_a_sure_difference(tmp_path: Path) -> None:
    found = pair(tmp_path, {"fedacd": [0.51, 0.52, 0.53], "fedavg": [0.50, 0.505, 0.52]})
    # Differences 1, 1.5 and 1 points: mean 7/6, t = 7 with 2 degrees of freedom.
    assert found["mean"] == pytest.approx(7 / 6, abs=1e-4)
    assert found["p"] == pytest.approx(0.0198, abs=1e-4)
    assert found["words"] == "FedACD is better than FedAvg on digits at beta 0.1 by 1.2 points (3 seeds, p = 0.02)."
    assert found["short"] == "FedACD is better than FedAvg by 1.2 points (3 seeds, p = 0.02)."
    assert found["verdict"] == "sure"


def test_an_unsure_difference_says_so(tmp_path: Path) -> None:
    found = pair(tmp_path, {"fedacd": [0.50, 0.55, 0.53], "fedavg": [0.52, 0.52, 0.52]})
    assert found["verdict"] == "unsure"
    assert found["words"].startswith(
        "FedACD is ahead of FedAvg on digits at beta 0.1 by 0.7 points, which may be chance"
    )


def test_two_seeds_are_never_sure(tmp_path: Path) -> None:
    found = pair(tmp_path, {"fedacd": [0.51, 0.52], "fedavg": [0.501, 0.5101]})
    assert found["p"] < 0.05
    assert found["verdict"] == "likely"
    assert found["words"].endswith("; two seeds are few).")


def test_one_seed_proves_nothing(tmp_path: Path) -> None:
    found = pair(tmp_path, {"fedacd": [0.50], "fedavg": [0.60]})
    assert (found["p"], found["verdict"]) == (None, "one seed")
    assert found["words"].startswith("FedAvg is ahead of FedACD on digits at beta 0.1 by 10.0 points, in one seed")


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [
        ([0.5], [0.5], ", in one seed: that proves nothing yet."),
        ([0.501, 0.502, 0.497], [0.5, 0.5, 0.5], " (3 seeds, p = 1.00)."),
        ([0.1 + 0.2] * 3, [0.3] * 3, " (3 seeds, p = 1.00)."),
    ],
    ids=["one seed", "in the mean", "but for the last digit"],
)
def test_a_tie_says_so(first: list[float], second: list[float], ends: str, tmp_path: Path) -> None:
    found = pair(tmp_path, {"fedavg": first, "fedprox": second})
    assert found["words"] == f"FedAvg and FedProx are equal on digits at beta 0.1{ends}"
    assert found["verdict"] in ("one seed", "unsure")


def test_many_pairs_make_a_verdict_harder(tmp_path: Path) -> None:
    pair(tmp_path / "x", {"fedacd": [0.51, 0.52, 0.53], "fedavg": [0.50, 0.505, 0.52]})
    for method in ("fedlc", "fedprox"):
        for seed in range(3):
            make_run(tmp_path / "x" / f"{method}{seed}", method=method, seed=seed, change=flat(0.4 + 0.05 * seed))
    found = collect([tmp_path])["pairs"][0]
    assert (found["verdict"], found["p"] < 0.05 < found["holm"]) == ("likely", True)
    assert "is probably better than" in found["words"]


def test_unfinished_runs_are_compared_at_the_round_they_share(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="fedacd", rounds=40, done=15, level=0.5)
    make_run(tmp_path / "b", method="fedavg", rounds=40, level=0.5)
    (found,) = collect([tmp_path])["pairs"]
    assert found["end"] == 15
    assert found["mean"] == pytest.approx(0, abs=1e-9)
    assert "on digits at beta 0.1 after 15 rounds" in found["words"]
    assert "are equal after 15 rounds" in found["short"]


def test_an_unfinished_seed_does_not_count_beside_finished_ones(tmp_path: Path) -> None:
    for method, level in (("fedacd", 0.6), ("fedavg", 0.5)):
        for seed in range(2):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, change=flat(level + 0.01 * seed))
    make_run(tmp_path / "late", method="fedacd", seed=2, done=1)
    data = collect([tmp_path])
    (found,) = data["pairs"]
    assert (found["n"], found["end"], found["mean"]) == (2, None, pytest.approx(10))
    assert data["groups"][0]["row"]["accuracy"]["mean"] == pytest.approx(60.5)
    assert data["groups"][0]["unfinished"] == ["seed 2 unfinished: 1 of 12 rounds, not counted"]


def test_seeds_not_in_common_make_no_pair(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="fedacd", seed=0)
    make_run(tmp_path / "b", method="fedavg", seed=1)
    assert collect([tmp_path])["pairs"] == []


Levels = dict[str, dict[int, float]]


def told(root: Path, levels: Levels) -> tuple[list[str], list[str]]:
    """(the methods of the only problem, best first; the headlines)"""
    for method, values in levels.items():
        for seed, level in values.items():
            make_run(root / f"{method}-{seed}", method=method, seed=seed, change=flat(level))
    data = collect([root])
    (order,) = data["rankings"]
    return [data["methods"][method] for method in order], data["headlines"]


@pytest.mark.parametrize(
    ("levels", "ranked"),
    [
        ({"fedacd": {0: 0.7, 1: 0.5}, "fedlc": {0: 0.65}, "fedavg": {0: 0.62}}, ["FedACD", "FedLC", "FedAvg"]),
        ({"fedacd": {0: 0.6, 1: 0.8}, "fedlc": {0: 0.65}}, ["FedLC", "FedACD"]),
        ({"fedacd": {0: 0.6}, "fedlc": {1: 0.65}}, ["FedLC", "FedACD"]),
        ({"fedacd": {0: 0.6}, "fedlc": {0: 0.6}}, ["FedACD", "FedLC"]),
        # FedACD beats FedAvg at seed 0, FedAvg FedLC at seed 1, FedLC FedACD at seed 2: the mean has to do.
        (
            {"fedacd": {0: 0.6, 2: 0.3}, "fedavg": {0: 0.5, 1: 0.7}, "fedlc": {1: 0.6, 2: 0.4}},
            ["FedAvg", "FedLC", "FedACD"],
        ),
    ],
    ids=["a hard seed", "the other way round", "no seed in common", "a tie", "in a circle"],
)
def test_nobody_comes_before_a_method_that_is_ahead(levels: Levels, ranked: list[str], tmp_path: Path) -> None:
    assert told(tmp_path, levels)[0] == ranked


def test_the_headline_is_of_the_first_two(tmp_path: Path) -> None:
    _, (line,) = told(tmp_path, {"fedacd": {0: 0.7, 1: 0.5}, "fedlc": {0: 0.65}, "fedavg": {0: 0.62}})
    assert line.startswith("FedACD is ahead of FedLC on digits at beta 0.1 by 5.0 points, in one seed")


def test_the_headline_says_that_no_seed_is_in_common(tmp_path: Path) -> None:
    _, (line,) = told(tmp_path, {"fedacd": {0: 0.7}, "fedlc": {1: 0.65}})
    assert line == (
        "FedACD comes first on digits at beta 0.1, FedLC next, with no seed in common: "
        "they cannot be compared in pairs."
    )


def test_one_method_has_no_headline(tmp_path: Path) -> None:
    assert told(tmp_path, {"fedacd": {0: 0.7}}) == (["FedACD"], [])


def test_a_deployments_record_has_no_risk(tmp_path: Path) -> None:
    make_run(tmp_path / "a", change=lambda record: record | {"risk": None, "kl_local": None, "kl_test": None})
    (group,) = collect([tmp_path])["groups"]
    assert (group["row"]["risk"], group["row"]["kl_test"]) == (None, None)
    assert "risk" not in group["curves"]


def test_the_row_of_a_group(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (group,) = collect([tmp_path])["groups"]
    row = group["row"]
    assert row["megabytes"]["mean"] == 2
    assert row["seconds"]["mean"] == 0.5
    assert row["best"]["mean"] == row["last"]["mean"] >= row["accuracy"]["mean"]


def test_a_run_without_rounds_is_listed_and_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a", done=0)
    make_run(tmp_path / "b", method="fedavg")
    data = collect([tmp_path])
    assert [run["state"] for run in data["runs"]] == ["unfinished: 0 of 12 rounds", "12 rounds"]
    assert data["pairs"] == []


@pytest.mark.parametrize(("p", "shown"), [(0.0002, "p < 0.001"), (0.0042, "p = 0.004"), (0.25, "p = 0.25")])
def test_a_small_p_is_a_bound(p: float, shown: str) -> None:
    assert show_p(p) == shown


@pytest.mark.parametrize(
    ("p", "shown"), [(0.044, "0.04"), (0.0463, "0.046"), (0.0498, "0.0498"), (0.0503, "0.050"), (0.0505, "0.051")]
)
def test_the_digits_of_p_say_on_which_side_of_the_level_it_lies(p: float, shown: str) -> None:
    assert show_p(p) == f"p = {shown}"
