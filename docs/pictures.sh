#!/usr/bin/env bash
# Makes the README's pictures again, from the demonstration's last runs: `make demo`, then
# docs/pictures.sh. Needs Chromium (Debian package chromium).
#
#   docs/pictures.sh [DIR]    DIR holds steady/ and search/ (default: the last of .demo/runs/)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

plimsoll=${PLIMSOLL:-target/release/plimsoll}
runs=${1:-$(find .demo/runs -mindepth 1 -maxdepth 1 -type d 2>/dev/null | sort | tail -n 1)}
if [[ -z $runs || ! -d $runs/steady || ! -d $runs/search ]]; then
    echo "docs/pictures.sh: no steady/ and search/ in '${runs:-.demo/runs}': run make demo first" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

picture() { # NAME HEIGHT
    "$plimsoll" report "$runs/$1" --html "$scratch/$1.html"
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
        --disable-background-networking --disable-component-update --disable-sync \
        --hide-scrollbars --user-data-dir="$scratch/profile" --window-size="1180,$2" \
        --screenshot="docs/pictures/$1.png" "file://$scratch/$1.html" >"$scratch/chromium.log" 2>&1 || {
        cat "$scratch/chromium.log" >&2
        exit 1
    }
    echo "docs/pictures/$1.png"
}

picture search 1000
picture steady 1630
