#!/usr/bin/env bash
# The SuperLink, with TLS and node authentication, where federation.env says: ./superlink.sh
set -euo pipefail
cd "$(dirname "$0")"
. ./federation.env
export FLWR_HOME="$PWD/flwr-home"
mkdir -p state
exec flower-superlink --host "$LISTEN" --port "${SUPERLINK##*:}" --database state/superlink.db \
    --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/server.pem --ssl-keyfile keys/server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation
