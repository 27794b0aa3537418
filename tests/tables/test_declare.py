import pytest

from fedacd.errors import ConfigError
from fedacd.methods import METHODS
from fedacd.tables.declare import TABLES, Table, find
from fedacd.tables.wanted import Wanted


def keys(number: int) -> set[str]:
    return {want.key for want in Wanted(TABLES[number], seeds=[0], rounds=200, precision="fp32").runs}


def by_label(table: Table, row: str, group: str, label: str) -> dict[str, object]:
    (r,) = [r for r in table.rows if r.label == row]
    (c,) = [c for c in table.columns if (c.group, c.label) == (group, label)]
    return table.settings(r, c)


def test_every_cell_has_a_number_of_the_paper_and_a_known_method() -> None:
    assert list(TABLES) == list(range(1, 10))
    for table in TABLES.values():
        assert [row.label for row in table.rows] == list(table.paper)
        assert {column.paper for column in table.columns} == set(range(len(next(iter(table.paper.values())))))
        assert all(row.method in METHODS for row in table.rows)


@pytest.mark.parametrize(("number", "runs"), [(1, 90), (4, 49), (5, 90), (6, 56), (7, 4), (8, 6), (9, 30)])
def test_runs_a_seed(number: int, runs: int) -> None:
    assert len(keys(number)) == runs


def test_tables_share_runs() -> None:
    assert keys(1) == keys(2) == keys(3)
    assert keys(9) < keys(1)
    assert len(keys(5) & keys(1)) == 45  # half of them: each method as it is by default
    assert len(keys(4) & keys(1)) == 7
    assert len(keys(6) & keys(1)) == 8
    assert len(keys(7) & keys(1)) == 1
    assert len(keys(8) & keys(1)) == 3


def test_what_the_tables_vary() -> None:
    settings = by_label(TABLES[4], "FedNH", "60 clients", "0.4")
    assert (settings["partition.clients"], settings["train.participation"]) == (60, 0.4)
    assert by_label(TABLES[6], "FedAvg", "", "15")["train.epochs"] == 15
    assert by_label(TABLES[7], "FedACD", "", "1.5")["method.lam"] == 1.5
    assert by_label(TABLES[8], "FedACD_base", "", "0.05")["method.weighting"] == "uniform"
    assert by_label(TABLES[5], "FedLC, mixup", "CIFAR-10", "0.3")["train.mixup"] is True


def test_metrics() -> None:
    metrics = {number: [column.metric for column in table.columns] for number, table in TABLES.items()}
    assert set(metrics[1]) == set(metrics[4]) == set(metrics[7]) == {"accuracy"}
    assert set(metrics[2]) == {"accuracy_client"}
    assert set(metrics[3]) == {"risk"}
    assert metrics[9] == ["kl_local"] * 3 + ["kl_test"] * 3 + ["kl_test_99"] * 3


def test_cut() -> None:
    cut = TABLES[1].cut(datasets=["cifar100"], methods=["fedavg", "fedacd"], betas=[0.1])
    assert [row.label for row in cut.rows] == ["FedAvg", "FedACD"]
    assert [(column.group, column.label) for column in cut.columns] == [("CIFAR-100", "0.1")]
    assert cut.reported(cut.rows[1], cut.columns[0]).mean == 46.24


def test_what_a_table_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown data set of table 4 'cifar10'. Did you mean 'cifar100'\?"):
        TABLES[4].cut(datasets=["cifar10"])
    with pytest.raises(ConfigError, match=r"unknown method of table 8 'fedavg'. .*Known: fedacd\."):
        TABLES[8].cut(methods=["fedavg"])
    with pytest.raises(ConfigError, match=r"unknown beta of table 1 '0.5'. .*Known: 0.05, 0.1, 0.3\."):
        TABLES[1].cut(betas=[0.5])


@pytest.mark.parametrize("number", ["0", "10", "-1", "x", "1.0", "", "²"])
def test_numbers_outside_are_refused(number: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a whole number from 1 to 9"):
        find(number)
