#!/usr/bin/env python3
"""Installs the packages of `make dist` as users do, and runs server and client over mutual TLS.

    packaging/test.py            all of it; `make test-dist` calls it
    packaging/test.py wheel deb  some of it

It needs root, for fresh root file systems with process tables of their own; nothing is installed on this machine
except what packaging/setup.sh lists. A test that cannot run fails. Traffic stays on the loopback interface.
"""

import gzip
import hashlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "target/dist"
# A system whose C library is nearly the oldest that packages support.
FRESH, SUITE = ROOT / ".peers/fresh-root", "bullseye"
MAX_RUN_S = 1800

# The script runs with `plimsoll` replaced by the program, in a folder of its own; $PORT is a free port.
MUTUAL_TLS = """\
set -eu
plimsoll certs certs >&2
plimsoll serve score --listen 127.0.0.1:$PORT --tls-cert certs/server.crt --tls-key certs/server.key \\
    --tls-client-ca certs/ca.crt >&2 &
server=$!
plimsoll check ready tcp://127.0.0.1:$PORT --within 60s
plimsoll grpc grpcs://127.0.0.1:$PORT -m score.ScoreService/GetScore -d '{"json": "[0.1, 0.2]"}' \\
    --clients 2 --calls 200 --ca certs/ca.crt --cert certs/client.crt --key certs/client.key --out run --json -q
kill $server
wait $server || true
"""


class PackageError(Exception):
    """An installed package does not work as it should."""


def run(*command: object, code: int = 0, **more: object) -> str:
    """Runs a command that must exit with `code`; returns its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=MAX_RUN_S, **more)
    if done.returncode != code:
        raise PackageError(f"{' '.join(words)}: ended with {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def check(holds: bool, what: object) -> None:
    if not holds:
        raise PackageError(str(what))


def package_file(pattern: str) -> Path:
    found = sorted(DIST.glob(pattern))
    check(len(found) == 1, f"target/dist has not one {pattern}: {found}; run make dist first")
    return found[0]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def check_run(document: str) -> None:
    """Checks the client's JSON output of a load of 200 calls over mutual TLS."""
    (outcome,) = json.loads(document)["runs"]
    check(outcome["security"] == "mutual-tls", outcome["security"])
    check(outcome["total"]["ok"] == 200, outcome["total"])


def check_version(text: str, libc: str) -> None:
    """Checks the output of `plimsoll --version`; `libc`: gnu or musl."""
    head = run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    check(f"linux-{libc}," in text, text)
    check(("without codec plugins" in text) == (libc == "musl"), text)
    check(re.search(r"rustls \d+\.\d+", text) is not None, text)
    # A debug build, with which packaging can be tried, does not contain its commit.
    check(head in text or "build: debug" in text, f"{text}\nis not of {head}: run make dist again")


def chroot(folder: Path, script: str) -> str:
    """Runs a script in a root file system, with its own process table and a free port in $PORT; returns its output."""
    (folder / "proc").mkdir(exist_ok=True)
    command = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={folder / 'proc'}", "chroot", str(folder)]
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PORT": str(free_port()), "HOME": "/tmp"}
    return run(*command, "/bin/sh", "-c", script, env=variables)


def fresh_root(scratch: Path) -> Path:
    """Returns a copy of a minimal system made by debootstrap."""
    if not (FRESH / "complete").exists():
        shutil.rmtree(FRESH, ignore_errors=True)
        sources = [*Path("/etc/apt").glob("*.list"), *Path("/etc/apt").glob("sources.list.d/*")]
        mirrors = re.findall(r"https?://\S+/debian/?(?=\s)", "\n".join(f.read_text() for f in sources))
        print(f"packaging: debootstrap {SUITE} into .peers/fresh-root", flush=True)
        run("debootstrap", "--variant=minbase", SUITE, FRESH, *mirrors[:1])
        (FRESH / "complete").touch()
    copy = scratch / "root"
    run("cp", "-a", FRESH, copy)
    return copy


def unpack(pattern: str, to: Path) -> Path:
    archive = package_file(pattern)
    with tarfile.open(archive) as files:
        files.extractall(to)
    return to / archive.name.removesuffix(".tar.gz")


