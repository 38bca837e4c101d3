#!/usr/bin/env bash
# Fuzzes every target, or those named, for SECONDS each:
#
#   fuzz/run.sh 10 [TARGET…]
#   SEED=1 fuzz/run.sh 10            the same inputs each time, so that only a change of the code fails it
#   fuzz/run.sh build                only compiles them
#
# Stable Rust suffices: the sanitizer-coverage pass is part of LLVM, and a crate links libFuzzer.
# Inputs in regressions/, which once caused crashes, are replayed first. A run starts with the inputs
# in corpus/ and keeps new ones in target/corpus/ for the next run, except with a SEED.
# The exit code is 1 after a crash, with the name of the input's file.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:?"usage: fuzz/run.sh SECONDS|build [TARGET...]"}
shift
[ $# -gt 0 ] || set -- h2_driver canned_server hpack_decode http1_messages tls_records \
    tls_handshakes websocket_frames websocket_deflate api_answers bolt_driver hessian_decode \
    s_time_output hold_driver http_events http_driver http2_driver proxy_header \
    server_metrics

CARGO_TARGET_DIR=$PWD/target
# With --target the flags do not apply to build scripts.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1"
export CARGO_TARGET_DIR RUSTFLAGS
host=$(rustc -vV | sed -n 's/^host: //p')
read -ra cargo_flags <<<"${CARGO_FLAGS:-}"
cargo build --quiet --release --target "$host" --bins "${cargo_flags[@]}"
[ "$seconds" != build ] || exit 0

# Replays the regressions of one target, then fuzzes it.
fuzz() {
    local target=$1
    local binary=$CARGO_TARGET_DIR/$host/release/$target found=$CARGO_TARGET_DIR/corpus/$target
    if [ -n "${SEED:-}" ]; then
        found=$CARGO_TARGET_DIR/seeded/$target
        rm -rf "$found"
    fi
    mkdir -p "$found" "regressions/$target"
    local artifacts=-artifact_prefix=$CARGO_TARGET_DIR/crash-$target-
    if ! "$binary" -runs=0 "$artifacts" "regressions/$target" "corpus/$target" >"$found.log" 2>&1 ||
        ! "$binary" -max_total_time="$seconds" ${SEED:+-seed="$SEED"} -timeout=10 -rss_limit_mb=2048 \
            -print_final_stats=1 "$artifacts" "$found" "corpus/$target" >"$found.log" 2>&1; then
        tail -n 40 "$found.log" >&2
        echo "fuzz $target: crashed; keep the input named above in fuzz/regressions/$target" >&2
        return 1
    fi
    sed -n "s/^stat::number_of_executed_units: */fuzz $target: $seconds s, runs: /p" "$found.log"
}
export -f fuzz
export host seconds

# A target keeps one processor busy.
# shellcheck disable=SC2016
printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -I '{}' bash -c 'fuzz "$1"' - '{}' || exit 1
