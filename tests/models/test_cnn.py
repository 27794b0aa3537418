import pytest
import torch

from fedacd.errors import ModelError
from fedacd.models import CNN, Net, SmallCNN, wrap


def num_parameters(net: Net) -> int:
    return sum(t.numel() for t in net.initial.values())


@pytest.mark.parametrize(("num_classes", "expected"), [(10, 797_952), (100, 815_232)])
def test_cnn_has_the_papers_size(num_classes: int, expected: int) -> None:
    net = wrap(CNN((3, 32, 32), num_classes), (3, 32, 32), num_classes)
    assert num_parameters(net) == expected
    assert (net.num_features, net.head_names) == (192, ("head.weight",))
    assert net.initial["body.7.weight"].shape == (384, 1600)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 16), (3, 17, 40)])
def test_cnn_takes_other_sizes(shape: tuple[int, int, int]) -> None:
    net = wrap(CNN(shape, 7), shape, 7)
    f, logits = net(net.initial, torch.rand(3, *shape))
    assert f is not None and f.shape == (3, 192) and f.min() >= 0
    assert logits.shape == (3, 7)


@pytest.mark.parametrize("shape", [(3, 15, 32), (3, 32, 15), (1, 8, 8)])
def test_cnn_refuses_small_images(shape: tuple[int, int, int]) -> None:
    with pytest.raises(
        ModelError, match=rf"'cnn' needs .* at least 16x16 pixels, not {shape[1]}x{shape[2]}.*small-cnn"
    ):
        CNN(shape, 10)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 4, 5)])
def test_small_cnn(shape: tuple[int, int, int]) -> None:
    channels, height, width = shape
    net = wrap(SmallCNN(shape, 10), shape, 10)
    convs = channels * 32 * 9 + 32 + 32 * 64 * 9 + 64
    assert num_parameters(net) == convs + 64 * (height // 4) * (width // 4) * 128 + 128 + 128 * 10
    assert (net.num_features, net.head_names) == (128, ("head.weight",))
    assert net.features(net.initial, torch.rand(3, *shape)).min() >= 0


def test_small_cnn_refuses_tiny_images() -> None:
    with pytest.raises(ModelError, match=r"'small-cnn' needs images of at least 4x4 pixels, not 3x8"):
        SmallCNN((1, 3, 8), 10)
