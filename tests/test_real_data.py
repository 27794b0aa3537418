"""Training on real CIFAR-100, where FEDACD_DATA has it: small enough for two CPU cores, real enough to learn."""

from pathlib import Path

import fedacd
from fedacd.data import Dataset


def test_fedacd_and_fedavg_learn_on_cifar100(real_cifar100: Dataset, tmp_path: Path) -> None:
    """Ten classes of the real images, two rounds: clearly better than the 10 % of a guess."""
    real = real_cifar100
    train, test = real.y_train < 10, real.y_test < 10
    data = Dataset.from_arrays(
        real.x_train[train], real.y_train[train], real.x_test[test], real.y_test[test], defaults=real.defaults
    )
    for method in ("fedavg", "fedacd"):
        result = fedacd.run(
            {"partition.scheme": "iid"},
            dataset=data, method=method, model="cnn", clients=4, participation=1.0, rounds=2, epochs=2, lr=0.05,
            batch_size=32, out=str(tmp_path / method),
        )  # fmt: skip
        assert result.config.data.crop == 4
        assert result.config.data.flip is True
        assert result.final["accuracy_best"] > 0.2, method
