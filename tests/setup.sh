#!/usr/bin/env bash
# Installs what the tests and the benchmarks need besides Rust: Debian packages, a Python
# environment with grpcio, and peers written in Go and Java. Everything that is not a Debian
# package is installed in .peers/ in this tree. It is quick if everything is installed; if something
# cannot be installed, it says what is missing and stops.
#
#   tests/setup.sh tests    what `make test` needs
#   tests/setup.sh peers    that, and what `make test-peers` needs
#   tests/setup.sh bench    what `make test` and `make bench` need
#   tests/setup.sh kubernetes   what `make test-kubernetes` needs besides an image
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scope=${1:-tests}
case $scope in
tests | peers | bench | kubernetes) ;;
*)
    echo "tests/setup.sh: unknown scope '$scope': expected 'tests', 'peers', 'bench' or 'kubernetes'" >&2
    exit 2
    ;;
esac

ghz_version=v0.121.0
k6_version=v1.8.1
locust_version=2.47.0
vegeta_version=v12.13.0
hey_version=v0.1.5
fortio_version=v1.66.0
locust_version=2.47.0
oha_version=1.16.0
aiperf_version=0.13.0
# The version of the crate that contains OpenSSL's sources; after the plus, the version of OpenSSL.
openssl_crate=400.0.2+4.0.3
# The module of grpc-go contains the server of the interoperability tests.
grpc_go_version=v1.75.1
# The newest version that Go 1.24 builds.
kustomize_version=v5.7.1
kubernetes_version=v1.34.4
etcd_version=v3.7.3
peers=$PWD/.peers

say() { echo "setup: $*"; }
fail() {
    echo "setup: $*" >&2
    exit 1
}

# Parallel `make` targets share .peers/, so only one may build the peers at a time.
mkdir -p "$peers/bin" "$peers/stamps"
exec 9>"$peers/lock"
if command -v flock >/dev/null; then flock 9; fi

# --- Debian packages, each with a command that exists if it is installed -------------
need=()
want() { # COMMAND PACKAGE
    command -v "$1" >/dev/null || need+=("$2")
}
want openssl openssl
want ss iproute2
PATH=$PATH:/usr/sbin want nginx nginx-light
# Debian packages nginx's TCP module separately; other distributions build it in.
if [[ ! -e /usr/lib/nginx/modules/ngx_stream_module.so ]] && ! PATH=$PATH:/usr/sbin nginx -V 2>&1 | grep -qE -- '--with-stream( |$)'; then
    need+=(libnginx-mod-stream)
fi
want shellcheck shellcheck
want python3 python3
want c++ g++
want redis-server redis-server
want haproxy haproxy
want tinyproxy tinyproxy
want microsocks microsocks
want curl curl
want node nodejs
want h2load nghttp2-client
want javac default-jdk-headless
want mvn maven
want chromium chromium
want perf linux-perf
want xmllint libxml2-utils
want mandoc mandoc
if [[ $scope == bench ]]; then want wrk wrk; fi
# Launchers of shards, and a reader of their Parquet tables.
if [[ $scope == peers ]]; then
    want mpirun.openmpi openmpi-bin
    want mpirun.mpich mpich
    want srun slurm-client
    PATH=$PATH:/usr/sbin want slurmctld slurmctld
    PATH=$PATH:/usr/sbin want slurmd slurmd
    PATH=$PATH:/usr/sbin want munged munge
    want zstd zstd
    # `make icount`
    want valgrind valgrind
fi
if [[ $scope == kubernetes ]]; then
    want containerd containerd
    PATH=$PATH:/usr/sbin want runc runc
    [[ -x /usr/lib/cni/bridge ]] || need+=(containernetworking-plugins)
    want nsenter util-linux
    PATH=$PATH:/usr/sbin want sysctl procps
    want zstd zstd
fi
# Debian ships python3 without what `python3 -m venv` needs.
if [[ ! -x $peers/venv/bin/python ]] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    need+=(python3-venv)
fi

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

# A stamp contains the checksum of a step's sources, so that the step is repeated only when they
# change.
checksum() { cat "$@" | sha256sum | cut -d' ' -f1; }
fresh() { [[ -f $peers/stamps/$1 && $(<"$peers/stamps/$1") == "$2" ]]; }
stamp() { echo "$2" >"$peers/stamps/$1"; }

