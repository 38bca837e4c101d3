#!/usr/bin/env bash
# Installs the tools that build and test packages, besides Rust and Go: Debian packages, and in .peers/ nfpm (.deb,
# .rpm), actionlint, Zig with cargo-zigbuild (binaries for older systems, and static ones), wheel and certifi (the
# authorities that images trust). It is quick if everything is installed; if something cannot be installed, it says
# what is missing and stops.
#
#   packaging/setup.sh dist    what `make dist` needs
#   packaging/setup.sh test    that, and what `make test-dist` needs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scope=${1:-dist}
nfpm_version=v2.43.4
actionlint_version=v1.7.7
targets=(x86_64-unknown-linux-gnu x86_64-unknown-linux-musl)
peers=$PWD/.peers

say() { echo "packaging: $*"; }
fail() {
    echo "packaging: $*" >&2
    exit 1
}

mkdir -p "$peers/bin" "$peers/stamps"
exec 9>"$peers/lock"
if command -v flock >/dev/null; then flock 9; fi

need=()
want() { # COMMAND PACKAGE
    PATH=$PATH:/usr/sbin command -v "$1" >/dev/null || need+=("$2")
}
want python3 python3
want readelf binutils
want git git
if [[ ! -x $peers/packaging/bin/python ]] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    need+=(python3-venv)
fi
case $scope in
dist) ;;
test)
    want dpkg-deb dpkg
    want debootstrap debootstrap
    want rpm rpm
    want podman podman
    want runc runc
    want mandoc mandoc
    want zsh zsh
    want fish fish
    want nix nix-bin
    ;;
*) fail "unknown scope '$scope': expected 'dist' or 'test'" ;;
esac
if ((${#need[@]})); then
    if ! command -v apt-get >/dev/null; then
        fail "missing: ${need[*]} (names of the Debian packages). This system has no apt-get: install them with its own package manager, then run this again."
    fi
    if [[ $(id -u) -ne 0 ]]; then
        fail "missing: ${need[*]}. Only root may install them; run: sudo apt-get install --yes ${need[*]}"
    fi
    say "installing Debian packages: ${need[*]}"
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need[@]}"; } >"$peers/apt.log" 2>&1; then
        tail -5 "$peers/apt.log" >&2
        fail "apt-get could not install: ${need[*]} (is the network available? the whole output is in .peers/apt.log)"
    fi
fi

checksum() { cat "$@" | sha256sum | cut -d' ' -f1; }
fresh() { [[ -f $peers/stamps/$1 && $(<"$peers/stamps/$1") == "$2" ]]; }
stamp() { echo "$2" >"$peers/stamps/$1"; }

sum=$(checksum packaging/requirements.txt)
if ! fresh packaging "$sum" || ! "$peers/packaging/bin/python" -c 'import certifi, wheel, ziglang' 2>/dev/null; then
    say "installing Zig, cargo-zigbuild, wheel and certifi into .peers/packaging"
    python3 -m venv --clear "$peers/packaging" || fail "python3 -m venv .peers/packaging failed: install python3-venv"
    "$peers/packaging/bin/pip" install --quiet --disable-pip-version-check -r packaging/requirements.txt ||
        fail "pip could not install packaging/requirements.txt (is the network available?)"
    stamp packaging "$sum"
fi

if ! fresh nfpm "$nfpm_version" || [[ ! -x $peers/bin/nfpm ]]; then
    command -v go >/dev/null || fail "missing: go (the Go toolchain), which builds nfpm. Install it from your system or go.dev, and have it on PATH."
    say "building nfpm $nfpm_version"
    GOBIN=$peers/bin nice -n 10 go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm_version" 2>"$peers/nfpm.log" ||
        fail "go install nfpm@$nfpm_version failed (is the Go module proxy reachable? the whole output is in .peers/nfpm.log)"
    stamp nfpm "$nfpm_version"
fi

if [[ $scope == test ]] && { ! fresh actionlint "$actionlint_version" || [[ ! -x $peers/bin/actionlint ]]; }; then
    say "building actionlint $actionlint_version"
    GOBIN=$peers/bin nice -n 10 go install "github.com/rhysd/actionlint/cmd/actionlint@$actionlint_version" 2>"$peers/actionlint.log" ||
        fail "go install actionlint@$actionlint_version failed (is the Go module proxy reachable? the whole output is in .peers/actionlint.log)"
    stamp actionlint "$actionlint_version"
fi

for target in "${targets[@]}"; do
    [[ -d $(rustc --print sysroot)/lib/rustlib/$target/lib ]] && continue
    command -v rustup >/dev/null || fail "missing: Rust's standard library for $target, and no rustup to get it with. Install it from your system."
    rustup target add "$target" || fail "rustup target add $target failed (is the network available?)"
done

say "everything for '$scope' is installed"
