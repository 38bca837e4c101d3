#!/usr/bin/env bash
# Builds the packages of this tree in target/dist, with SHA256SUMS: an archive of a binary for old versions of
# glibc and one of a static binary, .deb, .rpm, a Python wheel, and two images. `make dist` calls it.
#
#   packaging/dist.sh          all of it
#   packaging/dist.sh image    only the images, for `make image`, from the static binary; other packages are kept
#
# PROFILE           cargo's profile; dist is slow to build, and debug or release suffice for work on packaging
# GNU_BINARY,       existing binaries, which are packed instead of new ones
# STATIC_BINARY
#
# A commit always gives the same files: times are those of the commit, and paths of the machine are removed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scope=${1:-all}
case $scope in
all | image) ;;
*)
    echo "packaging/dist.sh: unknown scope '$scope': expected 'image', or nothing for all" >&2
    exit 2
    ;;
esac
root=$PWD
profile=${PROFILE:-dist}
out=$root/target/dist
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The glibc version, older than that of every maintained distribution.
glibc=2.28
version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"$/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
export PATH=$root/.peers/packaging/bin:$root/.peers/bin:$PATH

say() { echo "dist: $*"; }
fail() {
    echo "dist: $*" >&2
    exit 1
}

# Builds a binary for a target as Zig's linker names it; prints its path.
build() { # TARGET
    local folder=${1%%.*} home=${CARGO_HOME:-$HOME/.cargo} cut
    folder=${folder/#/$root/target/packaging/}
    cut="--remap-path-prefix=$home=/cargo --remap-path-prefix=$root=/plimsoll"
    # A separate folder, so that builds of tests and benchmarks are not repeated because of these flags.
    RUSTFLAGS=$cut CFLAGS="-ffile-prefix-map=$home=/cargo" CARGO_TARGET_DIR=$root/target/packaging \
        nice -n 15 cargo zigbuild --locked --profile "${profile/debug/dev}" -p plimsoll --target "$1" >&2 || return
    echo "$folder/$profile/plimsoll"
}

static=${STATIC_BINARY:-$(BUILD_STATIC=1 build x86_64-unknown-linux-musl)}
[[ -x $static ]] || fail "no binary $static"
if readelf -l "$static" | grep -q INTERP; then fail "$static is not linked statically"; fi
mkdir -p "$scratch/files"
cp LICENSE-APACHE LICENSE-MIT "$scratch/files"
packaging/licences.py >"$scratch/files/THIRD-PARTY.txt"
if [[ $scope == image ]]; then
    mkdir -p "$out"
    packaging/image.py --binary "$static" --version "$version" --licences "$scratch/files" --out "$out"
    say "podman, docker and containerd load them:"
    du -h --apparent-size -- "$out"/*-oci.tar
    exit
fi
gnu=${GNU_BINARY:-$(build "x86_64-unknown-linux-gnu.$glibc")}
[[ -x $gnu ]] || fail "no binary $gnu"

# Packages must require the glibc version of the newest symbols in the binary.
needs=$(readelf -V "$gnu" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1)
needs=${needs#GLIBC_}
# A binary that another linker than Zig's has made may need libgcc.
LIBGCC_DEB='' LIBGCC_RPM=''
if readelf -d "$gnu" | grep -q 'libgcc_s\.so\.1'; then
    LIBGCC_DEB=libgcc-s1 LIBGCC_RPM='libgcc_s.so.1()(64bit)'
fi
export LIBGCC_DEB LIBGCC_RPM

rm -rf "$out"
mkdir -p "$out" "$scratch/files/completions"
cd "$scratch/files"
"$gnu" man man >/dev/null
"$gnu" completions bash >completions/plimsoll.bash
"$gnu" completions zsh >completions/_plimsoll
"$gnu" completions fish >completions/plimsoll.fish
cp "$root"/{README.md,CHANGELOG.md} .
cd "$root"

archive() { # NAME BINARY
    cp -R "$scratch/files" "$scratch/$1"
    install -m 755 "$2" "$scratch/$1/plimsoll"
    tar --create --directory "$scratch" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w \
        --mtime="@$SOURCE_DATE_EPOCH" "$1" | gzip -9n >"$out/$1.tar.gz"
}
archive "plimsoll-$version-x86_64-linux-gnu" "$gnu"
archive "plimsoll-$version-x86_64-linux-musl" "$static"

cp -R "$scratch/files" "$scratch/package"
cp packaging/copyright "$scratch/package/copyright"
gzip -9n "$scratch"/package/man/*.1
install -m 755 "$gnu" "$scratch/package/plimsoll"
for format in deb rpm; do
    (cd "$scratch/package" && VERSION=$version GLIBC=$needs nfpm package --config "$root/packaging/nfpm.yaml" \
        --packager $format --target "$out/" >"$scratch/nfpm.log" 2>&1) || {
        cat "$scratch/nfpm.log" >&2
        fail "nfpm could not make the .$format"
    }
done

packaging/wheel.py --binary "$gnu" --version "$version" --glibc "$needs" --licences "$scratch/files" --out "$out"
packaging/image.py --binary "$static" --version "$version" --licences "$scratch/files" --out "$out"

(cd "$out" && sha256sum -- * >"$scratch/sums" && mv "$scratch/sums" SHA256SUMS)
say "target/dist, for glibc $needs and newer, or none:"
(cd "$out" && du -h --apparent-size -- *)
