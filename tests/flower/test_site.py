"""A site's side: its data, and its state on its disk."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedacd.data import Dataset
from fedacd.errors import ConfigError, DataError, RecordError
from fedacd.flower.central import Central
from fedacd.flower.site import node_of
from tests.flower.local import deployment, do_round, site, trained


@pytest.fixture
def central(tmp_path: Path) -> Central:
    return Central(deployment(tmp_path / "run", method__name="scaffold"))


def test_data_of_its_own_need_no_partition(central: Central, tmp_path: Path, digits: Dataset) -> None:
    some = slice(0, 40)
    x, y = digits.x_train[some], digits.y_train[some]
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=digits.x_test, y_test=digits.y_test)
    own = site(central, 2, tmp_path, data=str(tmp_path / "own.npz"), num_partitions=None)
    assert len(own.members) == 40
    assert float(own.train(central.state.server.shared).told["n"]) == 40


def test_normalisation_is_the_config_s_and_not_the_site_s(tmp_path: Path) -> None:
    central = Central(deployment(tmp_path / "run", data__mean="[0.25]", data__std="[0.75]"))
    here = site(central, 0, tmp_path)
    shared = central.state.server.shared
    client = here.method.init_client(here.net, shared, torch.zeros(10))
    images = here._job(shared, client, torch.device("cpu")).images
    assert (images.mean.tolist(), images.std.tolist()) == ([0.25], [0.75])


def test_a_restarted_site_goes_on_from_its_file(central: Central, tmp_path: Path) -> None:
    do_round(central, tmp_path)
    path = site(central, 0, tmp_path).state_file
    assert path.exists() and path.stat().st_mode & 0o077 == 0
    trained(central, 0, tmp_path)


def test_a_lost_state_is_an_error_and_not_a_fresh_start(central: Central, tmp_path: Path) -> None:
    do_round(central, tmp_path)
    site(central, 0, tmp_path).state_file.unlink()
    with pytest.raises(RecordError, match="does not hold this site's state after round 1"):
        trained(central, 0, tmp_path)


def test_a_method_without_memory_needs_no_file(tmp_path: Path) -> None:
    central = Central(deployment(tmp_path / "run", method__name="fedavg"))
    do_round(central, tmp_path)
    site(central, 0, tmp_path).state_file.unlink()
    trained(central, 0, tmp_path)


def test_what_does_not_fit_the_run_is_refused(central: Central, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"num-partitions = 5: the run has partition\.clients = 4"):
        site(central, 0, tmp_path, num_partitions=5)
    x, y = np.zeros((4, 9, 9, 1), np.uint8), np.arange(4)
    np.savez(tmp_path / "big.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"this run has \(1, 8, 8\) and 10"):
        site(central, 0, tmp_path, data=str(tmp_path / "big.npz"), num_partitions=None)
    with pytest.raises(ConfigError, match="partition-id is not set"):
        node_of({"data": "digits"})
