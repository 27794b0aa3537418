"""The plain loop does the same work as the engine: the same losses, P, V, images, and it learns."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedacd.bench import plain
from fedacd.data import Dataset
from fedacd.methods.base import Client, Did, Shared, Trained
from fedacd.methods.fedacd import FedACD
from fedacd.models import SmallCNN

C, B = 6, 16
COUNTS = torch.tensor([9, 0, 4, 7, 1, 0])
EMPTY = Trained({}, {}), Shared({}, {})


def batches(num: int) -> list[tuple[Tensor, Tensor]]:
    """Logits and labels; class 4 comes with the third batch, classes 1 and 5 never."""
    held = torch.tensor([0, 2, 3])
    return [
        (
            3 * torch.randn(B, C),
            held[torch.randint(len(held), (B,))] if number < 2 else torch.tensor([0, 2, 3, 4] * (B // 4)),
        )
        for number in range(num)
    ]


def test_losses_and_their_gradient_agree_with_the_method() -> None:
    method = FedACD()
    client = method.begin(EMPTY[1], Client(COUNTS, {}, {}))
    for logits, y in batches(4):
        ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        found = plain.fedacd_loss(ours, y)
        expected = method.loss({"logits": theirs}, y, torch.ones(B), *EMPTY, client)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, ours), torch.autograd.grad(expected, theirs))


def test_score_agrees_with_the_method() -> None:
    method, ours = FedACD(), plain.ClassOutputs(C, torch.device("cpu"))
    client = Client(COUNTS, {}, {})
    sums: dict[str, Tensor] = {}
    for logits, y in batches(3):
        ours.add(logits, y)
        more = method.survey({"logits": logits}, nn.functional.one_hot(y, C).float(), torch.ones(B), client)
        sums = {name: sums[name] + value if sums else value for name, value in more.items()}
    did = Did(*(torch.tensor(1.0) for _ in Did._fields))
    _, _, told = method.finish(EMPTY[0], EMPTY[1], method.absorb(client, sums, "end"), did)
    torch.testing.assert_close(ours.score(), told["V"])


def test_a_crop_is_a_window_of_the_padded_image_or_its_mirror() -> None:
    x = torch.randint(1, 256, (40, 3, 8, 8), dtype=torch.uint8)
    padded = nn.functional.pad(x, (2, 2, 2, 2))
    found = set()
    for image, full in zip(plain.augment(x, 2, True), padded, strict=True):
        windows = {
            (top, left, mirrored): window.flip(-1) if mirrored else window
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
            for window in [full[:, top : top + 8, left : left + 8]]
        }
        matching = [where for where, window in windows.items() if torch.equal(window, image)]
        assert len(matching) == 1
        found.add(matching[0])
    assert len(found) > 20
    assert plain.augment(x, 0, False) is x


def data_of(dataset: Dataset) -> plain.Data:
    return plain.Data(
        images=torch.tensor(dataset.x_train).permute(0, 3, 1, 2).contiguous(),
        labels=torch.tensor(dataset.y_train),
        mean=torch.tensor(dataset.mean),
        std=torch.tensor(dataset.std),
        num_classes=dataset.num_classes,
    )


def test_images_are_normalised_by_channel(digits: Dataset) -> None:
    data, index = data_of(digits), torch.arange(5)
    expected = (digits.x_train[:5] / 255 - np.array(digits.mean)) / np.array(digits.std)
    found = data.normalise(data.images[index])
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "fedacd"])
def test_it_learns_digits(digits: Dataset, method: str) -> None:
    np.random.seed(0)
    data = data_of(digits)
    recipe = plain.Recipe(method=method, epochs=2, batch_size=16, lr=0.05, crop=0, flip=False)
    recipe = dataclasses.replace(recipe, mixup=method == "fedacd")
    model = SmallCNN(digits.shape, digits.num_classes)
    clients = torch.randperm(len(data.labels)).chunk(4)
    for _ in range(8):
        plain.federated_round(model, data, clients[:3], recipe, recipe.lr)
    model.eval()
    x = data.normalise(torch.tensor(digits.x_test).permute(0, 3, 1, 2))
    accuracy = float((model(x).argmax(1) == torch.tensor(digits.y_test)).float().mean())
    assert accuracy > 0.9, accuracy


def test_the_average_weighs_clients_by_their_score(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(digits)
    model = SmallCNN(digits.shape, digits.num_classes)
    values = iter([(1.0, 3.0), (5.0, 1.0)])

    def train(local: nn.Module, *_: object) -> Tensor:
        value, weight = next(values)
        for parameter in local.parameters():
            nn.init.constant_(parameter, value)
        return torch.tensor(weight)

    monkeypatch.setattr(plain, "train_client", train)
    cohort = [torch.arange(3), torch.arange(3)]
    plain.federated_round(model, data, cohort, plain.Recipe(), 0.1)
    for parameter in model.parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, 2.0))
