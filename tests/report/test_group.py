"""What competes with what, and what it is called."""

import functools
from pathlib import Path

import pytest

from fedacd.report.group import Grouped, group
from fedacd.report.read import read_runs
from tests.report.made import make_custom, make_many, make_run, summed_up


def grouped(root: Path) -> Grouped:
    return group(*read_runs([root]))


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
    assert sorted(grouped(tmp_path).methods) == ["M (source 012345)", "M (source fedcba)"]


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
        make_custom(tmp_path / method, first, [2], method=method)
    found = grouped(tmp_path)
    assert [problem.title[:21] for problem in found.problems] == ["digits, custom, lists"] * 2
    together = [[found.methods[g.method] for g in found.groups if g.problem == number] for number in (0, 1)]
    assert sorted(together) == [["FedAvg", "FedProx"], ["FedLC"]]


def test_a_data_set_in_a_file_goes_by_the_files_name(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__name="/home/me/sets/birds.npz")
    assert grouped(tmp_path).problems[0].dataset == "birds.npz"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["mine:Better"], ["Better"]),
        (["mine:FedProx", "mine:Better"], ["Better", "mine:FedProx"]),  # FedProx is the package's own
        (["mine:Better", "theirs:Better"], ["mine:Better", "theirs:Better"]),
    ],
)
def test_a_method_of_ones_own_goes_by_its_class_alone(names: list[str], shown: list[str], tmp_path: Path) -> None:
    for name in (*names, "fedavg"):
        make_run(tmp_path / name, method=name)
    assert grouped(tmp_path).methods == ["FedAvg", *shown]


@pytest.mark.parametrize("kinds", [["runs"], ["summaries"], ["runs", "summaries"]], ids=str)
def test_lists_drawn_for_each_seed_are_repetitions(kinds: list[str], tmp_path: Path) -> None:
    for seed in range(3):
        for method in ("fedacd", "fedavg"):
            for kind in kinds:
                folder = tmp_path / kind / f"{method}{seed}"
                make_custom(folder, [seed], [3, 4], seed=seed, method=method)
                if kind == "summaries":
                    summed_up(folder)
    found = group(*read_runs([tmp_path / kind for kind in kinds]))
    assert [problem.title for problem in found.problems] == ["digits, custom"]
    assert [[run.seed for run in group.runs] for group in found.groups] == [[0, 1, 2]] * 2


def test_lists_that_differ_at_one_seed_are_problems(tmp_path: Path) -> None:
    for name, lists in (("a", [0, 1]), ("b", [0])):
        for seed in (0, 1):
            make_custom(tmp_path / f"{name}{seed}", lists, [2], seed=seed)
    found = grouped(tmp_path)
    assert len({problem.rest for problem in found.problems}) == 2
    assert [[run.seed for run in group.runs] for group in found.groups] == [[0, 1]] * 2


def test_data_at_two_places_are_one_problem(tmp_path: Path) -> None:
    for number, path in enumerate(("mine.npz", "/home/me/mine.npz", "copy.npz")):
        make_run(tmp_path / f"{number}", seed=number, data__name=path, data__fingerprint="f00d")
    found = grouped(tmp_path)
    assert [problem.title for problem in found.problems] == ["mine.npz, beta 0.1"]
    assert [len(group.runs) for group in found.groups] == [3]


def test_variants_are_told_apart_wherever_their_data_lie(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__name="mine.npz", data__fingerprint="f00d")
    make_run(tmp_path / "b", data__name="/x/mine.npz", data__fingerprint="f00d", train__lr=0.2)
    assert grouped(tmp_path).methods == ["FedACD", "FedACD (lr 0.2)"]


def test_files_of_one_name_are_told_apart_where_nothing_is_known_of_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, data__name=f"/{name}/mine.npz", data__fingerprint=None)
    assert [problem.dataset for problem in grouped(tmp_path).problems] == ["/a/mine.npz", "/b/mine.npz"]


def test_numbers_that_differ_late_are_told_apart(tmp_path: Path) -> None:
    for value in (0.9999999, 0.99999999):
        make_run(tmp_path / f"tau{value}", method__tau=value)
        make_run(tmp_path / f"beta{value}", partition__beta=value)
    make_run(tmp_path / "a", method="fedavg", train__lr=0.3)
    make_run(tmp_path / "b", method="fedavg", train__lr=0.1 * 3)
    found = grouped(tmp_path)
    assert found.methods == [
        "FedACD", "FedACD (tau 0.9999999)", "FedACD (tau 0.99999999)",
        "FedAvg (lr 0.3)", "FedAvg (lr 0.30000000000000004)",
    ]  # fmt: skip
    assert [problem.skew for problem in found.problems] == ["beta 0.1", "beta 0.9999999", "beta 0.99999999"]
    assert all(len(group.runs) == 1 for group in found.groups)


def test_a_seed_counts_once_also_where_nothing_that_is_shown_tells_runs_apart(tmp_path: Path) -> None:
    for name, mark in (("a", "0123456789abcdef"), ("b", "0123450000000000")):
        make_run(tmp_path / name, method="mine:M", method__fingerprint=mark, done=5 if name == "a" else 12)
    runs, notes = read_runs([tmp_path])
    ((run,),) = (group.runs for group in group(runs, notes).groups)
    assert run.name == "b"
    assert notes[0].startswith(f"{tmp_path / 'a'} is left out: {tmp_path / 'b'} is of the same seed, and no setting")
