#!/usr/bin/env python3
"""Client CPU per SOFARPC request, saturated and at 2,000 per second, and memory with 16 threads.

All against `plimsoll serve bolt`, with the echo of 1,098 characters: frames of 1.4 kB
there and 1.3 kB back. sofaload is in no registry: with SOFALOAD set to its path it runs
alternately with Plimsoll, otherwise its known cost is shown (README.md has its arguments).
At a rate it sends requests in groups every 5 ms, so Plimsoll's are grouped by millisecond.
Medians of the repetitions; a ratio compares two consecutive runs. The cost of wake-ups alone
at 2,000 per second, with one byte there and back, is shown below: a client that sends each
request at its own time can hardly cost less.
"""

import argparse
import os
import re
import sys

import side_by_side as bench

# sofaload's client CPU per request in µs, user and total, measured on two shared cores of 2.5 GHz.
SOFALOAD_COST = {"saturated": (0.54, 1.1), "2000/s": (None, 24.0)}
# Minimum ratio of the peer's CPU to ours, user and total.
GOALS = {"saturated": (2.0, 1.3), "2000/s": (None, 1.0)}
# Maximum memory of the client with 16 threads, in bytes.
MAX_MEMORY = 30e6


def check(measured, folder, name):
    record = bench.run_record(folder)["total"]
    if measured.exit != 0 or record["ok"] != record["due"]:
        sys.exit(f"plimsoll, {name}: exit {measured.exit}, {record['ok']} of {record['due']} calls ok: {measured.errors.strip()}")
    return record["ok"]


def run_plimsoll(server, name, args, folder, threads=1):
    load = {
        "saturated": ["-c", 16, "--clients", 512, "-n", args.calls],
        "2000/s": ["-c", 200, "--rate", "2000/s", "-z", f"{args.seconds}s", "--tick", args.tick],
    }[name]
    measured = bench.measure([
        bench.plimsoll(), "bolt", f"sofa://{server.address}", *load, "-t", threads, *args.flags, "--out", folder, "-q",
    ])
    return cost(measured, check(measured, folder, name)), measured.rss


def run_sofaload(command, server, name, args):
    load = {
        "saturated": ["-n", args.calls, "-c", 16, "-m", 32],
        "2000/s": ["-D", args.seconds, "--qps=2000", "-c", 200],
    }[name]
    measured = bench.measure([*command, *load, "-t", 1, "-p", "sofarpc", f"sofarpc://{server.address}"])
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (succeeded|failed|errored|timeout)\b", measured.out)}
    ok = counts.pop("succeeded", 0)
    # sofaload closes its connections after its last request and counts those still in flight as errors.
    lost = max(counts.values(), default=0)
    if name == "saturated":
        lost = max(lost, args.calls - ok)
    if measured.exit != 0 or not ok or lost >= 0.001 * ok:
        told = f"{measured.out.strip()} {measured.errors.strip()}".strip()[-600:]
        sys.exit(f"sofaload, {name}: exit {measured.exit}, {ok} calls ok (`N succeeded` in what it says): {told}")
    return cost(measured, ok)


def cost(measured, calls):
    """Returns µs per call, user and total."""
    return measured.user / calls * 1e6, measured.cpu / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=500_000, help="calls of a saturated run (500000)")
    parser.add_argument("--seconds", type=int, default=10, help="length of a run at 2,000/s (10)")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--tick", default="1ms", help="the tick at 2,000/s (1ms)")
    parser.add_argument("--spin", default=None, help="busy-wait before arrivals, as plimsoll's --spin")
    parser.add_argument("--gate", action="store_true", help="exit 1 when the goal is missed")
    args = parser.parse_args()
    args.flags = ["--spin", args.spin] if args.spin else []
    peer = bench.program_of("SOFALOAD")
    bench.warn_if_busy()
    found = {name: ([], []) for name in SOFALOAD_COST}
    waking, memory = [], []
    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", "bolt", "--listen", "127.0.0.1:0", "--workers", 1]
    ) as server:
        for rep in range(args.reps):
            for name, (mine, other) in found.items():
                turns = [
                    lambda: mine.append(run_plimsoll(server, name, args, scratch / f"{name.replace('/', '-')}-{rep}")[0]),
                    lambda: other.append(run_sofaload(peer, server, name, args) if peer else SOFALOAD_COST[name]),
                ]
                # The order alternates, because the second run may benefit from warm caches.
                for turn in turns if rep % 2 == 0 else reversed(turns):
                    turn()
            memory.append(run_plimsoll(server, "saturated", args, scratch / f"threads-{rep}", 16)[1])
            waking.append(bench.wakeup_cost(2000, args.seconds) * 1e6)
            print(f"repetition {rep + 1} of {args.reps} done", file=sys.stderr)

    print(f"{bench.machine()}\n")
    rows, missed = [], False
    for name, (mine, other) in found.items():
        for what, place in (("user", 0), ("in all", 1)):
            goal = GOALS[name][place]
            if goal is None:
                continue
            ratios = [beside[place] / us[place] for us, beside in zip(mine, other)]
            costs = [us[place] for us in mine]
            beside = bench.median([beside[place] for beside in other])
            missed |= bench.median(ratios) < goal
            rows.append([
                f"{name}, {what}", f"{bench.median(costs):.2f} ({min(costs):.2f} to {max(costs):.2f})",
                f"{beside:.2f}" if peer else f"{beside:.2f} (known)",
                f"{bench.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", f"{goal:g}",
            ])
    bench.print_table(["load", "CPU a request, µs", "sofaload, µs", "ratio", "goal (at least)"], rows)
    held = bench.median(memory)
    missed |= held > MAX_MEMORY
    print(f"\nmemory with 16 threads: {held / 1e6:.1f} MB; goal: at most {MAX_MEMORY / 1e6:.0f} MB")
    print(f"wake-ups alone, 2000/s: {bench.median(waking):.1f} µs ({min(waking):.1f} to {max(waking):.1f}), in each request at that rate")
    print(f"goals: {'MISSED' if missed else 'met'}")
    if args.gate and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