def test_sums(_: Path) -> None:
    """Every file is in SHA256SUMS with its sum."""
    listed = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    there = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in DIST.iterdir() if f.name != "SHA256SUMS"}
    check(listed == there and len(there) == 7, (listed, there))


def test_binaries(scratch: Path) -> None:
    """Binaries contain no path of this machine, and no symbol of a newer C library than packages declare."""
    for libc in ("gnu", "musl"):
        binary = unpack(f"*-linux-{libc}.tar.gz", scratch) / "plimsoll"
        content = binary.read_bytes()
        if b"\nbuild: debug" not in content:
            check(os.fsencode(Path.home() / ".cargo/registry") not in content, f"{binary}: paths of cargo's registry")
            check(os.fsencode(ROOT) not in content, f"{binary}: paths of this tree")
    wheel = re.search(r"manylinux_(\d+)_(\d+)_", package_file("*.whl").name)
    symbols = run("readelf", "-V", scratch / package_file("*-linux-gnu.tar.gz").name.removesuffix(".tar.gz") / "plimsoll")
    newest = max(tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))
    check(newest == tuple(map(int, wheel.groups())), (newest, wheel[0]))
    depends = run("dpkg-deb", "--field", package_file("*.deb"), "Depends")
    check(f"libc6 (>= {newest[0]}.{newest[1]})" in depends, depends)


def test_archive(scratch: Path) -> None:
    """The archive works in a fresh system."""
    root = fresh_root(scratch)
    folder = unpack("*-linux-gnu.tar.gz", root / "opt")
    for file in ("README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt", "man/plimsoll.1"):
        check((folder / file).is_file(), f"{folder.name} lacks {file}")
    check("rustls" in (folder / "THIRD-PARTY.txt").read_text(), "THIRD-PARTY.txt does not name rustls")
    path = f"export PATH=/opt/{folder.name}:$PATH; cd /tmp\n"
    check_version(chroot(root, path + "plimsoll --version"), "gnu")
    check_run(chroot(root, path + MUTUAL_TLS))


def test_static(scratch: Path) -> None:
    """The static binary works in a root file system without anything else."""
    folder = unpack("*-linux-musl.tar.gz", scratch)
    root = scratch / "empty"
    for name in ("proc", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy(folder / "plimsoll", root)
    enter = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root / 'proc'}"]
    check_version(run(*enter, "chroot", root, "/plimsoll", "--version"), "musl")
    script = f"plimsoll() {{ chroot '{root}' /plimsoll \"$@\"; }}\n{MUTUAL_TLS}"
    check_run(run(*enter, "/bin/sh", "-c", script, env={"PATH": os.environ["PATH"], "PORT": str(free_port())}))


def test_deb(scratch: Path) -> None:
    """dpkg installs the package in a fresh system, with its dependencies checked, and removes it."""
    root = fresh_root(scratch)
    shutil.copy(package_file("*.deb"), root / "tmp/plimsoll.deb")
    chroot(root, "dpkg --install /tmp/plimsoll.deb && dpkg --audit")
    for file in ("man/man1/plimsoll-grpc.1.gz", "bash-completion/completions/plimsoll", "doc/plimsoll/copyright"):
        check((root / "usr/share" / file).is_file(), file)
    page = gzip.decompress((root / "usr/share/man/man1/plimsoll-grpc.1.gz").read_bytes())
    check(b"EXAMPLES" in page, "plimsoll-grpc.1.gz has no examples")
    check_version(chroot(root, "plimsoll --version"), "gnu")
    check_run(chroot(root, "cd /tmp\n" + MUTUAL_TLS))
    chroot(root, "dpkg --purge plimsoll")
    left = [f for f in root.rglob("*plimsoll*") if not f.is_relative_to(root / "tmp")]
    check(not left, left)


