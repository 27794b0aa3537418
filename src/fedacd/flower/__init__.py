"""The same methods at real sites, with Flower: the extra `flower`, in an environment of its own.

settings.py   what a deployment wants to know beside the settings of a run; nothing hidden
wire.py       named tensors as Flower's records, checked before they are read
site.py       a site's round: its data, its state on its own disk, the engine's own training
central.py    the server's side of a round: who takes part, who is refused, the sum, the record
privacy.py    clipping, noise and what they are worth
strategy.py   the two joined by Flower's messages
client.py     the ClientApp
server.py     the ServerApp
starter.py    a project to begin with, and command.py `fedacd flower init` that writes it
"""
