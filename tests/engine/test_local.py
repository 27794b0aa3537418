"""One client's training against torch's own optimiser, and images by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedacd import models
from fedacd.config import Data, Train
from fedacd.engine.batches import Batch, Images, draws_of, steps_of
from fedacd.engine.local import Fixed, Hyper, Moving, sgd, step
from fedacd.engine.plan import local_plan
from fedacd.methods import Did, FedAvg, Trained


def picture() -> Images:
    """Two images of 3 x 3 pixels, one channel: 1..9 and 11..19; mean .1, deviation .2."""
    pixels = torch.stack([torch.arange(1, 10), torch.arange(11, 20)]).reshape(2, 3, 3, 1).to(torch.uint8)
    return Images(pixels=pixels, labels=torch.tensor([0, 1]), mean=torch.tensor([0.1]), std=torch.tensor([0.2]), crop=1)


def shown(x: torch.Tensor) -> list[list[float]]:
    """Back from normalised values to pixels."""
    rows: list[list[float]] = ((x[0] * 0.2 + 0.1) * 255).round().tolist()
    return rows


def test_clean_images_are_normalised_and_channels_come_first() -> None:
    x = picture().clean(torch.tensor([1]))
    assert x.shape == (1, 1, 3, 3)
    assert x[0, 0, 0, 0].item() == pytest.approx((11 / 255 - 0.1) / 0.2)


def test_crop_and_flip_by_hand() -> None:
    # Padded by one black pixel. Shift (1, 1) is the image itself; (0, 2) starts one row up and one column right of it.
    x = picture().augmented(
        torch.tensor([0, 0, 0]), torch.tensor([[1, 1], [0, 2], [1, 1]]), torch.tensor([False, False, True])
    )
    assert shown(x[0]) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert shown(x[1]) == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]
    assert shown(x[2]) == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    # Black is the pixel 0, not the mean colour.
    assert x[1, 0, 0, 0].item() == pytest.approx(-0.1 / 0.2)


@pytest.mark.parametrize("clip", [0.05, 10.0])
def test_sgd_is_torchs_with_decay_after_clipping(clip: float) -> None:
    """torch.optim.SGD with its weight decay, on gradients that clip_grad_norm_ has clipped: the same order."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(4, 3, generator=generator, dtype=torch.float64) for name in "ab"}
    gradients = [{name: torch.randn(4, 3, generator=generator, dtype=torch.float64) for name in "ab"} for _ in range(3)]
    params = {name: w.clone().requires_grad_() for name, w in weights.items()}
    optimiser = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9, weight_decay=0.01)
    hyper = Hyper(*(torch.tensor(v, dtype=torch.float64) for v in (0.1, 0.9, 0.01, clip)))
    velocity = {name: torch.zeros_like(w) for name, w in weights.items()}
    for gradient in gradients:
        for name, param in params.items():
            param.grad = gradient[name].clone()
        torch.nn.utils.clip_grad_norm_(params.values(), clip)
        optimiser.step()
        weights, velocity = sgd(weights, gradient, velocity, hyper)
    for name, param in params.items():
        torch.testing.assert_close(weights[name], param.detach())


def test_mixup_by_hand() -> None:
    images, train = picture(), Train(epochs=1, batch_size=2, mixup=True)
    plan = local_plan(0, 1, 0, np.arange(2), train, Data(crop=1, flip=False))
    parts = {
        kind: next(steps_of(images, draws_of(plan, torch.tensor([0, 1])), kind)) for kind in ("own", "mixed", "both")
    }
    order, partner, lam = plan.order[0], plan.partner[0], plan.lam[0]
    plain = images.augmented(torch.from_numpy(order), torch.from_numpy(plan.shift[0]), torch.from_numpy(plan.flip[0]))
    (own,), (batch,), both = parts.values()
    torch.testing.assert_close(own.x, plain)
    assert own.y2 is own.lam is None
    torch.testing.assert_close([part.x for part in both], [own.x, batch.x])
    assert batch.y2 is not None
    assert batch.lam is not None
    for i in range(2):
        torch.testing.assert_close(batch.x[i], (lam * plain[i] + (1 - lam) * plain[partner[i]]).float())
        assert batch.y[i] == order[i]
        assert batch.y2[i] == order[partner[i]]
    assert batch.lam.item() == pytest.approx(lam)


def test_the_mean_of_own_and_mixed_images_by_hand() -> None:
    """A net with one weight v for each class, logits v * x: the step is that of the mean of both gradients."""
    net = models.build(Scale, (1, 1, 1), 2, {}, 0)
    y, y2, w, lam = torch.tensor([0]), torch.tensor([1]), torch.ones(1), torch.tensor(0.75)
    own = Batch(torch.full((1, 1, 1, 1), 2.0), y, w)
    mixed = Batch(torch.full((1, 1, 1, 1), 4.0), y, w, y2, lam)
    method = FedAvg()
    shared = method.init_server(net, np.random.default_rng(0)).shared
    client = method.init_client(net, shared, torch.tensor([1, 1]))
    now = Trained(shared.params, client.private)
    velocity = Trained(*({name: torch.zeros_like(v) for name, v in group.items()} for group in now))
    hyper = Hyper(*(torch.tensor(v) for v in (1.0, 0.0, 0.0, math.inf)))
    did = Did(*(torch.tensor(1.0) for _ in Did._fields))
    moving = Moving(now, velocity, client, torch.tensor(0.0))
    moved = step(net, method, moving, Fixed(shared, did, hyper), [own, mixed])
    # All weights are zero, so p = 1/2: the gradient of v_0 is (2 (1/2 - 1) + 4 (1/2 - 3/4)) / 2 = -1, of v_1 +1
    (v,) = moved.now.params.values()
    assert v.flatten().tolist() == [1.0, -1.0]
    assert moved.loss_sum.item() == pytest.approx(math.log(2))


class Scale(nn.Module):
    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.zeros(num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.v
