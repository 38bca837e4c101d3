#!/usr/bin/env python3
"""A token-streaming stack with 20 to 10,000 sessions: delivered tokens, their delay, CPU and memory.

The whole stack of `plimsoll stack up sessions` on this machine: redis, two backends, three
gateways, and as many haproxy as the descriptors of a process call for; `plimsoll session`
in as many processes as its own descriptors call for. CPU is the kernel's count for each
process during the load; memory is its peak RSS during the load minus its RSS before, shown
per session for gateways and clients. If the load has several processes, times are those of
the slowest.
"""

import argparse
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import threading
import time

import side_by_side as bench

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SIZES = ["20x3", "1000x10", "5000x3", "10000x3"]
# Maximum CPU per delivered token in µs; maximum growth of a process per session in bytes (memory that it had used
# before the load is not counted); minimum tokens per second.
CPU_GOALS = {"gateway": 12, "backend": 15, "client": 6}
RSS_GOALS = {"gateway": 6_000, "client": 3_000}
PACE_GOAL = 20_000


def proc(pid, name):
    return (pathlib.Path("/proc") / str(pid) / name).read_text(encoding="utf-8")


def process_tree(pid):
    """Returns a process and its children, because haproxy's work is done by a child of the started process."""
    pids, at = [pid], 0
    while at < len(pids):
        try:
            pids += [int(child) for child in proc(pids[at], f"task/{pids[at]}/children").split()]
        except OSError:
            pass
        at += 1
    return pids


def cpu_of(pid):
    """Returns CPU seconds, user and system."""
    total = 0
    for one in process_tree(pid):
        try:
            fields = proc(one, "stat").rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICK
        except OSError:
            pass
    return total


def rss_of(pid):
    total = 0
    for one in process_tree(pid):
        try:
            total += int(proc(one, "statm").split()[1]) * PAGE
        except OSError:
            pass
    return total


class Watch:
    """Records the peak RSS of each process until the block ends."""

    def __init__(self, pids):
        self.most, self.over = {pid: rss_of(pid) for pid in pids}, threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        while not self.over.wait(0.05):
            for pid, most in self.most.items():
                self.most[pid] = max(most, rss_of(pid))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Stack:
    """`plimsoll stack up sessions` on free ports, stopped at the end."""

    def __init__(self, folder, sessions, args):
        self.folder, self.sessions, self.args = folder / "stack", sessions, args

    def command(self, action, *more):
        return [bench.plimsoll(), "stack", action, "sessions", "--dir", str(self.folder), *map(str, more)]

    def __enter__(self):
        first = free_ports(20)
        self.api, self.sockets = f"127.0.0.1:{first + 10}", f"127.0.0.1:{first + 11}"
        up = self.command(
            "up", "--sessions", self.sessions, "--backends", self.args.backends, "--gateways", self.args.gateways,
            "--token-delay", self.args.token_delay, "--first-port", first, "--api-port", first + 10,
            "--socket-port", first + 11, "--stats-port", first + 12,
        )
        done = subprocess.run(up, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"the stack did not start: {done.stderr.strip()}")
        state = json.loads((self.folder / "stack.json").read_text(encoding="utf-8"))
        self.pids = {p["name"]: p["pid"] for p in state["processes"]}
        return self

    def __exit__(self, *_):
        subprocess.run(self.command("down"), check=False, stdout=subprocess.DEVNULL)

    def sum_by_kind(self, values):
        """Sums up values by process name for each kind of process."""
        kinds = {}
        for name, value in values.items():
            kind = name.partition("-")[0]
            kinds[kind] = kinds.get(kind, 0) + value
        return kinds