# --- Python: grpcio and others in a separate environment -----------------------------
sum=$(checksum tests/peers/requirements.txt)
if ! fresh python "$sum" || ! "$peers/venv/bin/python" -c 'import grpc, granian' 2>/dev/null; then
    say "installing the Python peers into .peers/venv"
    python3 -m venv --clear "$peers/venv" || fail "python3 -m venv .peers/venv failed: install python3-venv"
    "$peers/venv/bin/pip" install --quiet --disable-pip-version-check -r tests/peers/requirements.txt ||
        fail "pip could not install tests/peers/requirements.txt (is the network available?)"
    stamp python "$sum"
fi

# --- The Autobahn testsuite for WebSockets: written for Python 2.7, which few systems have
sum=$(checksum tests/peers/autobahn.txt)
if [[ $scope == peers ]] && { ! fresh autobahn "$sum" || ! "$peers/autobahn/python" -c '' 2>/dev/null; }; then
    rm -rf "$peers/autobahn"
    python2=
    for candidate in python2.7 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/2.7.*/bin/python2.7; do
        if "$candidate" -c 'import pip, ssl' 2>/dev/null; then
            python2=$("$candidate" -c 'import sys; print(sys.executable)')
            break
        fi
    done
    if [[ -z $python2 ]]; then
        say "no Python 2.7 with pip: the Autobahn testsuite is NOT run; the cases in the tree are"
        stamp autobahn "no Python 2.7"
    else
        say "installing the Autobahn testsuite into .peers/autobahn"
        "$python2" -m pip install --quiet --disable-pip-version-check --target "$peers/autobahn/site" \
            -r tests/peers/autobahn.txt 2>"$peers/autobahn.log" ||
            fail "pip could not install tests/peers/autobahn.txt (the whole output is in .peers/autobahn.log)"
        ln -s "$python2" "$peers/autobahn/python"
        stamp autobahn "$sum"
    fi
fi

