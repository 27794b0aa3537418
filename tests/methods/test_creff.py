"""CReFF's gradients, the server's matching and the re-trained head, by hand and against autograd."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedacd.data import Dataset
from fedacd.engine.local import run_client
from fedacd.methods import Client, CReFF, Did, Shared, Trained
from fedacd.methods.creff import match_slope
from tests.methods.test_runs import advanced


def test_creff_gradients_of_a_client_by_hand() -> None:
    # One feature, two classes, re-trained logits even: p = (.5, .5). Two samples of class 0 with features 2 and 4:
    # the gradient by rows is (p_0 - 1, p_1) * f = (-.5, .5) * 3 on average.
    method, client = CReFF(), Client(torch.tensor([2, 0]), {}, {})
    out = {"retrained": torch.zeros(2, 2), "features": torch.tensor([[2.0], [4.0]])}
    target = torch.tensor([[1.0, 0], [1, 0]])
    client = method.absorb(client, method.survey(out, target, torch.ones(2), client), "start")
    did = Did(*(torch.tensor(1.0) for _ in range(5)))
    _, extra, _ = method.finish(Trained({}, {}), Shared({}, {}), client, did)
    assert extra["gradients"][0, :, 0].tolist() == [-1.5, 1.5]
    assert extra["gradients"][1].abs().sum() == 0
    assert extra["held"].tolist() == [1, 0]


def test_creff_gradients_are_of_the_received_body(digits: Dataset) -> None:
    """Taken before training, on clean images, at the body and the re-trained head that the server sent."""
    made = advanced(digits, "creff", 1)
    job = next(iter(made.open().values()))
    gradients = run_client(job).reply.extra["gradients"]
    x, y = job.images.clean(job.members), job.images.labels[job.members]
    features, head = job.net.features(job.shared.params, x).detach(), job.shared.extra["head"]
    for k in range(10):
        torch.testing.assert_close(gradients[k], creff_gradient(features[y == k], head, k), rtol=1e-4, atol=1e-6)


def creff_distance(features: Tensor, head: Tensor, wanted: Tensor) -> Tensor:
    """Of each class, by torch's own functions: the sum over rows of (1 - cosine) of its head gradient and `wanted`."""
    gradients = torch.stack([creff_gradient(of_class, head, k) for k, of_class in enumerate(features)])
    return (1 - nn.functional.cosine_similarity(gradients, wanted, dim=-1)).sum(-1)


def creff_gradient(features: Tensor, head: Tensor, k: int) -> Tensor:
    """Of the mean cross entropy of class k's features."""
    h = head.clone().requires_grad_()
    loss = nn.functional.cross_entropy(features @ h.mT, torch.full((len(features),), k))
    return torch.autograd.grad(loss, h, create_graph=True)[0]


@pytest.mark.parametrize(("C", "n"), [(2, 1), (3, 5)])
def test_creff_slope_against_autograd(C: int, n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    features, head, wanted = (
        torch.randn(*shape, generator=generator).double() for shape in ((C, n, 4), (C, 4), (C, C, 4))
    )
    wanted = nn.functional.normalize(wanted, dim=-1)
    wanted[0, 1] = 0
    leaf = features.clone().requires_grad_()
    (expected,) = torch.autograd.grad(creff_distance(leaf, head, wanted).sum(), leaf)
    torch.testing.assert_close(match_slope(features, head, wanted), expected)
    # Features of length 0 have gradients of length 0.
    assert bool(match_slope(0 * features, head, wanted).isfinite().all())


def test_creff_matches_gradients_of_the_classes_sent_only() -> None:
    generator = torch.Generator().manual_seed(0)
    real, head = torch.randn(3, 8, 4, generator=generator) + 1, torch.randn(3, 4, generator=generator)
    wanted = torch.stack([creff_gradient(real[k], head, k).detach() for k in range(3)])
    start, sent = torch.randn(3, 8, 4, generator=generator), torch.tensor([True, True, False])
    moved = CReFF().match(start, head, wanted, sent)
    assert bool((creff_distance(moved, head, wanted) < 0.5 * creff_distance(start, head, wanted))[:2].all())
    assert torch.equal(moved[2], start[2])
    expected = start
    for _ in range(100):
        leaf = expected.detach().requires_grad_()
        (slope,) = torch.autograd.grad(creff_distance(leaf, head, wanted)[sent].sum(), leaf)
        expected = leaf - 0.1 * slope
    torch.testing.assert_close(moved, expected.detach(), rtol=1e-4, atol=1e-5)


def test_creff_retrains_a_head_that_tells_the_features_apart() -> None:
    features = 3 * torch.eye(4)[:3, None, :] + 0.1 * torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    head = CReFF().retrain(features, np.random.default_rng(0))
    assert bool(((features @ head.mT).argmax(-1) == torch.arange(3)[:, None]).all())
    # Against torch's own optimiser from the same start.
    start = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (3, 4)) / 2).float().requires_grad_()
    optimiser = torch.optim.SGD([start], lr=1.6)
    for _ in range(300):
        loss = nn.functional.cross_entropy(features.flatten(0, 1) @ start.mT, torch.arange(3).repeat_interleave(6))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    torch.testing.assert_close(head, start.detach(), rtol=1e-4, atol=1e-5)
