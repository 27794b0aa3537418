"""FedNH: federated learning with normalised and uniform class prototypes.

Y. Dai, Z. Chen, J. Li, S. Heinecke, L. Sun, R. Xu. Tackling Data Heterogeneity in Federated Learning with Class
Prototypes. AAAI 2023.

With z the features scaled to length 1, W the C x D prototypes with rows of length 1 and s a learnable scale:

    client  CE on s * <z, W_c>; W is frozen. Afterwards, in a clean pass: mu_m,c = mean of z over its class c
    server  body and s as FedAvg; mu_c = mean of z over all participants' samples of class c, scaled to length 1;
            W_c <- (rho W_c + (1 - rho) mu_c), scaled to length 1; a class that nobody holds keeps its row

W starts with orthogonal rows, the same for all clients; with more classes than features, where that is impossible,
with random directions. The model's own head is not used. A client uploads sums of z and counts by class, C (D + 1)
numbers more than FedAvg less its head, and receives the C x D prototypes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedacd.config import setting
from fedacd.errors import ConfigError
from fedacd.methods.base import Client, Did, Method, Server, Shared, Tensors, Total, Trained
from fedacd.models.net import Net


@dataclass(frozen=True, kw_only=True)
class FedNH(Method):
    """A fixed, evenly spread head that follows the class means slowly."""

    citation: ClassVar[str] = "Dai et al., AAAI 2023"
    needs_features: ClassVar[bool] = True
    survey_at = frozenset({"end"})

    scale: float = setting(1.0, "s at the start; 20 for resnet18", above=0)
    rho: float = setting(0.9, "how much of a prototype stays from round to round", at_least=0, at_most=1)

    @classmethod
    def defaults(cls, dataset: str, model: str) -> dict[str, Any]:
        return super().defaults(dataset, model) | ({"method.scale": 20.0} if model == "resnet18" else {})

    def init_server(self, net: Net, rng: np.random.Generator) -> Server:
        params = {name: w for name, w in net.initial.items() if name not in net.head_names}
        if "scale" in params:
            raise ConfigError("method 'fednh' has a parameter 'scale', and so has the model: rename the model's.")
        directions = rng.standard_normal((net.num_features or 0, net.num_classes))
        if net.num_classes <= len(directions):
            directions = np.linalg.qr(directions)[0]
        W = F.normalize(torch.from_numpy(directions.T.copy()).float(), dim=-1)
        return Server(Shared({**params, "scale": torch.tensor(self.scale)}, {"prototypes": W}), {})

    def outputs(self, net: Net, now: Trained, shared: Shared, client: Client, x: Tensor) -> Tensors:
        return self._outputs(net, now.params, shared, x)

    def _outputs(self, net: Net, params: Tensors, shared: Shared, x: Tensor) -> Tensors:
        z = F.normalize(net.features(params, x), dim=-1)
        return {"features": z, "logits": params["scale"] * (z @ shared.extra["prototypes"].mT)}

    def survey(self, out: Tensors, target: Tensor, w: Tensor, client: Client) -> Tensors:
        target = target * w[:, None]
        return {"features": target.mT @ out["features"], "counts": target.sum(0)}

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        return client._replace(memo={}), client.memo, {"n": did.n}

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        server = super().combine(net, server, total, num_clients, rng)
        W = server.shared.extra["prototypes"]
        mu = F.normalize(total.extra["features"], dim=-1)
        moved = F.normalize(self.rho * W.double() + (1 - self.rho) * mu, dim=-1).to(W.dtype)
        W = torch.where(total.extra["counts"][:, None] > 0, moved, W)
        return server._replace(shared=server.shared._replace(extra={"prototypes": W}))

    def predict(self, net: Net, shared: Shared, x: Tensor) -> Tensor:
        return self._outputs(net, shared.params, shared, x)["logits"]