# --- protobuf's conformance suite. Its runner needs glibc 2.38: with an older one, it gets that of a newer Debian
sum=$(checksum tests/peers/conformance.txt)
conformance=$peers/conformance
if [[ $scope == peers ]] && { ! fresh conformance "$sum" || [[ ! -x $conformance/run ]]; }; then
    say "installing protobuf's conformance suite into .peers/conformance"
    rm -rf "$conformance"
    mkdir -p "$conformance/apt/lists"
    "$peers/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$conformance/site" \
        -r tests/peers/conformance.txt || fail "pip could not install tests/peers/conformance.txt (is the network available?)"
    runner=$conformance/site/protoc/_bin/conformance_test_runner
    chmod +x "$runner"
    loader=()
    if ! ldd "$runner" >/dev/null 2>&1 || ldd "$runner" 2>&1 | grep -q 'not found'; then
        command -v apt-get >/dev/null ||
            fail "the conformance suite needs glibc 2.38 or newer, and this system has an older one and no apt-get"
        echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main' \
            >"$conformance/apt/sources.list"
        newer=(-o "Dir::Etc::SourceList=$conformance/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
            -o "Dir::State::Lists=$conformance/apt/lists" -o "Dir::Cache=$conformance/apt" -o Dir::State::Status=/dev/null
            -o APT::Sandbox::User=root)
        (cd "$conformance/apt" && apt-get "${newer[@]}" update && apt-get "${newer[@]}" download libc6 libstdc++6 libgcc-s1) \
            >"$peers/apt.log" 2>&1 ||
            fail "apt-get could not download the libraries of Debian 13 (the whole output is in .peers/apt.log)"
        for package in "$conformance"/apt/*.deb; do dpkg-deb -x "$package" "$conformance/libraries"; done
        found=$(dirname "$(find "$conformance/libraries" -type f -name 'ld-linux*' | head -1)")
        loader=("$(echo "$found"/ld-linux*)" --library-path "$found")
    fi
    rm -r "$conformance/apt"
    {
        echo '#!/bin/sh'
        echo "exec ${loader[*]@Q} '$runner' \"\$@\""
    } >"$conformance/run"
    chmod +x "$conformance/run"
    stamp conformance "$sum"
fi

protos=(crates/plimsoll-protocols/proto/*.proto)
[[ -e ${protos[0]} ]] || fail "crates/plimsoll-protocols/proto holds no .proto file"
sum=$(checksum tests/peers/requirements.txt "${protos[@]}")
if ! fresh generated "$sum" || [[ ! -d $peers/generated ]]; then
    say "generating Python code from ${protos[*]}"
    rm -rf "$peers/generated"
    mkdir "$peers/generated"
    "$peers/venv/bin/python" -m grpc_tools.protoc --proto_path=crates/plimsoll-protocols/proto \
        --python_out="$peers/generated" --grpc_python_out="$peers/generated" "${protos[@]}"
    stamp generated "$sum"
fi

# --- Java: SOFABolt and SOFARPC, servers and clients --------------------------------
sum=$(checksum tests/peers/java/pom.xml tests/peers/java/src/main/java/peer/*.java)
if ! fresh java "$sum" || [[ ! -d $peers/java/lib ]]; then
    say "building the Java peers"
    rm -rf "$peers/java"
    mvn -q -B -f tests/peers/java/pom.xml -Dmaven.repo.local="$peers/m2" -Dpeer.build="$peers/java" package >"$peers/mvn.log" 2>&1 ||
        fail "mvn package in tests/peers/java failed (is Maven Central reachable? the whole output is in .peers/mvn.log)"
    stamp java "$sum"
fi

sum=$(checksum tests/peers/grpc-java/pom.xml)
if ! fresh grpc-java "$sum" || [[ ! -d $peers/grpc-java/lib ]]; then
    say "installing the interop server of grpc-java"
    rm -rf "$peers/grpc-java"
    mvn -q -B -f tests/peers/grpc-java/pom.xml -Dmaven.repo.local="$peers/m2" -Dpeer.build="$peers/grpc-java" package >"$peers/mvn.log" 2>&1 ||
        fail "mvn package in tests/peers/grpc-java failed (is Maven Central reachable? the whole output is in .peers/mvn.log)"
    stamp grpc-java "$sum"
fi

# --- Go: an ordinary grpc-go server, and for the benchmarks more ---------------------
command -v go >/dev/null || fail "missing: go (the Go toolchain). Install Go 1.24 or newer from your system or go.dev, and have it on PATH."
sum=$(checksum bench/peers/go.mod bench/peers/go.sum bench/peers/*/*.go)
if ! fresh go "$sum" || [[ ! -x $peers/bin/go-score || ! -x $peers/bin/go-health || ! -x $peers/bin/go-tls || ! -x $peers/bin/go-http || ! -x $peers/bin/go-s3 || ! -x $peers/bin/go-connect || ! -x $peers/bin/go-compose ]]; then
    say "building the Go peers"
    (cd bench/peers && go build -o "$peers/bin/" ./...) || fail "go build in bench/peers failed (is the Go module proxy reachable?)"
    stamp go "$sum"
fi
if ! fresh interop "$grpc_go_version" || [[ ! -x $peers/bin/interop-server ]]; then
    say "building the interop server of grpc-go $grpc_go_version"
    mkdir -p "$peers/interop"
    GOBIN=$peers/interop go install "google.golang.org/grpc/interop/server@$grpc_go_version" ||
        fail "go install grpc/interop/server@$grpc_go_version failed (is the Go module proxy reachable?)"
    mv "$peers/interop/server" "$peers/bin/interop-server"
    rmdir "$peers/interop"
    stamp interop "$grpc_go_version"
fi
if [[ $scope == bench ]] && { ! fresh ghz "$ghz_version" || [[ ! -x $peers/bin/ghz ]]; }; then
    say "building ghz $ghz_version"
    GOBIN=$peers/bin go install "github.com/bojand/ghz/cmd/ghz@$ghz_version" || fail "go install ghz@$ghz_version failed (is the Go module proxy reachable?)"
    stamp ghz "$ghz_version"
fi

