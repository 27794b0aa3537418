"""What competes with what, and what it is called."""

from pathlib import Path

from fedacd.report.group import Grouped, group
from fedacd.report.read import read_runs
from tests.report.made import make_many, make_run


def grouped(root: Path) -> Grouped:
    return group(read_runs([root])[0])


def test_seeds_are_repetitions(tmp_path: Path) -> None:
    make_many(tmp_path, seeds=2)
    found = grouped(tmp_path)
    assert [problem.title for problem in found.problems] == [
        "CIFAR-10, beta 0.05", "CIFAR-10, beta 0.1", "CIFAR-100, beta 0.05", "CIFAR-100, beta 0.1",
    ]  # fmt: skip
    assert found.methods == ["FedACD", "FedAvg", "FedLC"]
    assert [[run.seed for run in group.runs] for group in found.groups] == [[0, 1]] * 12


def test_variants_of_a_method_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", train__mixup=False)
    make_run(tmp_path / "c", method__weighting="uniform", method__lam=0.5)
    make_run(tmp_path / "d", method="fedavg", train__lr=0.01)
    assert grouped(tmp_path).methods == [
        "FedACD",
        "FedACD (mixup off)",
        "FedACD (weighting uniform, lam 0.5)",
        "FedAvg",
    ]


def test_problems_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    make_run(tmp_path / "a", train__epochs=10)
    make_run(tmp_path / "b", train__epochs=5)
    make_run(tmp_path / "c", partition__scheme="iid")
    make_run(tmp_path / "d", partition__scheme="shards", partition__classes_per_client=3)
    titles = [problem.title for problem in grouped(tmp_path).problems]
    assert sorted(titles) == [
        "digits, 3 classes a client", "digits, beta 0.1, epochs 10", "digits, beta 0.1, epochs 5", "digits, iid",
    ]  # fmt: skip
    assert titles.index("digits, beta 0.1, epochs 5") < titles.index("digits, beta 0.1, epochs 10")


def test_a_beta_that_is_not_used_makes_no_difference(tmp_path: Path) -> None:
    make_run(tmp_path / "a", partition__scheme="iid", partition__beta=0.1)
    make_run(tmp_path / "b", partition__scheme="iid", partition__beta=0.5, seed=1)
    (only,) = grouped(tmp_path).groups
    assert len(only.runs) == 2


def test_a_data_set_in_a_file_goes_by_the_files_name(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__name="/home/me/sets/birds.npz")
    assert grouped(tmp_path).problems[0].dataset == "birds.npz"


def test_a_method_of_ones_own_keeps_its_name(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="mine:Better")
    make_run(tmp_path / "b", method="fedavg")
    assert grouped(tmp_path).methods == ["FedAvg", "mine:Better"]
