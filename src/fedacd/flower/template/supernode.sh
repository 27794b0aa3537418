#!/usr/bin/env bash
# A site: ./supernode.sh SITE NODE-CONFIG, such as
#   ./supernode.sh 0 "partition-id=0 num-partitions=4 data='digits'"     its share of a data set that all sites have
#   ./supernode.sh 0 "partition-id=0 data='/srv/scans.npz'"              data of its own
set -euo pipefail
cd "$(dirname "$0")"
. ./federation.env
export FLWR_HOME="$PWD/state/site-$1"
mkdir -p "$FLWR_HOME"
exec flower-supernode --superlink "$SUPERLINK" --root-certificates keys/ca.crt \
    --auth-supernode-private-key "keys/site-$1" --port "$((${SITE_PORT:-9094} + $1))" \
    --node-config "state='$PWD/state/site-$1' $2"
