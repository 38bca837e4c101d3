#!/usr/bin/env bash
# Makes the README's pictures again, from the demonstration's last runs: `make demo`, then
# docs/pictures.sh. Needs Chromium (Debian package chromium).
#
#   docs/pictures.sh [DIR]    DIR holds ladder/, steady/ and search/ (default: the last of .demo/runs/)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

plimsoll=${PLIMSOLL:-target/release/plimsoll}
runs=${1:-$(find .demo/runs -mindepth 1 -maxdepth 1 -type d 2>/dev/null | sort | tail -n 1)}
for made in ladder steady search; do
    if [[ -z $runs || ! -d $runs/$made ]]; then
        echo "docs/pictures.sh: no $made/ in '${runs:-.demo/runs}': run make demo first" >&2
        exit 1
    fi
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

screenshot() { # NAME WIDTH HEIGHT, of the page NAME.html
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
        --disable-background-networking --disable-component-update --disable-sync \
        --hide-scrollbars --user-data-dir="$scratch/profile" --window-size="$2,$3" \
        --screenshot="docs/pictures/$1.png" "file://$scratch/$1.html" >"$scratch/chromium.log" 2>&1 || {
        cat "$scratch/chromium.log" >&2
        exit 1
    }
    echo "docs/pictures/$1.png"
}

picture() { # NAME HEIGHT
    "$plimsoll" report "$runs/$1" --html "$scratch/$1.html"
    screenshot "$1" 1180 "$2"
}

# The live view, as it was just before the end of a run on a terminal of 100 by 34.
live() {
    local server address
    "$plimsoll" serve score --listen 127.0.0.1:0 --delay 5ms --json >"$scratch/server" &
    server=$!
    for _ in $(seq 50); do
        [[ -s $scratch/server ]] && break
        sleep 0.1
    done
    address=$(sed -E 's/.*"address":"([^"]*)".*/\1/' "$scratch/server")
    local run="stty rows 34 cols 100; $plimsoll grpc grpc://$address -m score.ScoreService/GetScore"
    run+=" -d '{\"json\": \"[0.1, 0.2]\"}' --rate 1000/s --warmup 2s --duration 20s --name 'score, open loop'"
    run+=" --objective 'p99 < 20ms' --out $scratch/live"
    TERM=xterm-256color script -qec "$run" "$scratch/session" >/dev/null
    kill "$server"
    cargo run -q -p plimsoll --example terminal_page -- 34 100 <"$scratch/session" >"$scratch/live.html"
    screenshot live 950 690
}

picture ladder 1185
picture search 1000
picture steady 1630
live
