#!/usr/bin/env bash
# The demonstration: a score server that demands client certificates and waits 5 ms before
# every answer; 1000 calls a second for 10 s over one connection; then 20 calls on a new
# connection each; a ladder of three rungs; a search for the load line. All files are in .demo/,
# and all processes are stopped at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release -p plimsoll
plimsoll=target/release/plimsoll
demo=.demo
runs=$demo/runs/$(date -u +%Y%m%dT%H%M%SZ)
mkdir -p "$runs"

server=
places=
stop() {
    local pid
    for pid in $server $places; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}
trap stop EXIT

echo "== certificates"
"$plimsoll" certs "$demo/certs" --force

echo "== score server with mutual TLS and a delay of 5 ms"
log=$demo/server.log
: >"$log"
"$plimsoll" serve score --listen 127.0.0.1:0 --delay 5ms \
    --tls-cert "$demo/certs/server.crt" --tls-key "$demo/certs/server.key" \
    --tls-client-ca "$demo/certs/ca.crt" >"$log" 2>&1 &
server=$!
port=
for _ in {1..100}; do
    port=$(sed -nE 's/.*127\.0\.0\.1:([0-9]+).*/\1/p' "$log")
    [[ -n $port ]] && break
    if ! kill -0 "$server" 2>/dev/null; then break; fi
    sleep 0.1
done
if [[ -z $port ]]; then
    cat "$log" >&2
    echo "demo: the server did not start (its output is above)" >&2
    exit 1
fi
echo "listening on 127.0.0.1:$port"

load() { # NAME FLAGS…
    local name=$1
    shift
    "$plimsoll" grpc "grpcs://localhost:$port" --method score.ScoreService/GetScore \
        --data '{"json": "[0.1, 0.2, 0.3]"}' \
        --ca "$demo/certs/ca.crt" --cert "$demo/certs/client.crt" --key "$demo/certs/client.key" \
        --out "$runs/$name" "$@" >"$runs/$name.txt"
    "$plimsoll" report "$runs/$name" --overhead-over 5ms
}

echo
echo "== open loop: 1000 calls a second for 10 s over one connection, after 2 s of warm-up"
load steady --rate 1000/s --warmup 2s --duration 10s --connections 1

echo
echo "== new connection per call: 20 attempts, each with a full handshake"
load cold --cold --rate 10/s --calls 20

echo
echo "== ladder: what TLS and client certificates add, over servers of its own"
"$plimsoll" ladder plans/score-ladder.toml --out "$runs/ladder" --quiet

echo
echo "== the load line of a server with 20 slots of 100 ms each: 200/s by Little's law"
: >"$demo/places.log"
"$plimsoll" serve score --listen 127.0.0.1:50053 --delay 100ms --max-streams 20 >"$demo/places.log" 2>&1 &
places=$!
for _ in {1..100}; do
    grep -q 127.0.0.1: "$demo/places.log" && break
    sleep 0.1
done
# 90 (the machine is too busy) and 99 (no rate meets the objectives) are results, too.
"$plimsoll" find plans/score-find.toml --out "$runs/search" || (($? == 90 || $? == 99))

echo
echo "The runs are in $runs/steady and $runs/cold; the pages:"
echo "  $runs/ladder/report.html"
echo "  $runs/search/report.html"