def test_rpm(scratch: Path) -> None:
    """rpm installs the package in a fresh system, without checking dependencies: the system has no RPM packages."""
    root = fresh_root(scratch)
    package = package_file("*.rpm")
    requires = run("rpm", "--query", "--package", "--requires", package)
    check(re.search(r"^libc\.so\.6\(GLIBC_2\.\d+\)\(64bit\)$", requires, re.M) is not None, requires)
    own = ["rpm", "--root", root, "--dbpath", "/var/lib/rpm"]
    run(*own, "--initdb")
    run(*own, "--install", "--nodeps", package)
    check(run(*own, "--verify", "--nodeps", "plimsoll") == "", "files are not as they were packed")
    check((root / "usr/share/zsh/site-functions/_plimsoll").is_file(), "zsh's completions")
    check_version(chroot(root, "plimsoll --version"), "gnu")
    check_run(chroot(root, "cd /tmp\n" + MUTUAL_TLS))
    run(*own, "--erase", "plimsoll")
    check(not (root / "usr/bin/plimsoll").exists(), "it is still there after it was erased")


def test_wheel(scratch: Path) -> None:
    """pip installs the wheel in an environment of its own, without an index, and removes it."""
    wheel = package_file("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        check(archive.testzip() is None, "the wheel is damaged")
    run(sys.executable, "-m", "venv", scratch / "venv")
    pip = [scratch / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run(*pip, "install", "--no-index", wheel)
    path = {"PATH": f"{scratch / 'venv/bin'}:{os.environ['PATH']}", "PORT": str(free_port())}
    program = shutil.which("plimsoll", path=path["PATH"])
    check(program == str(scratch / "venv/bin/plimsoll"), program)
    check_version(run(program, "--version"), "gnu")
    check_run(run("/bin/sh", "-c", MUTUAL_TLS, env=path, cwd=scratch))
    run(*pip, "uninstall", "--yes", "plimsoll-load")
    check(not Path(program).exists(), f"{program} is still there")


class Containers:
    """Containers of one image file, run by runc. Their root file systems are read-only except for mounts."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        folder.mkdir()
        with tarfile.open(image) as archive:
            archive.extractall(folder / "image")
        manifest = json.loads((folder / "image/manifest.json").read_text())[0]
        self.config = json.loads((folder / "image" / manifest["Config"]).read_text())["config"]
        for layer in manifest["Layers"]:
            with tarfile.open(folder / "image" / layer) as archive:
                archive.extractall(self.root, numeric_owner=True)

    def runc(self, *words: object) -> list[str]:
        return ["runc", "--root", str(self.folder / "state"), *map(str, words)]

    def bundle(self, name: str, words: list[object], mounts: dict[str, Path], own_network: bool) -> Path:
        folder = self.folder / name
        folder.mkdir()
        run("runc", "spec", "--bundle", folder)
        spec = json.loads((folder / "config.json").read_text())
        user, group = map(int, self.config["User"].split(":"))
        process = spec["process"]
        process |= {"terminal": False, "user": {"uid": user, "gid": group}, "cwd": self.config["WorkingDir"]}
        process["args"] = [*self.config["Entrypoint"], *(map(str, words) if words else self.config["Cmd"])]
        # Uses the image's environment variables, and does not limit descriptors.
        process |= {"env": self.config.get("Env", []), "rlimits": []}
        spec["root"] = {"path": str(self.root), "readonly": True}
        spec["mounts"] = [mount for mount in spec["mounts"] if mount["type"] != "cgroup"]
        for at, source in mounts.items():
            mount = {"destination": at, "source": str(source), "type": "bind", "options": ["rbind", "rw"]}
            spec["mounts"].append(mount)
        left_out = {"cgroup"} if own_network else {"cgroup", "network"}
        spaces = spec["linux"]["namespaces"]
        spec["linux"]["namespaces"] = [space for space in spaces if space["type"] not in left_out]
        spec["linux"].pop("resources", None)
        (folder / "config.json").write_text(json.dumps(spec))
        return folder

    def run(self, name: str, *words: object, mounts: dict[str, Path] | None = None) -> str:
        return run(*self.runc("run", "--bundle", self.bundle(name, list(words), mounts or {}, False), name))

    def start(
        self, name: str, *words: object, mounts: dict[str, Path] | None = None, own_network: bool = False
    ) -> subprocess.Popen:
        bundle = self.bundle(name, list(words), mounts or {}, own_network)
        return subprocess.Popen(self.runc("run", "--bundle", bundle, name), stdout=subprocess.DEVNULL)

    def stop(self, name: str, process: subprocess.Popen) -> int:
        """Asks the container to stop; returns its exit code."""
        run(*self.runc("kill", name, self.config.get("StopSignal", "SIGTERM")))
        return process.wait(MAX_RUN_S)


def test_images(scratch: Path) -> None:
    """Both images work as containers with read-only root file systems: server and client use mutual TLS, the
    server's own check finds it healthy, and it exits normally. Podman loads both files."""
    version = package_file("plimsoll-server-*-oci.tar").name.split("-")[2]
    files = {name: package_file(f"{name}-{version}-x86_64-oci.tar") for name in ("plimsoll", "plimsoll-server")}
    podman = ["podman", "--root", scratch / "podman", "--runroot", scratch / "state", "--storage-driver", "vfs"]
    for name, file in files.items():
        run(*podman, "load", "--input", file)
        told = json.loads(run(*podman, "image", "inspect", f"localhost/{name}:{version}"))[0]
        check(told["Config"]["User"] == "10001:10001", told["Config"])
    client = Containers(files["plimsoll"], scratch / "client")
    server = Containers(files["plimsoll-server"], scratch / "server")
    check_version(client.run("version", "--version"), "musl")
    check("Usage: plimsoll" in client.run("help"), "without a command it does not print its help")
    folders = {at: scratch / at.strip("/") for at in ("/certs", "/runs")}
    for folder in folders.values():
        folder.mkdir()
        os.chown(folder, 10001, 10001)
    client.run("certs", "certs", "/certs", mounts=folders)
    check((folders["/certs"] / "server.key").stat().st_uid == 10001, "the image's user is not 10001")
    authorities = (client.root / "etc/ssl/certs/ca-certificates.crt").read_text()
    check(authorities.count("BEGIN CERTIFICATE") > 50, "without authorities no store and no server is trusted")
    port = free_port()
    tls = ["--tls-cert", "/certs/server.crt", "--tls-key", "/certs/server.key", "--tls-client-ca", "/certs/ca.crt"]
    process = server.start("score", "score", "--listen", f"127.0.0.1:{port}", *tls, mounts=folders)
    client.run("ready", "check", "ready", f"tcp://127.0.0.1:{port}", "--within", "60s")
    call = ["-m", "score.ScoreService/GetScore", "-d", '{"json": "[0.1, 0.2]"}', "--clients", 2, "--calls", 200]
    own = ["--ca", "/certs/ca.crt", "--cert", "/certs/client.crt", "--key", "/certs/client.key"]
    load = ["grpc", f"grpcs://127.0.0.1:{port}", *call, *own, "--out", "/runs/run", "--json", "-q"]
    check_run(client.run("load", *load, mounts=folders))
    check(server.stop("score", process) == 0, "the server did not end well")
    # Runs the image's default command, on the port of its check, in a network of its own.
    process = server.start("alone", own_network=True)
    kind, *health = server.config["Healthcheck"]["Test"]
    check(kind == "CMD", kind)
    end = time.monotonic() + 60
    while subprocess.run(server.runc("exec", "alone", *health), stderr=subprocess.DEVNULL).returncode != 0:
        check(time.monotonic() < end, "the server does not get healthy")
        time.sleep(0.2)
    check(server.stop("alone", process) == 0, "the server did not end well")
    run(*client.runc("run", "--bundle", client.bundle("ill", health[1:], {}, True), "ill"), code=1)


def on_terminal(command: list[str], typed: str, expected: str, environment: dict[str, str]) -> None:
    """Types into a program on a terminal until its output contains `expected`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment)
    shown, end, sent = "", time.monotonic() + 60, 0.0
    try:
        while expected not in shown:
            check(time.monotonic() < end, f"{command}: no {expected} after {typed!r}: {shown!r}")
            # A shell that is not ready yet may drop input.
            if time.monotonic() - sent > 5:
                os.write(terminal, b"\x15" + typed.encode())
                sent = time.monotonic()
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 4096).decode(errors="replace")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_shells(scratch: Path) -> None:
    """Each shell loads its completions and uses them; mandoc reports no problem in the manual pages."""
    folder = unpack("*-linux-gnu.tar.gz", scratch)
    there = folder / "completions"
    words = run("fish", "--no-config", "-c", f"source {there}/plimsoll.fish; complete --do-complete 'plimsoll grp'")
    check(words.startswith("grpc"), words)
    environment = {**os.environ, "HOME": str(scratch), "TERM": "dumb", "PS1": "> "}
    bash = scratch / "bashrc"
    bash.write_text(f"source {there}/plimsoll.bash\n")
    on_terminal(["bash", "--rcfile", str(bash), "-i"], "plimsoll lad\t", "plimsoll ladder", environment)
    (scratch / ".zshrc").write_text(f"fpath=({there} $fpath)\nautoload -U compinit\ncompinit -u -D\n")
    on_terminal(["zsh", "-i"], "plimsoll lad\t", "plimsoll ladder", environment)
    pages = sorted((folder / "man").iterdir())
    check(len(pages) > 20, pages)
    run("mandoc", "-T", "lint", "-W", "error", *pages)


def test_flake(scratch: Path) -> None:
    """The flake evaluates for both systems, with packaging/nixpkgs as a substitute for nixpkgs, and its step after
    the build installs completions and manual pages. Nothing is compiled, because crates cannot be downloaded."""
    flake, nixpkgs = scratch / "flake", scratch / "nixpkgs"
    shutil.copytree(ROOT / "packaging/nixpkgs", nixpkgs)
    shutil.copy(unpack("*-linux-gnu.tar.gz", scratch) / "plimsoll", nixpkgs / "program")
    flake.mkdir()
    for file in ("flake.nix", "Cargo.toml", "Cargo.lock"):
        shutil.copy(ROOT / file, flake)
    settings = ["experimental-features = nix-command flakes", "build-users-group =", "sandbox = false", "substituters ="]
    own = {f"NIX_{name}_DIR": str(scratch / f"nix-{name.lower()}") for name in ("STORE", "STATE", "LOG", "CONF")}
    environment = {**os.environ, **own, "NIX_CONFIG": "\n".join(settings), "HOME": str(scratch)}
    inputs = ["--no-write-lock-file", "--override-input", "nixpkgs", f"path:{nixpkgs}"]
    for system in ("x86_64-linux", "aarch64-linux"):
        for output in ("packages.{}.default.drvPath", "apps.{}.default.program", "devShells.{}.default.drvPath"):
            run("nix", "eval", *inputs, f"path:{flake}#{output.format(system)}", env=environment)
    result = scratch / "result"
    run("nix", "build", *inputs, "--out-link", result, f"path:{flake}#packages.x86_64-linux.default", env=environment)
    check_version(run(result / "bin/plimsoll", "--version"), "gnu")
    shells = sorted(file.name for file in (result / "share/completions").iterdir())
    check(shells == [f"plimsoll.{shell}" for shell in ("bash", "fish", "zsh")], shells)
    check((result / "share/man/man1/plimsoll-grpc.1").is_file(), "no manual pages")


def test_workflows(_: Path) -> None:
    """GitHub's workflows and the action have valid syntax, and so do the shell scripts in them."""
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    run(ROOT / ".peers/bin/actionlint", *workflows, cwd=ROOT)


TESTS = {name.removeprefix("test_"): test for name, test in globals().items() if name.startswith("test_")}


def main() -> None:
    chosen = sys.argv[1:] or list(TESTS)
    if unknown := [name for name in chosen if name not in TESTS]:
        sys.exit(f"packaging/test.py: unknown: {', '.join(unknown)}; there are {', '.join(TESTS)}")
    if os.geteuid() != 0:
        sys.exit("packaging/test.py: creating root file systems needs root: run sudo make test-dist")
    failed = 0
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="plimsoll-") as scratch:
            try:
                TESTS[name](Path(scratch))
                print(f"{name}: ok", flush=True)
            except (PackageError, OSError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{name}: FAILED\n{error}", flush=True)
    print(f"test-dist: {len(chosen) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
