#!/usr/bin/env python3
"""Costs of a sidecar: CPU per request and hop, added latency, memory; compared with HAProxy in TCP mode.

Bolt against `plimsoll serve bolt` and gRPC against `plimsoll serve fast`: directly, through
one sidecar, and through two, in plaintext and with mutual TLS between them. Every repetition
measures every path; medians are shown. CPU is that of the relays' processes, from /proc,
divided by the requests of a saturated run; latency is that of a slow open-loop run, minus
that of the direct path in the same repetition.

A sidecar sleeps between two requests of a slow run, and a hop costs two wake-ups. The path "awake" is
one sidecar with `busy_poll` for longer than these pauses: it shows the saved latency, and the share
of a core that each relay used in the slow run. It needs a core to itself: on two cores, client,
service and sidecar compete.

Then messages of several sizes from many concurrent callers, in both directions: the share that is
answered, the most by which the relay's memory grows, and its CPU per byte, compared with HAProxy's.

MOSN is in no registry. With MOSN set to a command that carries Bolt from
127.0.0.1:$MOSN_LISTEN to 127.0.0.1:$MOSN_UPSTREAM (two free ports that you set too) it takes
part as one hop, with all processes that it starts; otherwise its known cost is shown.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import side_by_side as bench

# MOSN, measured with its users' tools: µs of CPU per request and hop, µs of added latency, memory.
MOSN_COST = {"cpu": "56 to 68", "p50": "60 to 130", "rss": "55 to 61"}
GOAL_CPU, GOAL_P50, GOAL_RSS = 10.0, 20.0, 15e6
MAX_GROWTH_BYTES = 64e6
AWAKE = "awake"
# Minimum number of calls of a slow run for a p99.
MIN_CALLS_FOR_P99 = 400
TICK = os.sysconf("SC_CLK_TCK")

SIDECAR = """busy_poll = "{busy_poll}"
[[route]]
name = "bench"
protocol = "{protocol}"
listen = "127.0.0.1:0"
upstream = ["127.0.0.1:{upstream}"]
{more}
"""

HAPROXY = """global
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend in
    bind 127.0.0.1:{port}
    default_backend out
backend out
    server one 127.0.0.1:{upstream}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait_for(port, process, what, said):
    end = time.monotonic() + 10
    while not is_open(port):
        if process.poll() is not None:
            sys.exit(f"{what} ended with {process.returncode} before it listened on 127.0.0.1:{port}{said()}")
        if time.monotonic() > end:
            sys.exit(f"{what} does not listen on 127.0.0.1:{port} after ten seconds{said()}")
        time.sleep(0.05)


class Path:
    """A path to the service: clients connect to `port`, and `relays` are the processes on the path.

    `hops` is the number of hops, if not one per process.
    """

    def __init__(self, name, protocol, port, relays=(), hops=None):
        self.name, self.protocol, self.port, self.pids = name, protocol, port, list(relays)
        self.hops = hops or max(len(self.pids), 1)
        self.cpu, self.slow_cpu, self.rates, self.p50, self.p99, self.rss = [], [], [], [], [], 0

    def cpu_seconds(self):
        """Returns the CPU seconds that its relays have used so far, user and system."""
        total = 0
        for pid in self.pids:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICK

    def memory(self):
        """Returns the memory of the largest of its relays in bytes.

        Up to 3 MB more are mapped if the binary has just been written, because the page cache holds it in larger pages.
        """
        sizes = [0]
        for pid in self.pids:
            for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
                if line.startswith("VmRSS:"):
                    sizes.append(int(line.split()[1]) * 1024)
        return max(sizes)


def load(path, args, flags, folder):
    """Runs one load, in which every call must succeed."""
    call = {
        "bolt": ["bolt", f"sofa://127.0.0.1:{path.port}"],
        "grpc": ["grpc", f"grpc://127.0.0.1:{path.port}", "-m", bench.METHOD, "-d", '{"json": "%s"}' % bench.VECTOR],
    }[path.protocol]
    measured = bench.measure([bench.plimsoll(), *call, *flags, "--out", folder, "-q"])
    record = bench.run_record(folder)["total"] if (folder / "run.json").exists() else {"ok": 0, "due": 0}
    if measured.exit not in (0, 90) or record["ok"] != record["due"] or not record["ok"]:
        sys.exit(f"{path.name}: exit {measured.exit}, {record['ok']} of {record['due']} calls ok: {measured.errors.strip()[-600:]}")
    return record


