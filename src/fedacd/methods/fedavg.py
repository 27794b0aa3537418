"""FedAvg.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017.

    client  w_m <- w - lr * gradient of the cross entropy, over its local epochs
    server  w   <- sum over participants of u_m w_m / sum of u_m

A client uploads its weights and its number of samples. Deviation: u_m = 1 by default, as in the FedACD paper's
comparison; `weighting = "samples"` gives the published u_m = n_m.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedacd.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """The default bodies of `Method`, unchanged."""

    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
