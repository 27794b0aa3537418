#!/usr/bin/env bash
# The SuperLink, with TLS and node authentication: ./superlink.sh [PORT]
set -euo pipefail
cd "$(dirname "$0")"
export FLWR_TELEMETRY_ENABLED=0 FLWR_HOME="$PWD/flwr-home"
mkdir -p state
exec flower-superlink --host 127.0.0.1 --port "${1:-8000}" --database state/superlink.db \
    --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/server.pem --ssl-keyfile keys/server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation
