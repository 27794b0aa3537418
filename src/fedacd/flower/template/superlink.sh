#!/usr/bin/env bash
# The SuperLink, with TLS and node authentication, on 127.0.0.1 alone; sites elsewhere come through gate.conf: ./superlink.sh
set -euo pipefail
cd "$(dirname "$0")"
. ./federation.env
needs flower-superlink
export FLWR_HOME="$PWD/flwr-home"
mkdir -p state
exec flower-superlink --host 127.0.0.1 --port "$SUPERLINK_PORT" --database state/superlink.db \
    --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/server.pem --ssl-keyfile keys/server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation
