"""What competes with what, and what it is called."""

import functools
from pathlib import Path

import numpy as np

from fedacd.records import PARTITION
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
    make_run(tmp_path / "b", train__epochs=7)
    make_run(tmp_path / "c", partition__scheme="iid")
    make_run(tmp_path / "d", partition__scheme="shards", partition__classes_per_client=3)
    titles = [problem.title for problem in grouped(tmp_path).problems]
    assert sorted(titles) == [
        "digits, 3 classes a client", "digits, beta 0.1, epochs 10", "digits, beta 0.1, epochs 7", "digits, iid",
    ]  # fmt: skip
    assert titles.index("digits, beta 0.1, epochs 7") < titles.index("digits, beta 0.1, epochs 10")


def test_the_usual_setting_is_called_the_same_everywhere(tmp_path: Path) -> None:
    """As a report of the paper's runs has them: trials of 30 rounds, table 4's clients, table 6's epochs."""
    make = functools.partial(make_run, clients=20, done=1)
    for beta in (0.05, 0.1):
        make(tmp_path / f"a{beta}", rounds=200, data__name="cifar10", partition__beta=beta)
    make(tmp_path / "b", rounds=30, data__name="cifar10")
    make(tmp_path / "c", rounds=200, data__name="cifar100")
    make(tmp_path / "d", rounds=200, data__name="cifar100", train__participation=0.2)
    make(tmp_path / "e", rounds=200, data__name="cifar100", train__epochs=10)
    make(tmp_path / "f", rounds=200, data__name="cifar100", train__epochs=10, partition__clients=100)
    assert [problem.title for problem in grouped(tmp_path).problems] == [
        "CIFAR-10, beta 0.05", "CIFAR-10, beta 0.1", "CIFAR-10, beta 0.1, rounds 30",
        "CIFAR-100, beta 0.1", "CIFAR-100, beta 0.1, clients 100, epochs 10", "CIFAR-100, beta 0.1, epochs 10",
        "CIFAR-100, beta 0.1, participation 0.2",
    ]  # fmt: skip


def test_an_unusual_setting_is_called_the_same_everywhere(tmp_path: Path) -> None:
    make_run(tmp_path / "a", partition__clients=20, train__batch_size=16, partition__beta=0.05)
    make_run(tmp_path / "b", partition__clients=20, train__batch_size=16)
    make_run(tmp_path / "c", partition__clients=20, train__batch_size=64, method="fedavg")
    titles = [problem.title for problem in grouped(tmp_path).problems]
    assert titles == ["digits, beta 0.05, batch size 16", "digits, beta 0.1", "digits, beta 0.1, batch size 16"]


def test_versions_of_a_method_of_ones_own_are_told_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="mine:M", method__fingerprint="0123456789abcdef")
    make_run(tmp_path / "b", method="mine:M", method__fingerprint="fedcba9876543210")
    assert sorted(grouped(tmp_path).methods) == ["mine:M (source 012345)", "mine:M (source fedcba)"]


def test_what_a_data_set_has_of_its_own_is_not_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", model__name="cnn", data__fingerprint="a", data__mean=[0.1])
    make_run(tmp_path / "b", model__name="resnet18", data__fingerprint="b", data__mean=[0.2], data__name="cifar10")
    assert [problem.rest for problem in grouped(tmp_path).problems] == ["", ""]


def test_a_beta_that_is_not_used_makes_no_difference(tmp_path: Path) -> None:
    make_run(tmp_path / "a", partition__scheme="iid", partition__beta=0.1)
    make_run(tmp_path / "b", partition__scheme="iid", partition__beta=0.5, seed=1)
    (only,) = grouped(tmp_path).groups
    assert len(only.runs) == 2


def test_normalisations_are_told_apart_where_they_differ(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__mean=[0.5, 0.4])
    make_run(tmp_path / "b", data__mean=[0.123456, 0.4], seed=1)
    make_run(tmp_path / "c", data__mean=[0.1234560001, 0.4], seed=2)
    make_run(tmp_path / "d", data__name="cifar10", data__mean=[0.1])
    found = grouped(tmp_path)
    assert [problem.title for problem in found.problems] == [
        "CIFAR-10, beta 0.1", "digits, beta 0.1, mean [0.12346, 0.4]", "digits, beta 0.1, mean [0.5, 0.4]",
    ]  # fmt: skip
    assert [[run.seed for run in group.runs] for group in found.groups] == [[0], [1, 2], [0]]
    assert found.methods == ["FedACD"]


def test_methods_do_not_compete_across_custom_partitions(tmp_path: Path) -> None:
    for method, first in (("fedavg", [0, 1]), ("fedprox", [0, 1]), ("fedlc", [0])):
        folder = make_run(tmp_path / method, method=method, partition__scheme="custom")
        np.savez(folder / PARTITION, client_0=np.array(first), client_1=np.array([2]))
    found = grouped(tmp_path)
    assert [problem.title[:21] for problem in found.problems] == ["digits, custom, lists"] * 2
    together = [[found.methods[g.method] for g in found.groups if g.problem == number] for number in (0, 1)]
    assert sorted(together) == [["FedAvg", "FedProx"], ["FedLC"]]


def test_a_data_set_in_a_file_goes_by_the_files_name(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__name="/home/me/sets/birds.npz")
    assert grouped(tmp_path).problems[0].dataset == "birds.npz"


def test_a_method_of_ones_own_keeps_its_name(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="mine:Better")
    make_run(tmp_path / "b", method="fedavg")
    assert grouped(tmp_path).methods == ["FedAvg", "mine:Better"]
