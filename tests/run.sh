#!/usr/bin/env bash
# Runs every step of a set of tests, whatever the one before came to, and ends with a line that
# says how many passed and how many failed. Status 0 where none failed.
#
#   tests/run.sh tests                 what `make test` runs
#   tests/run.sh peers FUZZ_SECONDS    what `make test-peers` runs
#
# Compiling and installing go on at the same time, and so do test binaries, three of them: most of
# their time is waiting. CARGO and CARGO_FLAGS are those of the Makefile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
read -ra cargo <<<"${CARGO:-cargo}"
read -ra flags <<<"${CARGO_FLAGS:-}"
scratch=$(mktemp -d)
# What runs beside (installing, examples) does not outlive an interrupt. Bash lists jobs here that
# have ended, and the status is that of the tests, whether or not there was one to end.
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
passed=0
failed=0
ignored=0
failures=()
only=

fail() {
    failed=$((failed + 1))
    failures+=("$*")
}

# A script, or a fuzz target: one test.
step() {
    if "$@"; then passed=$((passed + 1)); else fail "$*"; fi
}

# Everything that the set needs besides Rust. It is waited for by `installed`.
install() {
    tests/setup.sh "$1" &
    setup=$!
}

installed() {
    if ! wait "$setup"; then
        echo "tests/run.sh: what the tests need is not there (above); no test was run" >&2
        exit 1
    fi
}

# Compile the tests that the arguments choose, as `cargo test` takes them. A build that fails is a
# failure with no test in it.
build() {
    "${cargo[@]}" test "${flags[@]}" --no-run --message-format=json-render-diagnostics "$@" \
        >"$scratch/artifacts" || fail "cargo test --no-run $*"
}

# What `build` made, a line each: package's folder, binary, name. Those that compute come first: the
# last ones are short.
binaries() {
    python3 - "$scratch/artifacts" <<'PYTHON'
import json, os, sys

found = []
with open(sys.argv[1], encoding="utf-8") as lines:
    for line in lines:
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            folder = os.path.dirname(message["manifest_path"])
            target = message["target"]
            is_whole = "test" in target["kind"]
            name = f"{os.path.basename(folder)} {target['name'] if is_whole else 'unit tests'}"
            found.append((not is_whole, os.path.basename(folder) == "plimsoll", name, folder, message["executable"]))
for _, _, name, folder, binary in sorted(found):
    print(folder, binary, name, sep="\t")
PYTHON
}

# One binary, as cargo runs it: in its package's folder. What it prints is shown where a test
# failed.
run_binary() {
    local folder binary name log status=0
    IFS=$'\t' read -r folder binary name <<<"$1"
    log=$scratch/${binary##*/}.log
    (
        cd "$folder"
        export CARGO_MANIFEST_DIR=$folder LD_LIBRARY_PATH=$libraries
        "$binary" ${only:+"$only"} >"$log" 2>&1
    ) || status=$?
    (
        flock 9
        if ((status != 0)); then
            echo "==> $name"
            cat "$log"
            # Killed, or a panic outside of a test: no line counts it.
            grep -q '^test result: FAILED' "$log" || echo "$name ended with status $status" >>"$scratch/broken"
        fi
        echo "$name: $(sed -n 's/^test result: //p' "$log")"
    ) 9>>"$scratch/lock"
}

# The examples in the documentation.
run_examples() {
    local log=$scratch/examples.log
    "${cargo[@]}" test "${flags[@]}" --no-fail-fast --workspace --doc >"$log" 2>&1 || {
        cat "$log"
        grep -q '^test result: FAILED' "$log" || echo "cargo test --doc" >>"$scratch/broken"
    }
}

# The sum of what the logs' result lines count as passed, failed or ignored.
total() {
    cat "$scratch"/*.log | awk -v what="$1" \
        '/^test result: / { for (i = 2; i <= NF; i++) if ($i == what ";") n += $(i - 1) } END { print n + 0 }'
}

# Run what `build` made: of each binary the tests whose names contain $only, where that is set.
# With `doc`, the examples in the documentation, too.
run() {
    libraries=$root/target/debug/deps:$(rustc --print sysroot)/lib
    export scratch libraries only
    export -f run_binary
    rm -f "$scratch"/*.log "$scratch/broken"
    : >"$scratch/broken"
    if [[ ${1:-} == doc ]]; then run_examples & fi
    # shellcheck disable=SC2016
    binaries | tr '\n' '\0' | xargs -0 -r -P 3 -I '{}' bash -c 'run_binary "$1"' - '{}'
    wait
    if [[ -n $only ]] && (($(total passed) + $(total failed) == 0)); then
        echo "no test whose name contains \`$only\` was run" >>"$scratch/broken"
    fi
    passed=$((passed + $(total passed)))
    ignored=$((ignored + $(total ignored)))
    failed=$((failed + $(total failed) + $(wc -l <"$scratch/broken")))
    mapfile -t -O "${#failures[@]}" failures < <(
        sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$scratch"/*.log
        cat "$scratch/broken"
    )
}

# Of each binary that `build` made the tests whose names contain $1. An assignment before the function's
# name would stay: the function exports the variable.
run_only() {
    only=$1
    run
    only=
}

case ${1:-} in
tests)
    install tests
    build --workspace
    installed
    step tests/scripts.sh
    run doc
    ;;
peers)
    seconds=${2:?"usage: tests/run.sh peers FUZZ_SECONDS"}
    install peers
    # The whole workspace is named so that what `make test` built serves here, too.
    build --workspace --test tls --test tls_abroad --test fetch --test hold --test identity --test peers
    installed
    # The newer OpenSSL takes the place of the system's.
    PATH=$PWD/.peers/newer:$PATH run
    # Panics put in on purpose, in what people install but for the feature that puts them in.
    "${cargo[@]}" build "${flags[@]}" --quiet --release -p plimsoll --features fault --target-dir target/faults ||
        fail "cargo build --release --features fault"
    build --workspace --test faults
    PROGRAM_UNDER_TEST=$PWD/target/faults/release/plimsoll run
    build --workspace --features plimsoll-relays/test-peers --test sessions
    run_only autobahn
    # Tables for notebooks, in builds that have them.
    build -p plimsoll-report --features parquet --test data
    run
    # Tokens counted by a tokenizer file, in builds that have it.
    build -p plimsoll-protocols -p plimsoll --features plimsoll/tokenizers --lib --test llm
    run_only tokenizer
    step tests/deploy.sh
    step tests/clusters.py target/debug/plimsoll
    step make --no-print-directory site
    # A fixed seed: the same inputs each time. `make fuzz` looks for new ones.
    SEED=1 step fuzz/run.sh "$seconds"
    ;;
*)
    echo "tests/run.sh: unknown set '${1:-}': expected 'tests' or 'peers FUZZ_SECONDS'" >&2
    exit 2
    ;;
esac

for failure in "${failures[@]}"; do echo "failed: $failure"; done
ignored_too=
((ignored == 0)) || ignored_too=", $ignored ignored"
echo "$passed passed, $failed failed$ignored_too"
((failed == 0))