def measure_saturated(path, args, folder):
    before = path.cpu_seconds()
    record = load(path, args, ["--connections", 16, "--clients", 512, "--calls", args.calls], folder)
    path.cpu.append((path.cpu_seconds() - before) / record["ok"] * 1e6)
    path.rates.append(record["ok"] / record["elapsed_us"] * 1e6)
    path.rss = max(path.rss, path.memory())


def measure_latency(path, args, folder):
    before = path.cpu_seconds()
    record = load(path, args, ["--connections", 4, "--rate", f"{args.rate}/s", "--duration", f"{args.seconds}s"], folder)
    path.p50.append(record["response"]["p50_us"])
    path.p99.append(record["response"]["p99_us"])
    path.slow_cpu.append((path.cpu_seconds() - before) / record["elapsed_us"] * 1e6)


def start_sidecar(stack, scratch, name, protocol, upstream, more="", busy_poll="0s"):
    file = scratch / f"{name}.toml"
    file.write_text(SIDECAR.format(busy_poll=busy_poll, protocol=protocol, upstream=upstream, more=more), encoding="utf-8")
    return stack.enter_context(bench.Server([bench.plimsoll(), "relay", "sidecar", file]))


def end(started):
    """Ends a process that leads a session, with all its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(5)


def session_processes(session):
    """Returns the processes of a session: its leader and what that started."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            if int(fields[3]) == session:
                found.append(int(stat.parent.name))
    return found


def process(stack, command, port, what):
    if is_open(port):
        sys.exit(f"{what}: 127.0.0.1:{port} is already in use")
    output = stack.enter_context(tempfile.TemporaryFile())
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    stack.callback(end, started)

    def said():
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
        return f":\n{text[-600:]}" if text else ""

    wait_for(port, started, what, said)
    return started


def paths_of(stack, scratch, certs, protocol, service, busy_poll):
    def tls(key, who):
        names = ", ".join(f'{k} = "{certs}/{file}"' for k, file in [("ca", "ca.crt"), ("cert", f"{who}.crt"), ("key", f"{who}.key")])
        name = ', server_name = "localhost"' if key == "upstream_tls" else ""
        return f"{key} = {{ {names}{name} }}"

    paths = [Path(f"{protocol}: direct", protocol, service.port)]
    one = start_sidecar(stack, scratch, f"{protocol}-one", protocol, service.port)
    paths.append(Path(f"{protocol}: one sidecar", protocol, one.port, [one.process.pid]))
    polling = start_sidecar(stack, scratch, f"{protocol}-{AWAKE}", protocol, service.port, busy_poll=busy_poll)
    paths.append(Path(f"{protocol}: one sidecar, {AWAKE}", protocol, polling.port, [polling.process.pid]))
    for name, listen, upstream in [("plaintext", "", ""), ("mutual TLS", tls("listen_tls", "server"), tls("upstream_tls", "client"))]:
        inner = start_sidecar(stack, scratch, f"{protocol}-{name[:4]}-in", protocol, service.port, listen)
        outer = start_sidecar(stack, scratch, f"{protocol}-{name[:4]}-out", protocol, inner.port, upstream)
        paths.append(Path(f"{protocol}: two sidecars, {name}", protocol, outer.port, [inner.process.pid, outer.process.pid]))
    tcp = start_sidecar(stack, scratch, f"{protocol}-tcp", "tcp", service.port)
    paths.append(Path(f"{protocol}: one sidecar, as TCP", protocol, tcp.port, [tcp.process.pid]))
    port = free_port()
    file = scratch / f"haproxy-{protocol}.cfg"
    file.write_text(HAPROXY.format(port=port, upstream=service.port), encoding="utf-8")
    haproxy = process(stack, [bench.tool("haproxy"), "-f", str(file), "-db"], port, "haproxy")
    paths.append(Path(f"{protocol}: HAProxy, as TCP", protocol, port, [haproxy.pid]))
    return paths


