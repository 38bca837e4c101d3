#!/usr/bin/env bash
# Compiles and lints each crate by itself, with its default features and with none: in the workspace, another
# crate may turn on a feature that it needs. CARGO and CARGO_FLAGS are those of the Makefile. Three crates are excluded,
# because they need nearly all dependencies with other features, which takes as long as all other crates;
# `make test-publish` compiles each by itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra cargo <<<"${CARGO:-cargo}"
read -ra flags <<<"${CARGO_FLAGS:-}"
left_out=" plimsoll plimsoll-relays plimsoll-stack "
for manifest in crates/*/Cargo.toml; do
    crate=${manifest#crates/}
    crate=${crate%/Cargo.toml}
    [[ $left_out != *" $crate "* ]] || continue
    for features in '' --no-default-features; do
        "${cargo[@]}" clippy "${flags[@]}" --quiet --package "$crate" ${features:+"$features"} -- -D warnings || {
            echo "tests/features.sh: $crate does not compile by itself ${features:-with its default features}" >&2
            exit 1
        }
    done
done
