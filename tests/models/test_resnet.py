import math

import pytest
import torch
from torch import nn

from fedacd.models import ResNet18, wrap
from fedacd.models.resnet import Block


def test_parameters_add_up() -> None:
    # Convolutions and their norms (weight and bias per channel): the stem, four of the first stage, then per stage one
    # that widens, three at full width and the 1x1 shortcut; and the head.
    expected = 3 * 64 * 9 + 2 * 64
    expected += 4 * (64 * 64 * 9 + 2 * 64)
    for width in (128, 256, 512):
        expected += width // 2 * width * 9 + 3 * width * width * 9 + width // 2 * width + 5 * 2 * width
    expected += 512 * 200
    assert sum(p.numel() for p in ResNet18(3, 200).parameters()) == expected


def test_shapes_on_tiny_imagenet_images() -> None:
    module = ResNet18(3, 200)
    stages: list[tuple[int, ...]] = []
    for block in (module.stem, *list(module.stages)[1::2]):
        block.register_forward_hook(lambda _module, _inputs, out: stages.append(tuple(out.shape[1:])))
    module(torch.rand(1, 3, 64, 64))
    assert stages == [(64, 64, 64), (64, 64, 64), (128, 32, 32), (256, 16, 16), (512, 8, 8)]
    net = wrap(module, (3, 64, 64), 200)
    f, logits = net(net.initial, torch.rand(2, 3, 64, 64))
    assert f is not None and f.shape == (2, 512) and logits.shape == (2, 200)
    assert (net.num_features, net.head_names) == (512, ("head.weight",))


def test_normalisation_and_initial_weights() -> None:
    torch.manual_seed(0)
    module = ResNet18(1, 10)
    norms = [layer for layer in module.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == 20
    for norm in norms:
        assert norm.num_groups == 2
        assert torch.equal(norm.weight, torch.ones_like(norm.weight)) and not norm.bias.any()
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convs) == 20
    for conv in convs:
        assert conv.bias is None
        fan_out = conv.out_channels * math.prod(conv.kernel_size)
        # The smallest layer has 576 weights: its standard deviation is known to 3 %.
        assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.12)


def test_a_block_adds_its_shortcut() -> None:
    block = Block(64, 64)
    last = block.convs[-1]
    assert isinstance(last, nn.GroupNorm)
    nn.init.zeros_(last.weight)
    x = torch.rand(2, 64, 4, 4) - 0.5
    torch.testing.assert_close(block(x), x.clamp(min=0))