def mosn_settings():
    """Returns MOSN's command and its two ports; None if it is not configured."""
    command = bench.program_of("MOSN")
    if command is None:
        return None
    ports = []
    for variable in ("MOSN_LISTEN", "MOSN_UPSTREAM"):
        text = os.environ.get(variable)
        if text is None:
            sys.exit(f"MOSN is set and {variable} is not: set it to that port of MOSN's configuration")
        if not text.isdecimal() or not 0 < int(text) < 65536:
            sys.exit(f"{variable}={text!r} is not a port: set it to that port of MOSN's configuration")
        ports.append(int(text))
    return command, *ports


def start_mosn(stack, command, listen, upstream):
    stack.enter_context(bench.Server([bench.plimsoll(), "serve", "bolt", "--listen", f"127.0.0.1:{upstream}", "--workers", 1]))
    started = process(stack, command, listen, "MOSN")
    return Path("bolt: MOSN", "bolt", listen, session_processes(started.pid), hops=1)


def status(pid, line):
    """Returns a value of a process's status in bytes."""
    for found in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if found.startswith(line):
            return int(found.split()[1]) * 1024
    raise KeyError(line)


def measure_large(path, size, callers, args, scratch):
    """Returns one row: the share of answered messages, peak memory over idle in MB, CPU per byte in ns."""
    (pid,) = path.pids
    content = scratch / f"content-{size}"
    content.write_text('["%s"]' % ("x" * size), encoding="utf-8")
    # Resets the peak, so that it counts from here.
    idle = status(pid, "VmRSS:")
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
    before = path.cpu_seconds()
    calls = max(2 * callers, args.megabytes * 1_000_000 // size)
    folder = scratch / f"large-{pid}-{size}-{callers}"
    flags = ["--clients", callers, "--connections", callers, "--calls", calls, "--deadline", "60s"]
    call = ["bolt", f"sofa://127.0.0.1:{path.port}", "--data", f"@{content}"]
    bench.measure([bench.plimsoll(), *call, *flags, "--out", folder, "-q"])
    total = bench.run_record(folder)["total"]
    # Each message passes in both directions.
    cpu = (path.cpu_seconds() - before) / max(total["ok"] * size * 2, 1) * 1e9
    # Relative to the planned calls, because none is due if no client connects.
    return total["ok"] / calls, (status(pid, "VmHWM:") - idle) / 1e6, cpu


def large_table(paths, args, scratch):
    rows, missed = [], []
    for size in args.sizes:
        for callers in args.callers:
            for path in paths:
                ok, over, cpu = measure_large(path, size, callers, args, scratch)
                rows.append([path.name, f"{size:,}", callers, f"{ok:.1%}", f"{over:.1f}", f"{cpu:.2f}"])
                if "sidecar" in path.name and (ok < 1 or over > MAX_GROWTH_BYTES / 1e6):
                    missed.append(f"{path.name}, {size} bytes, {callers} callers: {ok:.1%} ok, {over:.1f} MB")
    print()
    bench.print_table(["path", "bytes a message", "callers", "ok", "MB over idle", "CPU a byte, ns"], rows)
    print(f"\ngoals: all ok within {MAX_GROWTH_BYTES / 1e6:.0f} MB over idle: ", end="")
    print("met" if not missed else "MISSED by " + "; ".join(missed))
    return missed


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def row(path, direct):
    cpu, slow_cpu = bench.median(path.cpu) / path.hops, bench.median(path.slow_cpu) / path.hops
    added = [bench.median([a - b for a, b in zip(mine, other)]) / path.hops for mine, other in [(path.p50, direct.p50), (path.p99, direct.p99)]]
    return cpu, added[0], added[1], slow_cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocols", default="bolt,grpc", help="bolt, grpc or both (bolt,grpc)")
    parser.add_argument("--calls", type=int, default=200_000, help="calls of a saturated run (200000)")
    parser.add_argument("--rate", type=int, default=500, help="calls a second of a slow run (500)")
    parser.add_argument("--seconds", type=int, default=4, help="length of a slow run (4)")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--sizes", type=numbers, default=[5_000, 20_000, 64_000, 300_000], help="bytes of messages; '': none (5000,20000,64000,300000)")
    parser.add_argument("--callers", type=numbers, default=[100, 500], help="callers at once of these messages (100,500)")
    parser.add_argument("--megabytes", type=int, default=100, help="megabytes of messages each way, for each size (100)")
    parser.add_argument("--busy-poll", default="10ms", help="busy_poll of the sidecar that stays awake (10ms)")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed")
    args = parser.parse_args()
    protocols = args.protocols.split(",")
    if not protocols or set(protocols) - {"bolt", "grpc"}:
        parser.error(f"--protocols: `{args.protocols}`: expected bolt, grpc or bolt,grpc")
    if args.rate * args.seconds < MIN_CALLS_FOR_P99:
        parser.error(f"--rate {args.rate} for --seconds {args.seconds}: a 99th percentile needs {MIN_CALLS_FOR_P99} calls")
    asked = mosn_settings() if "bolt" in protocols else None
    bench.warn_if_busy()

    too_large = []
    with bench.Scratch() as scratch, contextlib.ExitStack() as stack:
        certs = bench.make_certificates(scratch / "certs")
        groups = []
        for protocol in protocols:
            command = {"bolt": ["bolt"], "grpc": ["fast"]}[protocol]
            service = stack.enter_context(bench.Server([bench.plimsoll(), "serve", *command, "--listen", "127.0.0.1:0", "--workers", 1]))
            groups.append(paths_of(stack, scratch, certs, protocol, service, args.busy_poll))
        if asked:
            groups[protocols.index("bolt")].append(start_mosn(stack, *asked))
        for rep in range(args.reps):
            for group in groups:
                for number, path in enumerate(group):
                    measure_saturated(path, args, scratch / f"{path.protocol}-{number}-{rep}-full")
                    measure_latency(path, args, scratch / f"{path.protocol}-{number}-{rep}-slow")
            print(f"repetition {rep + 1} of {args.reps} done", file=sys.stderr)
        if args.sizes and "bolt" in protocols:
            # Excluded: direct has no relay, two relays add nothing new, and there are no pauses for busy_poll.
            bolt = groups[protocols.index("bolt")]
            one_hop = [path for path in bolt if len(path.pids) == 1 and AWAKE not in path.name]
            too_large = large_table(one_hop, args, scratch)

    print(f"{bench.machine()}\n")
    rows, missed = [], []
    for group in groups:
        direct = group[0]
        for path in group:
            rate = f"{bench.median(path.rates):,.0f}"
            if path is direct:
                rows.append([path.name, rate, "–", f"{bench.median(path.p50):.0f} (p50 itself)", f"{bench.median(path.p99):.0f} (p99 itself)", "–", "–"])
                continue
            cpu, p50, p99, slow_cpu = row(path, direct)
            rows.append([path.name, rate, f"{cpu:.2f}", f"{p50:+.0f}", f"{p99:+.0f}", f"{slow_cpu:.1%}", f"{path.rss / 1e6:.1f}"])
            if "sidecar" in path.name and "as TCP" not in path.name:
                missed += [f"{path.name}: {what}" for what, over in [
                    (f"{cpu:.1f} µs CPU", cpu > GOAL_CPU), (f"{p50:.0f} µs at p50", p50 >= GOAL_P50), (f"{path.rss / 1e6:.1f} MB", path.rss >= GOAL_RSS)] if over]
    if "bolt" in protocols and not asked:
        rows.append(["bolt: MOSN (known)", "–", MOSN_COST["cpu"], MOSN_COST["p50"], "–", "–", MOSN_COST["rss"]])
    bench.print_table(["path", "requests a second", "CPU a request a hop, µs", "added a hop at p50, µs", "at p99, µs", "of a core while slow", "RSS, MB"], rows)
    print(f"\ngoals: at most {GOAL_CPU:.0f} µs of CPU a request a hop, less than {GOAL_P50:.0f} µs added a hop at p50, less than {GOAL_RSS / 1e6:.0f} MB: ", end="")
    print("met" if not missed else "MISSED by " + "; ".join(missed))
    if args.gate and (missed or too_large):
        sys.exit(1)


if __name__ == "__main__":
    main()
