"""Data sets: by name, from files, from arrays.

load("cifar10"), load("mine.npz"), load("folder/of/class/folders")
get("cifar10")             the official archive, once, into root()
import_data("folder")      an .npz file or a folder, once, into root()
Dataset.from_arrays(...)   what a program has at hand
check(name), listing()     what there is, and whether it is sound
"""

from fedacd.data.cache import root
from fedacd.data.dataset import Dataset
from fedacd.data.download import Progress
from fedacd.data.manage import get, import_data
from fedacd.data.named import NAMED, Named
from fedacd.data.overview import Check, Counts, Entry, check, listing
from fedacd.data.sources import load

__all__ = [
    "NAMED",
    "Check",
    "Counts",
    "Dataset",
    "Entry",
    "Named",
    "Progress",
    "check",
    "get",
    "import_data",
    "listing",
    "load",
    "root",
]
