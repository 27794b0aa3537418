#!/usr/bin/env bash
# Certificates and keys: ./make-keys.sh [--renew] [SITES] [HOST...]
# SITES (4) key pairs for trying the federation on one machine; in earnest 0: each site makes its own and sends the public
# half alone. HOST: what sites call the server, besides localhost and 127.0.0.1. What is there already stays as it is:
# a new certificate of the server is made where there is none, for other HOSTs, or, with the same names, by --renew.
set -euo pipefail
cd "$(dirname "$0")"
renew='' sites=4
if [ "${1:-}" = --renew ]; then
    renew=yes sites=0
    shift
fi
sites=${1:-$sites}
shift || true
case $sites in *[!0-9]*)
    echo "make-keys.sh: '$sites' is no number of sites; it comes before the server's names: ./make-keys.sh 0 $sites" >&2
    exit 2
    ;;
esac
umask 077
mkdir -p keys
cd keys
if [ ! -f server.pem ] || [ "$renew" ] || [ $# -gt 0 ]; then
    names="DNS:localhost,IP:127.0.0.1"
    if [ -f server.pem ] && [ $# = 0 ]; then
        names=$(openssl x509 -in server.pem -noout -ext subjectAltName | sed '1d; s/IP Address:/IP:/g; s/ //g')
    fi
    for host in "$@"; do
        case $host in *:*) kind=IP ;; *[!0-9.]*) kind=DNS ;; *) kind=IP ;; esac
        names="$names,$kind:$host"
    done
    if [ -f ca.crt ] && [ ! -f ca.key ]; then
        echo "make-keys.sh: keys/ca.crt is there and keys/ca.key is not: bring it back to make a certificate for the server" >&2
        exit 1
    fi
    [ -f ca.key ] || openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:secp384r1 -out ca.key
    [ -f ca.crt ] || openssl req -x509 -key ca.key -days 3650 -subj "/CN=fedacd CA" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.crt
    [ -f server.key ] || openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:secp384r1 -out server.key
    openssl req -new -key server.key -subj "/CN=localhost" -out server.csr
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.pem.new \
        -extfile <(echo "subjectAltName=$names") 2> openssl.log || { cat openssl.log >&2 && exit 1; }
    mv server.pem.new server.pem
    rm server.csr openssl.log
fi
for ((site = 0; site < 10#$sites; site++)); do
    [ -f "site-$site" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "site $site" -f "site-$site"
done
echo "keys/: ca.crt for everybody, server.pem and server.key for the server, site-N and site-N.pub for each site"
