#!/usr/bin/env bash
# The flwr command for this federation, on the SuperLink's machine: ./flwr.sh run . federation --stream
set -euo pipefail
cd "$(dirname "$0")"
. ./federation.env
needs flwr
export FLWR_HOME="$PWD/flwr-home"
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml.$$" <<END
# Written by flwr.sh: Flower wants the whole path of the certificate.
[superlink]
default = "federation"

[superlink.federation]
address = "127.0.0.1:$SUPERLINK_PORT"
root-certificates = "$PWD/keys/ca.crt"
END
mv "$FLWR_HOME/config.toml.$$" "$FLWR_HOME/config.toml"
exec flwr "$@"
