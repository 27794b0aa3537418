"""Which client holds which samples: labels, settings and a seed in, one sorted index array per client out. Pure.

- `capped-dirichlet` (Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019; Li et
  al., "Federated Learning on Non-IID Data Silos", ICDE 2022): class by class, proportions ~ Dirichlet(beta) over the
  clients; a client that holds N/K samples or more gets none of the class and the others' proportions are scaled to
  sum to 1. The whole partition is redrawn until every client has `min_size` samples.
- `two-class-dirichlet` (the public code of FedNH: Dai et al., "Tackling Data Heterogeneity in Federated Learning with
  Class Prototypes", AAAI 2023): `capped-dirichlet`, but from the third class on clients that hold fewer than two
  classes swap their shares of the class with the last clients, and the partition is also redrawn until every client
  has two classes. That code gives up after three draws and takes the third as it is.
- `dirichlet`: `capped-dirichlet` without the cap.
- `equal-dirichlet` (Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
  Classification", 2019): every client draws a class prior ~ Dirichlet(beta) and fills N/K places from it without
  replacement, client by client; a class that runs out leaves the prior, and a client whose prior is used up draws in
  proportion to what remains.
- `shards` (after McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
  2017): every client holds exactly `classes_per_client` classes, and a class is dealt evenly to its holders. The paper
  cuts the sorted samples into equal shards, which may straddle two classes; here they never do.
- `iid`: shuffled, sizes that differ by at most one.
- `custom`: the user's own lists, from a file or from Python (`check_lists`); samples may be left out.

Every scheme but `iid` and `custom` decides only how many samples of each class a client gets; `_deal` then shuffles
each class and hands them out. Shapes: K clients, C classes, N samples; counts are [K, C].
"""

import json
import zipfile
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from fedacd.config import Partition
from fedacd.errors import ConfigError

__all__ = ["check_lists", "class_counts", "load_lists", "split"]

Ints = NDArray[np.int64]

# One unit is about 70 ns of drawing, so that giving up takes some two seconds whatever the number of clients.
_DRAW_BUDGET = 30_000_000
_DRAW_OVERHEAD = 400


def split(labels: Ints, num_classes: int, settings: Partition, seed: int) -> list[Ints]:
    """The sorted sample indices of each client; a sample belongs to exactly one ('custom': to at most one)."""
    if settings.scheme == "custom":
        if settings.file is None:
            raise ConfigError("partition.scheme = 'custom' needs partition.file: a .json or .npz file of index lists.")
        lists = load_lists(settings.file)
        return check_lists(lists, len(labels), settings, where=f"partition.file = '{settings.file}':")
    _check_enough(len(labels), settings)
    rng = Generator(np.random.Philox(np.random.SeedSequence([seed, 0])))
    if settings.scheme == "iid":
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), settings.clients)]
    sizes = np.bincount(labels, minlength=num_classes)
    match settings.scheme:
        case "equal-dirichlet":
            counts = _equal_dirichlet(sizes, settings, rng)
        case "shards":
            counts = _shards(sizes, settings, rng)
        case _:
            counts = _redraw_dirichlet(sizes, settings, rng)
    return _deal(labels, counts, rng)