if [[ $scope == bench ]] && { ! fresh vegeta "$vegeta_version" || [[ ! -x $peers/bin/vegeta ]]; }; then
    say "building vegeta $vegeta_version"
    GOBIN=$peers/bin go install "github.com/tsenart/vegeta/v12@$vegeta_version" || fail "go install vegeta@$vegeta_version failed (is the Go module proxy reachable?)"
    stamp vegeta "$vegeta_version"
fi

if [[ $scope == bench ]] && { ! fresh hey "$hey_version" || [[ ! -x $peers/bin/hey ]]; }; then
    say "building hey $hey_version"
    GOBIN=$peers/bin go install "github.com/rakyll/hey@$hey_version" || fail "go install hey@$hey_version failed (is the Go module proxy reachable?)"
    stamp hey "$hey_version"
fi

if [[ $scope == bench ]] && { ! fresh fortio "$fortio_version" || [[ ! -x $peers/bin/fortio ]]; }; then
    say "building Fortio $fortio_version"
    GOBIN=$peers/bin go install "fortio.org/fortio@$fortio_version" || fail "go install fortio@$fortio_version failed (is the Go module proxy reachable?)"
    stamp fortio "$fortio_version"
fi

if [[ $scope == bench ]] && { ! fresh locust "$locust_version" || [[ ! -x $peers/bin/locust ]]; }; then
    say "installing Locust $locust_version into .peers/locust"
    python3 -m venv --clear "$peers/locust" || fail "python3 -m venv .peers/locust failed: install python3-venv"
    "$peers/locust/bin/pip" install --quiet --disable-pip-version-check "locust==$locust_version" ||
        fail "pip could not install locust==$locust_version (is the network available?)"
    ln -sf ../locust/bin/locust "$peers/bin/locust"
    stamp locust "$locust_version"
fi

if [[ $scope == bench ]] && { ! fresh oha "$oha_version" || [[ ! -x $peers/bin/oha ]]; }; then
    say "building oha $oha_version"
    cargo install --quiet --locked --root "$peers" "oha@$oha_version" || fail "cargo install oha@$oha_version failed (is the registry reachable?)"
    stamp oha "$oha_version"
fi

if [[ $scope == bench ]] && { ! fresh aiperf "$aiperf_version" || [[ ! -x $peers/aiperf/bin/aiperf ]]; }; then
    say "installing AIPerf $aiperf_version into .peers/aiperf (1.2 GB)"
    python3 -m venv --clear "$peers/aiperf" || fail "python3 -m venv .peers/aiperf failed: install python3-venv"
    "$peers/aiperf/bin/pip" install --quiet --disable-pip-version-check "aiperf==$aiperf_version" ||
        fail "pip could not install aiperf==$aiperf_version (is the network available?)"
    stamp aiperf "$aiperf_version"
fi

if [[ $scope == bench ]] && { ! fresh k6 "$k6_version" || [[ ! -x $peers/bin/k6 ]]; }; then
    say "building k6 $k6_version"
    GOBIN=$peers/bin go install "go.k6.io/k6@$k6_version" || fail "go install k6@$k6_version failed (is the Go module proxy reachable?)"
    stamp k6 "$k6_version"
fi

if [[ $scope == bench ]] && { ! fresh locust "$locust_version" || [[ ! -x $peers/locust/bin/locust ]]; }; then
    say "installing Locust into .peers/locust"
    python3 -m venv --clear "$peers/locust" || fail "python3 -m venv .peers/locust failed: install python3-venv"
    "$peers/locust/bin/pip" install --quiet --disable-pip-version-check "locust==$locust_version" ||
        fail "pip could not install locust==$locust_version (is the network available?)"
    stamp locust "$locust_version"
fi

# Reads deploy/kubernetes, like go-compose the Compose files.
if [[ $scope == peers ]] && { ! fresh kustomize "$kustomize_version" || [[ ! -x $peers/bin/kustomize ]]; }; then
    say "building Kustomize $kustomize_version"
    GOBIN=$peers/bin go install "sigs.k8s.io/kustomize/kustomize/v5@$kustomize_version" ||
        fail "go install kustomize@$kustomize_version failed (is the Go module proxy reachable?)"
    stamp kustomize "$kustomize_version"
fi

