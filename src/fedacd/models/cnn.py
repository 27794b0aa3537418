"""The paper's CNN, and a smaller one for small images.

`CNN` is the network of the FedACD experiments on CIFAR: two unpadded 5x5 convolutions and three linear layers without
normalisation or dropout, the last one without bias; 797,952 parameters for 10 classes of 3x32x32. `SmallCNN` is this
project's own, for digits and 28x28 images. Both keep PyTorch's initialisation.

B batch, C classes, D features.
"""

from torch import Tensor, nn

from fedacd.errors import ModelError
from fedacd.models.net import Shape


class CNN(nn.Module):
    """D = 192."""

    head_name = "head"

    def __init__(self, shape: Shape, num_classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        _check_size("cnn", shape, smallest=16, hint=" Use small-cnn.")
        flat = 64 * _after_convs(height) * _after_convs(width)
        self.body = nn.Sequential(
            nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(flat, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(192, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class SmallCNN(nn.Module):
    """D = 128."""

    head_name = "head"

    def __init__(self, shape: Shape, num_classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        _check_size("small-cnn", shape, smallest=4)
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(128, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def _after_convs(size: int) -> int:
    return ((size - 4) // 2 - 4) // 2


def _check_size(name: str, shape: Shape, smallest: int, hint: str = "") -> None:
    _, height, width = shape
    if min(height, width) < smallest:
        raise ModelError(
            f"model '{name}' needs images of at least {smallest}x{smallest} pixels, not {height}x{width}.{hint}"
        )
