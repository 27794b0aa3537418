#!/usr/bin/env bash
# A site: ./supernode.sh SITE NODE-CONFIG, such as
#   ./supernode.sh 0 "partition-id=0 num-partitions=4 data='digits'"     its share of a data set that all sites have
#   ./supernode.sh 0 "partition-id=0 data='/srv/scans.npz'"              data of its own
# What it keeps between rounds is in state/site-SITE, if NODE-CONFIG names no other folder as state.
set -euo pipefail
cd "$(dirname "$0")"
. ./federation.env
needs flower-supernode
export FLWR_HOME="$PWD/state/site-$1"
mkdir -p "$FLWR_HOME"
config="$2"
[[ " $config" == *[[:space:]]state=* ]] || config="state='$FLWR_HOME' $config"
exec flower-supernode --superlink "$SUPERLINK" --root-certificates keys/ca.crt \
    --auth-supernode-private-key "keys/site-$1" --port "$((${SITE_PORT:-9094} + $1))" \
    --node-config "$config"
