#!/usr/bin/env python3
"""The statistical quality of ladders in batches: their resolution, how often they claim a difference between equal
rungs, and how often they detect a real one.

Every ladder is short, starts its own servers, and measures only batches; for the resolution it also measures
the other figures of a bill. `--loops N` runs N busy loops at the same time, like other users of the machine.

    bench/bill.py                        everything: about ten minutes
    bench/bill.py --quick                two ladders of each kind
    bench/bill.py --only power --work 2us --loops 2
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

import side_by_side as bench

PLAN = """name = "bill"
[call.grpc]
method  = "score.ScoreService/GetScore"
message = {{ json = "{vector}" }}
[load]
rate = "{rate}/s"
duration = "{seconds}s"
[ladder]
parts = {parts}
serve = ["score", "--delay", "0s"]
{rungs}
"""
LINKS = 'tls = ["off", "server", "mutual"]'
EQUAL = 'rungs = [{ name = "one" }, { name = "the same" }]'
WORK = 'rungs = [{{ name = "as it is" }}, {{ name = "more work", serve = ["score", "--delay", "0s", "--busy", "{work}"] }}]'
GOAL_RESOLUTION_US, GOAL_BUSY_US, GOAL_CPU, GOAL_CLAIMED, GOAL_FOUND, GOAL_OFF_US = 1.0, 3.0, 0.01, 0.1, 0.9, 1.5


def run_ladder(args, rungs, seconds, seed, folder, parts='["none"]'):
    """Runs one ladder; returns its record."""
    plan = folder / f"plan-{seed}.toml"
    plan.write_text(f"seed = {seed}\n" + PLAN.format(vector=bench.VECTOR, rate=args.rate, seconds=seconds, rungs=rungs, parts=parts), encoding="utf-8")
    command = [bench.plimsoll(), "ladder", plan, "--out", folder / f"ladder-{seed}", "--json", "--quiet"]
    measured = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if measured.returncode:
        sys.exit(f"{rungs}: exit {measured.returncode}: {measured.stderr.decode().strip()[-600:]}")
    return json.loads(measured.stdout)["ladder"]


def difference(record, metric, of=1, to=0):
    """Returns (estimate, lower, upper) of a difference, or None if it is unknown."""
    for d in record["batches"]["differences"]:
        if (d["of"], d["to"], d["metric"]) == (of, to, metric):
            return d["shift"], d["low"], d["high"]
    return None


def resolution(args, folder):
    record = run_ladder(args, LINKS, 20, 1, folder, '["saturated", "connections", "resumed", "memory"]')
    print(f"resolution after 20 s at {args.rate}/s, {args.loops} busy loops beside it: half the width of the intervals")
    goal = GOAL_BUSY_US if args.loops else GOAL_RESOLUTION_US
    good = True
    for metric, slice_key in (("p50", "p50_us"), ("client_cpu", "client_cpu_us_per_call"), ("server_cpu", "server_cpu_us_per_call")):
        base = record["rungs"][0]["slices"][0][slice_key]
        for of, rung in enumerate(record["rungs"][1:], 1):
            shift, low, high = difference(record, metric, of, 0)
            half = (high - low) / 2
            met = half <= goal if metric == "p50" else half <= GOAL_CPU * base or args.loops > 0
            good &= met
            print(f"  {metric:<11} {rung['name']:<11} adds {shift:+7.2f} ± {half:6.2f} µs to {base:7.2f} ({half / base:.1%}) {'' if met else 'goal missed'}")
    return good


def equal(args, folder):
    claimed = 0
    for seed in range(args.ladders):
        record = run_ladder(args, EQUAL, args.seconds, 100 + seed, folder)
        claims = [d for d in record["batches"]["differences"] if d["low"] > 0 or d["high"] < 0]
        claimed += bool(claims)
        for d in claims:
            print(f"  ladder {seed + 1}: {d['metric']} {d['shift']:+.2f} ({d['low']:+.2f} … {d['high']:+.2f}) µs")
    print(f"equal rungs: a difference claimed in {claimed} of {args.ladders} ladders of {args.seconds} s")
    return claimed <= max(1, GOAL_CLAIMED * args.ladders)


def power(args, folder):
    work = float(args.work.removesuffix("us"))
    found = near = 0
    for seed in range(args.ladders):
        record = run_ladder(args, WORK.format(work=args.work), args.seconds, 1000 + seed, folder)
        shift, low, high = difference(record, "p50")
        cpu = difference(record, "server_cpu")
        found += low > 0
        near += abs(shift - work) <= GOAL_OFF_US
        told = f", server CPU {cpu[0]:+.2f} ({cpu[1]:+.2f} … {cpu[2]:+.2f})" if cpu else ""
        print(f"  ladder {seed + 1}: p50 {shift:+.2f} ({low:+.2f} … {high:+.2f}){told} µs", flush=True)
    print(f"{args.work} more work: found in {found} of {args.ladders}, within {GOAL_OFF_US} µs in {near}")
    return found >= GOAL_FOUND * args.ladders


KINDS = {"resolution": resolution, "equal": equal, "power": power}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS, help="run only this kind of ladder")
    parser.add_argument("--ladders", type=int, default=20, help="ladders of equal rungs, and of unequal ones (20)")
    parser.add_argument("--seconds", type=int, default=15, help="length of each of these (15)")
    parser.add_argument("--rate", type=int, default=2000, help="calls a second (2000)")
    parser.add_argument("--work", default="5us", help="extra work of one rung's server (5us)")
    parser.add_argument("--loops", type=int, default=0, help="busy loops running beside it (0)")
    parser.add_argument("--gate", action="store_true", help="exit code 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="two ladders of each kind")
    args = parser.parse_args()
    if args.quick:
        args.ladders = 2
    good = True
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(args.loops):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        for name, kind in KINDS.items():
            if args.only in (None, name):
                good &= kind(args, folder)
    sys.exit(1 if args.gate and not good else 0)


if __name__ == "__main__":
    main()