# A control plane and nodes, built only from Go modules.
sum="$kubernetes_version $etcd_version"
kubernetes=$peers/kubernetes
if [[ $scope == kubernetes ]] && { ! fresh kubernetes "$sum" || [[ ! -x $kubernetes/etcd || ! -x $kubernetes/kubelet ]]; }; then
    say "building Kubernetes $kubernetes_version and etcd $etcd_version (many minutes)"
    rm -rf "$kubernetes" "$peers/kubernetes-module"
    mkdir -p "$kubernetes" "$peers/kubernetes-module"
    # Kubernetes replaces its own modules with folders of its tree. Here they come from the registry, where they have
    # other versions.
    staged='import json, sys
staging = [old["Old"]["Path"] for old in json.load(sys.stdin)["Replace"]]
print("\n".join(f"-replace={path}={path}@v0.{sys.argv[1]}" for path in staging))'
    commands=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl)
    packages=("${commands[@]/#/k8s.io/kubernetes/cmd/}")
    (
        cd "$peers/kubernetes-module" &&
            go mod init peers/kubernetes &&
            found=$(go mod download -json "k8s.io/kubernetes@$kubernetes_version" | python3 -c 'import json, sys; print(json.load(sys.stdin)["GoMod"])') &&
            replacements=$(go mod edit -json "$found" | python3 -c "$staged" "${kubernetes_version#v1.}") &&
            mapfile -t replacements <<<"$replacements" &&
            go mod edit "${replacements[@]}" &&
            go get "${packages[@]/%/@$kubernetes_version}" "go.etcd.io/etcd/server/v3@$etcd_version" &&
            nice -n 15 go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes_version" \
                -o "$kubernetes/" "${packages[@]}" &&
            nice -n 15 go build -trimpath -ldflags '-s -w' -o "$kubernetes/etcd" go.etcd.io/etcd/server/v3
    ) >"$peers/kubernetes.log" 2>&1 ||
        fail "Kubernetes could not be built (is the Go module proxy reachable? the whole output is in .peers/kubernetes.log)"
    rm -rf "$peers/kubernetes-module"
    stamp kubernetes "$sum"
fi

# mdBook builds the website of the documentation; the Makefile sets its version.
mdbook=$(grep -E '^MDBOOK_VERSION = ' Makefile)
if [[ $scope == peers ]] && { ! fresh mdbook "$mdbook" || [[ ! -x $peers/bin/mdbook ]]; }; then
    say "building mdBook ${mdbook##* } (minutes)"
    rm -f "$peers/bin/mdbook"
    make --no-print-directory .peers/bin/mdbook >"$peers/mdbook.log" 2>&1 ||
        fail "mdBook could not be built (is crates.io reachable? the whole output is in .peers/mdbook.log)"
    stamp mdbook "$mdbook"
fi

# Debian's OpenSSL is slower and lacks the newer algorithms, so a newer one is installed in addition,
# with Debian's configuration.
if [[ $scope == peers || $scope == bench ]] && { ! fresh openssl "$openssl_crate" || [[ ! -x $peers/bin/openssl-newer ]]; }; then
    say "building OpenSSL ${openssl_crate#*+} (minutes)"
    rm -rf "$peers/openssl"
    mkdir -p "$peers/openssl/src"
    : >"$peers/openssl/src/lib.rs"
    printf '[workspace]\n[package]\nname = "sources"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\nopenssl-src = "=%s"\n' \
        "$openssl_crate" >"$peers/openssl/Cargo.toml"
    (
        cargo vendor --manifest-path "$peers/openssl/Cargo.toml" "$peers/openssl/vendor" &&
            cd "$peers/openssl/vendor/openssl-src/openssl" &&
            ./Configure --openssldir=/etc/ssl no-shared no-tests no-docs no-module &&
            make -j"$(nproc)" build_programs &&
            cp apps/openssl "$peers/bin/openssl-newer" &&
            mkdir -p "$peers/newer" &&
            ln -sf ../bin/openssl-newer "$peers/newer/openssl"
    ) >"$peers/openssl.log" 2>&1 ||
        fail "OpenSSL could not be built (is crates.io reachable? the whole output is in .peers/openssl.log)"
    rm -rf "$peers/openssl"
    stamp openssl "$openssl_crate"
fi

say "everything for '$scope' is installed"
