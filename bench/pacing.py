#!/usr/bin/env python3
"""How late calls are sent: Plimsoll beside a generator whose timer ticks in milliseconds.

At each rate, alternately: Plimsoll with one connection to its own fast server, and
bench/peers/timer1ms, which waits the way wrk2 does. Both take the clock just before a
send and subtract the moment the call was due. Medians of the repetitions.
"""

import argparse
import json
import sys

import side_by_side as bench

GOAL_US, GOAL_UP_TO = 100, 10_000


def run_plimsoll(server, rate, seconds, folder):
    measured = bench.measure([
        bench.plimsoll(), "grpc", f"grpc://{server.address}", "-m", bench.METHOD,
        "-d", json.dumps({"json": bench.VECTOR}), "--rate", f"{rate}/s", "--warmup", "1s",
        "--duration", f"{seconds}s", "--connections", 1, "--out", folder, "--json", "-q",
    ])
    if measured.exit != 0:
        sys.exit(f"plimsoll at {rate}/s: exit {measured.exit}: {measured.errors.strip()}")
    record = bench.run_record(folder)
    stage = record["total"]
    if stage["ok"] != stage["due"]:
        sys.exit(f"plimsoll at {rate}/s: {stage['ok']} of {stage['due']} calls ok")
    return {"p50_us": stage["lag"]["p50_us"], "p99_us": stage["lag"]["p99_us"],
            "cpu_us": measured.cpu / stage["due"] * 1e6 * seconds / (seconds + 1)}


def run_timer(rate, seconds):
    measured = bench.measure([bench.tool("timer1ms"), "-rate", rate, "-duration", f"{seconds}s"])
    if measured.exit != 0:
        sys.exit(f"timer1ms: {measured.errors.strip()}")
    return json.loads(measured.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="500,2000,10000,50000", help="calls a second")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--seconds", type=int, default=4, help="length of one run (4)")
    parser.add_argument("--gate", action="store_true", help="exit 1 when the goal is missed")
    args = parser.parse_args()
    bench.warn_if_busy()
    rates = [int(rate) for rate in args.rates.split(",")]

    found = {}
    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", "fast", "--listen", "127.0.0.1:0"]
    ) as server:
        for rep in range(args.reps):
            for rate in rates:
                mine, theirs = found.setdefault(rate, ([], []))
                mine.append(run_plimsoll(server, rate, args.seconds, scratch / f"{rate}-{rep}"))
                theirs.append(run_timer(rate, args.seconds))
            print(f"repetition {rep + 1} of {args.reps} done", file=sys.stderr)

    print(f"\nLag (actual send − arrival), medians of {args.reps} repetitions of {args.seconds} s; {bench.machine()}\n")
    rows, missed = [], 0
    for rate, (mine, theirs) in found.items():
        def mid(runs, key):
            return bench.median([run[key] for run in runs])
        verdict = "–"
        if rate <= GOAL_UP_TO:
            held = mid(mine, "p99_us") < GOAL_US
            missed += not held
            verdict = "met" if held else "MISSED"
        rows.append([
            f"{rate:,}/s", f"{mid(mine, 'p50_us'):.1f} / {mid(mine, 'p99_us'):.1f} µs",
            f"{mid(theirs, 'p50_us'):.0f} / {mid(theirs, 'p99_us'):.0f} µs",
            f"{mid(theirs, 'p50_us') / max(mid(mine, 'p50_us'), 0.1):.0f}× / {mid(theirs, 'p99_us') / max(mid(mine, 'p99_us'), 0.1):.0f}×",
            f"{mid(mine, 'cpu_us'):.1f} µs", verdict,
        ])
    bench.print_table(
        ["rate", "plimsoll p50 / p99", "1 ms timer p50 / p99", "ratio", "plimsoll CPU a call", f"p99 < {GOAL_US} µs"], rows
    )
    return 1 if args.gate and missed else 0


if __name__ == "__main__":
    sys.exit(main())
