#!/usr/bin/env bash
# Runs every step of a set of tests, whatever the one before came to, and ends with a line that
# says how many passed and how many failed. Status 0 where none failed.
#
#   tests/run.sh tests FUZZ_SECONDS    what `make test` runs
#   tests/run.sh peers                 what `make test-peers` runs
#
# CARGO and CARGO_FLAGS are those of the Makefile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra cargo <<<"${CARGO:-cargo}"
read -ra flags <<<"${CARGO_FLAGS:-}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
failures=()

# A script, or a fuzz target: one test.
step() {
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$*")
    fi
}

# The sum of what the log's result lines count as `passed` or `failed`.
total() {
    awk -v what="$1" '/^test result: / { for (i = 2; i <= NF; i++) if ($i == what ";") n += $(i - 1) } END { print n + 0 }' "$log"
}

# Cargo's tests, each one counted. A build that fails is a failure with no test in it.
cargo_test() {
    local status=0
    "${cargo[@]}" test "${flags[@]}" --no-fail-fast "$@" 2>&1 | tee "$log" || status=$?
    local ok bad
    ok=$(total passed)
    bad=$(total failed)
    passed=$((passed + ok))
    failed=$((failed + bad))
    while read -r name; do failures+=("$name"); done < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$log")
    if ((status != 0 && bad == 0)); then
        failed=$((failed + 1))
        failures+=("cargo test $* ended with status $status")
    fi
}

case ${1:-} in
tests)
    step tests/scripts.sh
    cargo_test --workspace
    step fuzz/run.sh "${2:?"usage: tests/run.sh tests FUZZ_SECONDS"}"
    ;;
peers)
    # The newer OpenSSL takes the place of the system's.
    # The whole workspace is named so that what `make test` built serves here, too.
    PATH=$PWD/.peers/newer:$PATH cargo_test --workspace --test tls --test tls_abroad --test fetch --test hold --test peers
    cargo_test --workspace --features plimsoll-relays/test-peers --test sessions autobahn
    ;;
*)
    echo "tests/run.sh: unknown set '${1:-}': expected 'tests FUZZ_SECONDS' or 'peers'" >&2
    exit 2
    ;;
esac

for failure in "${failures[@]}"; do echo "failed: $failure"; done
echo "$passed passed, $failed failed"
((failed == 0))
