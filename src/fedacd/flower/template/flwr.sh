#!/usr/bin/env bash
# The flwr command for this federation, wherever its folder lies: ./flwr.sh run . federation --stream
set -euo pipefail
cd "$(dirname "$0")"
. ./federation.env
export FLWR_HOME="$PWD/flwr-home"
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml.$$" <<END
# Written by flwr.sh: Flower wants the whole path of the certificate.
[superlink]
default = "federation"

[superlink.federation]
address = "$SUPERLINK"
root-certificates = "$PWD/keys/ca.crt"
END
mv "$FLWR_HOME/config.toml.$$" "$FLWR_HOME/config.toml"
exec flwr "$@"
