#!/usr/bin/env bash
# Certificates and keys for trying the federation on one machine: ./make-keys.sh [SITES] [HOST...]
# In earnest each site makes its own key pair and sends the public half alone; the server's certificate comes from your CA.
set -euo pipefail
cd "$(dirname "$0")"
sites=${1:-4}
shift || true
umask 077
mkdir -p keys
cd keys
names="DNS:localhost,IP:127.0.0.1"
for host in "$@"; do
    case $host in *:*) kind=IP ;; *[!0-9.]*) kind=DNS ;; *) kind=IP ;; esac
    names="$names,$kind:$host"
done
if [ ! -f ca.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days 365 -subj "/CN=fedacd trial CA" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout ca.key -out ca.crt 2>/dev/null
fi
openssl req -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -subj "/CN=localhost" -keyout server.key -out server.csr 2>/dev/null
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.pem \
    -extfile <(echo "subjectAltName=$names") 2>/dev/null
rm -f server.csr
for ((site = 0; site < sites; site++)); do
    [ -f "site-$site" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "site $site" -f "site-$site"
done
echo "keys/: ca.crt for everybody, server.pem and server.key for the SuperLink, site-N and site-N.pub for each site"
