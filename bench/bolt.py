#!/usr/bin/env python3
"""Client CPU a SOFARPC request: saturated, and at 2,000 a second.

Both against `plimsoll serve bolt`, with the echo of 1,098 characters: frames of 1.4 kB
there and 1.3 kB back. sofaload is in no registry: with SOFALOAD set to its path it takes
turns with Plimsoll, without it what it is known to cost stands beside (README.md has its
arguments). Medians of the repetitions. What waking alone costs at 2,000 a second, one byte
there and back, stands below: a client that sends each request at its time hardly costs less.
"""

import argparse
import os
import re
import sys

import side_by_side as bench

# µs of client CPU a request that sofaload was measured to cost, and the goal beside it.
KNOWN = {"saturated": (5.0, 8.0), "2000/s": (20.0, 30.0)}
GOAL = 3


def check(measured, folder, name):
    record = bench.run_record(folder)["total"]
    if measured.exit != 0 or record["ok"] != record["due"]:
        sys.exit(f"plimsoll, {name}: exit {measured.exit}, {record['ok']} of {record['due']} calls ok: {measured.errors.strip()}")
    return record["ok"]


def ours(server, name, args, folder):
    load = {
        "saturated": ["-c", 16, "--clients", 512, "-n", args.calls],
        "2000/s": ["-c", 200, "--rate", "2000/s", "-z", f"{args.seconds}s"],
    }[name]
    measured = bench.measure([bench.plimsoll(), "bolt", f"sofa://{server.address}", *load, *args.flags, "--out", folder, "-q"])
    return measured.cpu / check(measured, folder, name) * 1e6


def theirs(command, server, name, args):
    load = {
        "saturated": ["-n", args.calls, "-c", 16, "-m", 32],
        "2000/s": ["-D", args.seconds, "--qps=2000", "-c", 200],
    }[name]
    measured = bench.measure([*command, *load, "-t", 1, "-p", "sofarpc", f"sofarpc://{server.address}"])
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (succeeded|failed|errored|timeout)\b", measured.out)}
    ok = counts.pop("succeeded", 0)
    short = name == "saturated" and ok < args.calls
    if measured.exit != 0 or not ok or short or any(counts.values()):
        told = f"{measured.out.strip()} {measured.errors.strip()}".strip()[-600:]
        sys.exit(f"sofaload, {name}: exit {measured.exit}, {ok} calls ok (`N succeeded` in what it says): {told}")
    return measured.cpu / ok * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=500_000, help="calls of a saturated run (500000)")
    parser.add_argument("--seconds", type=int, default=10, help="length of a run at 2,000/s (10)")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--spin", default=None, help="busy-wait before arrivals, as plimsoll's --spin")
    parser.add_argument("--gate", action="store_true", help="exit 1 when the goal is missed")
    args = parser.parse_args()
    args.flags = ["--spin", args.spin] if args.spin else []
    peer = bench.program_of("SOFALOAD")
    bench.warn_if_busy()
    found = {name: ([], []) for name in KNOWN}
    waking = []
    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", "bolt", "--listen", "127.0.0.1:0", "--workers", 1]
    ) as server:
        for rep in range(args.reps):
            for name, (mine, other) in found.items():
                mine.append(ours(server, name, args, scratch / f"{name.replace('/', '-')}-{rep}"))
                if peer:
                    other.append(theirs(peer, server, name, args))
            waking.append(bench.waking_cost(2000, args.seconds) * 1e6)
            print(f"repetition {rep + 1} of {args.reps} done", file=sys.stderr)

    print(f"{bench.machine()}\n")
    rows, missed = [], False
    for name, (mine, other) in found.items():
        cost = bench.median(mine)
        beside = bench.median(other) if peer else KNOWN[name][0]
        shown = f"{beside:.1f}" if peer else "{:.0f} to {:.0f} (known)".format(*KNOWN[name])
        missed |= beside < GOAL * cost
        rows.append([name, f"{cost:.2f} ({min(mine):.2f} to {max(mine):.2f})", f"{1e6 / cost:,.0f}", shown, f"{beside / cost:.1f}"])
    bench.print_table(["load", "CPU a request, µs", "requests a CPU second", "sofaload, µs", "ratio (at least)"], rows)
    print(f"\nwaking alone, 2000/s: {bench.median(waking):.1f} µs ({min(waking):.1f} to {max(waking):.1f}), in each request at that rate")
    print(f"goal: a ratio of {GOAL} at least: {'MISSED' if missed else 'met'}")
    if args.gate and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
