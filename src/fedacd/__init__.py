"""Federated learning for label-skewed data: FedACD (IJCAI-25), its baselines, and a place to compare them.

import fedacd
result = fedacd.run(dataset="digits", method="fedacd", rounds=20)
print(result.final["accuracy"], result.folder)
"""

__version__ = "0.1.0"

from fedacd.api import Result, run
from fedacd.config import Config
from fedacd.data import Dataset
from fedacd.errors import ConfigError, DataError, FedacdError, ModelError, RecordError, UpdateError
from fedacd.inference import GlobalModel
from fedacd.methods import METHODS, Method
from fedacd.models import MODELS

__all__ = [
    "METHODS",
    "MODELS",
    "Config",
    "ConfigError",
    "DataError",
    "Dataset",
    "FedacdError",
    "GlobalModel",
    "Method",
    "ModelError",
    "RecordError",
    "Result",
    "UpdateError",
    "__version__",
    "run",
]
