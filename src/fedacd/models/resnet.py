"""ResNet18 for small images, with group normalisation.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; Wu and He, "Group Normalization", ECCV 2018.
Differs from the ImageNet network by a 3x3 stride-1 stem without max-pooling, GroupNorm with 2 groups in place of
BatchNorm (whose running statistics cannot be averaged) and a bias-free head. Convolutions start as in torchvision:
normal, He's fan-out variance.

B batch, C classes, D = 512 features.
"""

from torch import Tensor, nn

NUM_GROUPS = 2


class ResNet18(nn.Module):
    head_name = "head"

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(in_channels, 64, 3), _norm(64), nn.ReLU())
        self.stages = nn.Sequential(
            Block(64, 64), Block(64, 64),
            Block(64, 128, stride=2), Block(128, 128),
            Block(128, 256, stride=2), Block(256, 256),
            Block(256, 512, stride=2), Block(512, 512),
        )  # fmt: skip
        self.head = nn.Linear(512, num_classes, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        features = self.stages(self.stem(x)).mean(dim=(2, 3))
        logits: Tensor = self.head(features)
        return logits


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            _conv(in_channels, out_channels, 3, stride), _norm(out_channels), nn.ReLU(),
            _conv(out_channels, out_channels, 3), _norm(out_channels),
        )  # fmt: skip
        same = stride == 1 and in_channels == out_channels
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(_conv(in_channels, out_channels, 1, stride), _norm(out_channels))
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.convs(x) + self.shortcut(x))
        return out


def _conv(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(NUM_GROUPS, channels)
