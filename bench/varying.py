#!/usr/bin/env python3
"""Cost of data that varies from call to call, compared with constant data.

Plimsoll loads the same server with constant and with varying messages alternately; the figures
are medians of the client's CPU per call.
"""

import argparse
import json
import sys

import side_by_side as bench

GOAL_PERCENT = 10
ORDERS = ["-m", "orders.OrderService/Submit"]
SCORE = ["-m", bench.METHOD]
# The kind of variation, and its messages; the constant one comes first.
ROWS = [
    ("a number and a text", SCORE, json.dumps({"json": bench.VECTOR}),
     json.dumps({"json": bench.VECTOR.replace("0.0000", "{{random 0.0000 0.9999}}").replace("  1", "{{seq}}")})),
    ("a UUID in a text", SCORE, json.dumps({"json": "[" + "1" * 60 + ", " + "2" * 36 + "]"}),
     json.dumps({"json": "[" + "1" * 60 + ", {{uuid}}]"})),
    ("a column", SCORE, json.dumps({"json": bench.VECTOR}), json.dumps({"json": "{{row.vector}}"})),
]
CALLS = {"fast": 2_000_000, "go": 400_000}


def start_server(name):
    if name == "fast":
        return bench.Server([bench.plimsoll(), "serve", "fast", "--listen", "127.0.0.1:0"])
    return bench.Server([bench.tool("go-score")])


def cost(server, call, data, calls, folder, more):
    """Returns µs of client CPU per call."""
    measured = bench.measure([
        bench.plimsoll(), "grpc", f"grpc://{server.address}", *call, "-d", data, *more,
        "--clients", 100, "--connections", 1, "--calls", calls, "--out", folder, "--json", "-q",
    ])
    total = json.loads(measured.out)["runs"][0]["total"] if measured.exit == 0 else {}
    if total.get("ok") != calls:
        sys.exit(f"plimsoll with {data}: exit {measured.exit}: {measured.errors.strip()[-300:]}")
    return measured.cpu / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=7, help="interleaved repetitions (7)")
    parser.add_argument("--servers", default="fast,go")
    parser.add_argument("--quick", action="store_true", help="three repetitions with a quarter of the calls")
    parser.add_argument("--gate", action="store_true", help="exit 1 when the goal is missed at an ordinary server (go)")
    args = parser.parse_args()
    bench.warn_if_busy()
    reps, fraction = (3, 4) if args.quick else (args.reps, 1)
    servers = args.servers.split(",")
    for name in servers:
        if name not in CALLS:
            parser.error(f"unknown '{name}': expected one of {', '.join(CALLS)}")

    found = {}
    with bench.Scratch() as scratch:
        rows = scratch / "vectors.csv"
        vectors = [bench.VECTOR.replace("0.0000", f"0.{i:04d}") for i in range(1000)]
        rows.write_text("vector\n" + "".join(f'"{v}"\n' for v in vectors), encoding="utf-8")
        for rep in range(reps):
            for name in servers:
                with start_server(name) as server:
                    for what, call, still, varying in ROWS:
                        more = ["--rows", rows] if "row." in varying else []
                        both = [(still, []), (varying, more)]
                        # The order alternates with each repetition.
                        costs = {}
                        for data, flags in both[:: 1 if rep % 2 else -1]:
                            costs[data] = cost(server, call, data, CALLS[name] // fraction, scratch / f"{len(found)}-{rep}-{data == still}-{name}-{what[:8].strip()}", flags)
                        found.setdefault((name, what), []).append((costs[still], costs[varying]))
            print(f"repetition {rep + 1} of {reps} done", file=sys.stderr)

    print(f"\nUnary calls, 100 at a time on one connection, medians of {reps} interleaved repetitions; {bench.machine()}")
    print("µs of client CPU per call\n")
    rows, missed = [], 0
    for (name, what), pairs in found.items():
        still, varying = (bench.median([pair[i] for pair in pairs]) for i in (0, 1))
        more = bench.median([b / a for a, b in pairs]) * 100 - 100
        held = more <= GOAL_PERCENT
        # The fast server leaves only the client's own cost, which is shown without a goal.
        judged = "" if name == "fast" else f" (≤ {GOAL_PERCENT} %: {'met' if held else 'MISSED'})"
        missed += bool(judged) and not held
        rows.append([name, what, f"{still:.3f}", f"{varying:.3f}", f"{more:+.1f} %{judged}"])
    bench.print_table(["server", "what varies", "constant", "varying", "more"], rows)
    return 1 if args.gate and missed else 0


if __name__ == "__main__":
    sys.exit(main())