def free_ports(count):
    """Returns the first of `count` consecutive free ports."""
    for first in range(20_000, 30_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    sys.exit("no free ports between 20000 and 30000")


class Load:
    """`plimsoll session` in one process or several, and its measurements."""

    def __init__(self, stack, clients, queries, folder, args):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        processes = 1 if limit == resource.RLIM_INFINITY else -(-2 * clients // (limit - 200))
        self.folders, self.started = [], []
        for i in range(processes):
            out = folder / f"load-{clients}-{i}"
            part = clients // processes + (i < clients % processes)
            command = [
                bench.plimsoll(), "session", f"session://{stack.api}", "--socket", f"ws://{stack.sockets}",
                "--clients", part, "--queries", queries, "--out", out, "-q",
            ]
            command = [str(word) for word in command]
            self.folders.append(out)
            self.started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        self.timeout = args.timeout

    @property
    def pids(self):
        return [process.pid for process in self.started]

    def wait(self):
        """Waits for all processes; returns their CPU in seconds."""
        timer = threading.Timer(self.timeout, lambda: [p.kill() for p in self.started])
        timer.start()
        cpu = 0
        for process in self.started:
            errors = process.stderr.read().decode(errors="replace")
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu += usage.ru_utime + usage.ru_stime
            if process.returncode not in (0, 90):
                print(f"the load ended with {process.returncode}: {errors.strip()}", file=sys.stderr)
        timer.cancel()
        return cpu

    def records(self):
        return [bench.run_record(folder)["total"] for folder in self.folders]


def errors(records):
    """Returns the failed calls by code."""
    codes = {}
    for error in (e for r in records for e in r["errors_by_code"]):
        codes[error["code"]] = codes.get(error["code"], 0) + error["count"]
    return codes


def ms(us):
    return "–" if us is None else f"{us / 1000:,.0f}"


def measure_size(size, folder, args):
    clients, queries = (int(n) for n in size.split("x"))
    with Stack(folder, clients, args) as stack:
        # Measures the memory that does not depend on the number of sessions: code, tables, histograms.
        first = Load(stack, min(clients, 3), queries, folder, args)
        with Watch(first.pids) as few:
            first.wait()
        client_base = max(few.most.values())
        time.sleep(1)
        cpu_before = {name: cpu_of(pid) for name, pid in stack.pids.items()}
        rss_before = {name: rss_of(pid) for name, pid in stack.pids.items()}
        began = time.monotonic()
        load = Load(stack, clients, queries, folder, args)
        with Watch([*stack.pids.values(), *load.pids]) as watch:
            client_cpu = load.wait()
        wall = time.monotonic() - began
        cpu = stack.sum_by_kind({name: cpu_of(pid) - cpu_before[name] for name, pid in stack.pids.items()})
        grown = stack.sum_by_kind({name: watch.most[pid] - rss_before[name] for name, pid in stack.pids.items()})
        grown["client"] = sum(watch.most[pid] - client_base for pid in load.pids)
    records = load.records()
    count = lambda name: sum(r["measures"]["counts"].get(name, 0) for r in records)
    slowest = lambda of, key: max((of(r).get(key) or 0 for r in records), default=0) or None
    tokens, elapsed = count("tokens_received"), max(r["elapsed_us"] for r in records) / 1e6
    cpu["client"] = client_cpu
    first_token = lambda r: r["measures"]["times"].get("first_token", {})
    response = lambda r: r["response"] or {}
    return {
        "size": size,
        "sessions": clients,
        "sessions_ok": count("sessions_ok"),
        "queries": clients * queries,
        "queries_ok": sum(r["ok"] for r in records),
        "tokens": tokens,
        "errors": errors(records),
        "lost": count("tokens_missing"),
        "doubled": count("tokens_duplicated") + count("tokens_out_of_order"),
        "reconnects": count("reconnects") + count("reconnects_failed"),
        "qps": sum(r["ok"] for r in records) / elapsed,
        "tps": tokens / elapsed,
        "wall": wall,
        "ttft": [slowest(first_token, "p50_us"), slowest(first_token, "p99_us")],
        "query": [slowest(response, "p50_us"), slowest(response, "p99_us")],
        "cpu_us": {kind: seconds / max(tokens, 1) * 1e6 for kind, seconds in cpu.items()},
        "rss": {kind: max(0, grown[kind]) / clients for kind in RSS_GOALS},
        "processes": {"client": len(records), "haproxy": sum(n.startswith("haproxy") for n in stack.pids)},
    }


def compare_with_goals(found):
    """Returns each goal with the measured value and whether it is met."""
    for r in found:
        size = r["size"]
        why = "".join(f", {code} {n:,}" for code, n in r["errors"].items())
        yield f"{size}: every session complete", f"{r['sessions_ok']:,} of {r['sessions']:,}{why}", r["sessions_ok"] == r["sessions"]
        yield f"{size}: no token lost or doubled", f"{r['lost']:,} and {r['doubled']:,}", r["lost"] + r["doubled"] == 0
        yield f"{size}: no reconnect", f"{r['reconnects']:,}", r["reconnects"] == 0
        if r["sessions"] >= 5000:
            yield f"{size}: tokens a second ≥ {PACE_GOAL:,}", f"{r['tps']:,.0f}", r["tps"] >= PACE_GOAL
        # With few sessions the fixed cost of the processes dominates.
        if r["sessions"] >= 1000:
            for kind, goal in CPU_GOALS.items():
                yield f"{size}: {kind} ≤ {goal} µs CPU a token", f"{r['cpu_us'][kind]:.1f}", r["cpu_us"][kind] <= goal
            for kind, goal in RSS_GOALS.items():
                yield f"{size}: {kind} ≤ {goal / 1000:.0f} kB a session", f"{r['rss'][kind] / 1000:.1f}", r["rss"][kind] <= goal
        if r["sessions"] == 1000:
            (p50, p99) = (us / 1000 if us else float("inf") for us in r["query"])
            yield f"{size}: query p50 ≤ 1,000 ms and p99 ≤ 1,300 ms", f"{p50:,.0f} and {p99:,.0f}", p50 <= 1000 and p99 <= 1300


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=SIZES, help=f"SESSIONSxQUERIES ({' '.join(SIZES)})")
    parser.add_argument("--backends", type=int, default=2)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--token-delay", default="50ms")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for the load of one size (300)")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed")
    args = parser.parse_args()
    bench.tool("redis-server")
    bench.tool("haproxy")
    bench.warn_if_busy()
    found = []
    with bench.Scratch() as scratch:
        for size in args.sizes:
            folder = scratch / size
            folder.mkdir()
            found.append(measure_size(size, folder, args))
            print(f"{size} done in {found[-1]['wall']:.0f} s", file=sys.stderr)

    print(f"{bench.machine()}\n")
    rows = [
        [
            r["size"], f"{r['sessions_ok']:,}/{r['sessions']:,}", f"{r['queries_ok']:,}/{r['queries']:,}",
            f"{r['tokens']:,}", f"{r['lost'] + r['doubled']:,}", r["reconnects"], f"{r['qps']:,.0f}", f"{r['tps']:,.0f}",
            "/".join(map(ms, r["ttft"])), "/".join(map(ms, r["query"])),
        ]
        for r in found
    ]
    bench.print_table(
        ["size", "sessions ok", "queries ok", "tokens", "lost, doubled", "reconnects", "queries/s", "tokens/s",
         "TTFT p50/p99, ms", "query p50/p99, ms"],
        rows,
    )
    print()
    kinds = ["gateway", "backend", "client", "haproxy", "redis"]
    rows = [
        [r["size"], *(f"{r['cpu_us'].get(kind, 0):.1f}" for kind in kinds), f"{sum(r['cpu_us'].values()):.1f}",
         f"{r['rss']['gateway'] / 1000:.1f}", f"{r['rss']['client'] / 1000:.1f}",
         f"{r['processes']['client']} and {r['processes']['haproxy']}"]
        for r in found
    ]
    bench.print_table(
        ["CPU a token, µs", *kinds, "all", "gateway kB/session", "client kB/session", "clients and haproxy, processes"], rows
    )
    print()
    verdicts = list(compare_with_goals(found))
    bench.print_table(["goal", "measured", ""], [[goal, seen, "met" if met else "MISSED"] for goal, seen, met in verdicts])
    if args.gate and not all(met for *_, met in verdicts):
        sys.exit(1)


if __name__ == "__main__":
    main()