def class_counts(labels: Ints, lists: Sequence[Ints], num_classes: int) -> Ints:
    """How many samples of each class each client holds, [K, C]."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in lists])


def _deal(labels: Ints, counts: Ints, rng: Generator) -> list[Ints]:
    parts: list[list[Ints]] = [[] for _ in counts]
    for c, column in enumerate(counts.T):
        shuffled = rng.permutation(np.flatnonzero(labels == c))
        for part, piece in zip(parts, np.split(shuffled, np.cumsum(column)[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _check_enough(num_samples: int, settings: Partition) -> None:
    clients, min_size = settings.clients, settings.min_size
    if clients > num_samples:
        raise ConfigError(f"partition.clients = {clients}: more than the {num_samples} samples there are to deal.")
    if clients * min_size > num_samples:
        raise ConfigError(
            f"partition.clients = {clients}, partition.min_size = {min_size}: that takes {clients * min_size} samples "
            f"and there are {num_samples}, at best {num_samples // clients} for every client. "
            "Use fewer clients or a smaller min_size."
        )


def _proportions(num: int, beta: float, rng: Generator) -> NDArray[np.float64]:
    # From about 1e12 on the draw is uniform to every digit that decides a sample; near 1e308 numpy overflows to zeros.
    return rng.dirichlet(np.full(num, min(beta, 1e12)))


def _dirichlet(sizes: Ints, settings: Partition, rng: Generator) -> Ints:
    """One draw of any of 'dirichlet', 'capped-dirichlet', 'two-class-dirichlet', whatever the sizes of the clients."""
    counts = np.zeros((settings.clients, len(sizes)), np.int64)
    held = np.zeros(settings.clients, np.int64)
    cap = np.inf if settings.scheme == "dirichlet" else sizes.sum() / settings.clients
    swaps, classes = settings.scheme == "two-class-dirichlet", np.zeros(settings.clients, np.int64)
    for place, c in enumerate(np.flatnonzero(sizes)):
        # Dirichlet proportions scaled to sum to 1 over some clients are Dirichlet over those clients, so only they are
        # drawn: the law is the published one, and neither 0/0 nor rounding can send a sample to a full client.
        open_clients = np.flatnonzero(held < cap)
        shares = _proportions(len(open_clients), settings.beta, rng)
        cuts = (np.cumsum(shares)[:-1] * sizes[c]).astype(np.int64)
        counts[open_clients, c] = np.diff(cuts, prepend=0, append=sizes[c])
        if swaps and place >= 2:
            # One after the other, as published: a client may be among the last ones itself.
            column = counts[:, c].tolist()
            for last, client in enumerate(np.flatnonzero(classes < 2).tolist(), 1):
                column[client], column[-last] = column[-last], column[client]
            counts[:, c] = column
        held += counts[:, c]
        classes += counts[:, c] > 0
    return counts


def _redraw_dirichlet(sizes: Ints, settings: Partition, rng: Generator) -> Ints:
    limit = max(20, _DRAW_BUDGET // (len(sizes) * (settings.clients + _DRAW_OVERHEAD)))
    needed = min(2, int(np.count_nonzero(sizes))) if settings.scheme == "two-class-dirichlet" else 1
    best = fewest = 0
    for _ in range(limit):
        counts = _dirichlet(sizes, settings, rng)
        smallest, classes = int(counts.sum(axis=1).min()), int((counts > 0).sum(axis=1).min())
        if smallest >= settings.min_size and classes >= needed:
            return counts
        best, fewest = max(best, smallest), max(fewest, classes)
    of_classes = f" and held {fewest} of {needed} classes" if needed == 2 else ""
    raise ConfigError(
        f"partition.clients = {settings.clients}, partition.beta = {settings.beta:g}, "
        f"partition.min_size = {settings.min_size}: in {limit} draws of {sizes.sum()} samples the smallest client "
        f"got {best} at best{of_classes}. Use fewer clients, a larger beta, a smaller min_size or another scheme "
        "(equal-dirichlet gives all clients the same size)."
    )


def _equal_dirichlet(sizes: Ints, settings: Partition, rng: Generator) -> Ints:
    counts = np.zeros((settings.clients, len(sizes)), np.int64)
    left = sizes.copy()
    bounds = np.arange(settings.clients + 1) * sizes.sum() // settings.clients
    for client, (start, stop) in enumerate(pairwise(bounds)):
        prior = _proportions(len(sizes), settings.beta, rng)
        need = int(stop - start)
        # Each turn that ends short has emptied a class: drawing and giving back what is not there is the same as
        # drawing one by one from what is left of the prior.
        while need:
            prior = np.where(left > 0, prior, 0.0)
            mass = prior.sum()
            if mass > np.finfo(np.float64).tiny:
                taken = np.minimum(rng.multinomial(need, prior / mass), left)
            else:
                taken = rng.multivariate_hypergeometric(left, need)
            counts[client] += taken
            left -= taken
            need -= int(taken.sum())
    return counts


def _shards(sizes: Ints, settings: Partition, rng: Generator) -> Ints:
    classes = np.flatnonzero(sizes)
    holds = _choose_classes(len(classes), settings, rng)
    counts = np.zeros((settings.clients, len(sizes)), np.int64)
    for c, column in zip(classes, holds.T, strict=True):
        holders = rng.permutation(np.flatnonzero(column))
        if sizes[c] < len(holders):
            raise ConfigError(
                f"partition.scheme = 'shards' with partition.clients = {settings.clients} and "
                f"partition.classes_per_client = {settings.classes_per_client}: class {c} goes to {len(holders)} "
                f"clients and has {sizes[c]} samples. Use fewer clients or fewer classes per client."
            )
        counts[holders, c] = sizes[c] // len(holders)
        counts[holders[: sizes[c] % len(holders)], c] += 1
    smallest = int(counts.sum(axis=1).min())
    if smallest < settings.min_size:
        raise ConfigError(
            f"partition.clients = {settings.clients}, partition.classes_per_client = {settings.classes_per_client}, "
            f"partition.min_size = {settings.min_size}: under 'shards' the smallest client gets {smallest} samples. "
            "Use fewer clients, more classes per client, a smaller min_size or another scheme."
        )
    return counts


def _choose_classes(num_classes: int, settings: Partition, rng: Generator) -> NDArray[np.bool_]:
    """Which client holds which class, [K, C]; the numbers of clients that two classes have differ by at most one."""
    each, clients = settings.classes_per_client, settings.clients
    if each > num_classes:
        raise ConfigError(
            f"partition.classes_per_client = {each}: more than the {num_classes} classes that have samples."
        )
    if clients * each < num_classes:
        raise ConfigError(
            f"partition.clients = {clients} and partition.classes_per_client = {each} make {clients * each} places "
            f"for {num_classes} classes: samples would be left over. Use more clients or more classes per client."
        )
    # All classes start level, and taking the fullest ones keeps them within one of each other: nobody ends up short.
    slots = np.full(num_classes, clients * each // num_classes)
    slots[rng.permutation(num_classes)[: clients * each % num_classes]] += 1
    holds = np.zeros((clients, num_classes), np.bool_)
    for row in holds:
        fullest = np.lexsort((rng.random(num_classes), -slots))[:each]
        row[fullest] = True
        slots[fullest] -= 1
    return holds


def load_lists(path: str | Path) -> list[Ints]:
    """Index lists from a file: .json, a list of lists of whole numbers; or .npz, one array per client in file order."""
    path = Path(path)
    where = f"partition.file = '{path}':"
    if path.suffix not in (".json", ".npz"):
        raise ConfigError(f"{where} must end in .json or .npz.")
    try:
        lists = _read_json(path) if path.suffix == ".json" else _read_npz(path)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror or error}.") from None
    except (ValueError, EOFError, RecursionError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{where} not a valid {path.suffix} file of index lists: {error}.") from None
    return [_whole_numbers(part, f"{where} list {k}") for k, part in enumerate(lists)]


def _read_json(path: Path) -> list[ArrayLike]:
    lists: object = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(lists, list) or not all(isinstance(part, list) for part in lists):
        raise ValueError("the file must hold a list with one list of whole numbers per client")
    return lists


def _read_npz(path: Path) -> list[ArrayLike]:
    with zipfile.ZipFile(path):  # np.load takes a damaged archive for a pickle and says so
        pass
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in arrays.files]


def _whole_numbers(values: ArrayLike, where: str) -> Ints:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths inside a list
        array = np.asarray(None)
    if array.ndim == 1 and array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"{where}: must be a flat list of whole numbers.")
    return array.astype(np.int64)


def check_lists(
    lists: Sequence[ArrayLike], num_samples: int, settings: Partition, *, where: str = "index"
) -> list[Ints]:
    """A user's own index lists, one per client, sorted; refused if they do not fit the data or the settings.

    A message about the first list begins with '{where} list 0'.
    """
    if len(lists) != settings.clients:
        raise ConfigError(f"{where} lists for {len(lists)} clients, but partition.clients = {settings.clients}.")
    parts: list[Ints] = []
    owner = np.full(num_samples, -1, np.int64)
    for k, values in enumerate(lists):
        name = f"{where} list {k}"
        part = np.sort(_whole_numbers(values, name))
        if len(part) < settings.min_size:
            raise ConfigError(
                f"{name} has {len(part)} samples, fewer than partition.min_size = {settings.min_size}. "
                "Give it more or use a smaller min_size."
            )
        outside = part[(part < 0) | (part >= num_samples)]
        if outside.size:
            raise ConfigError(f"{name}: {outside[0]} is not a sample; allowed are 0 to {num_samples - 1}.")
        twice = part[1:][part[1:] == part[:-1]]
        if twice.size:
            raise ConfigError(f"{name}: sample {twice[0]} is in it twice.")
        taken = part[owner[part] >= 0]
        if taken.size:
            raise ConfigError(f"{name}: sample {taken[0]} is also in list {owner[taken[0]]}.")
        owner[part] = k
        parts.append(part)
    return parts
