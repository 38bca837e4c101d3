#!/usr/bin/env bash
# Compiles and lints each crate by itself, with its default features and with none: in the workspace, another
# crate may turn on what one needs. CARGO and CARGO_FLAGS are those of the Makefile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra cargo <<<"${CARGO:-cargo}"
read -ra flags <<<"${CARGO_FLAGS:-}"
for manifest in crates/*/Cargo.toml; do
    crate=${manifest#crates/}
    crate=${crate%/Cargo.toml}
    for features in '' --no-default-features; do
        "${cargo[@]}" clippy "${flags[@]}" --quiet --package "$crate" ${features:+"$features"} -- -D warnings || {
            echo "tests/features.sh: $crate does not compile by itself ${features:-with its default features}" >&2
            exit 1
        }
    done
done
