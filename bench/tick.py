#!/usr/bin/env python3
"""Client CPU per call at a low rate over many connections, where each call costs two wake-ups.

Compares calls at their own times, calls grouped by tick (`--tick`), and h2load with `--rps`, all at
the same rate over the same connections, against `plimsoll serve fast`. With SOFALOAD set, SOFARPC
is measured as well. Medians of interleaved repetitions.

h2load paces each client separately, and all begin at once: at 10/s, all 200 connections send at the same
ten moments of a second. So a tick of the same length is measured, too, which groups calls equally.
"""

import argparse
import json
import sys

import bolt
import side_by_side as bench


def run_plimsoll(protocol, server, args, folder, tick):
    call = {
        "grpc": ["grpc", f"grpc://{server.address}", "-m", bench.METHOD, "-d", json.dumps({"json": bench.VECTOR})],
        "bolt": ["bolt", f"sofa://{server.address}"],
    }[protocol]
    measured = bench.measure([
        bench.plimsoll(), *call, "-c", args.connections, "--rate", f"{args.rate}/s", "--duration", f"{args.seconds}s",
        *(["--tick", tick] if tick else []), "--workers", 1, "--out", folder, "-q",
    ])
    return measured.cpu / bolt.check(measured, folder, f"{protocol}, {args.rate}/s") * 1e6


def run_h2load(server, args, scratch):
    frame = scratch / "frame"
    frame.write_bytes(bench.grpc_frame(bench.VECTOR))
    calls = args.rate * args.seconds
    measured = bench.measure([
        bench.tool("h2load"), f"--rps={args.rate / args.connections:g}", "-n", calls, "-c", args.connections, "-m", 1,
        "-t", 1, "-d", frame, "-H", "content-type: application/grpc", "-H", "te: trailers",
        f"http://{server.address}/{bench.METHOD}",
    ])
    if measured.exit != 0 or f"{calls} succeeded" not in measured.out:
        sys.exit(f"h2load: exit {measured.exit}: {measured.out.strip()[-400:]} {measured.errors.strip()[-200:]}")
    return measured.cpu / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=2000, help="calls a second (2000)")
    parser.add_argument("--connections", type=int, default=200, help="connections (200)")
    parser.add_argument("--seconds", type=int, default=30, help="length of one run, long enough to make a client's start negligible (30)")
    parser.add_argument("--tick", default="1ms", help="the tick (1ms)")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a call costs more with a tick than the peer's")
    args = parser.parse_args()
    peer = bench.program_of("SOFALOAD")
    bench.warn_if_busy()
    found = {}
    bundle = f"{1000 * args.connections / args.rate:g}ms"
    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", "fast", "--listen", "127.0.0.1:0", "--workers", 1]
    ) as fast, bench.Server([bench.plimsoll(), "serve", "bolt", "--listen", "127.0.0.1:0", "--workers", 1]) as sofa:
        for rep in range(args.reps):
            for protocol, server in (("grpc", fast), ("bolt", sofa)):
                for name, tick in (
                    ("each at its time", None), (f"--tick {args.tick}", args.tick), (f"--tick {bundle}", bundle),
                ):
                    cost = run_plimsoll(protocol, server, args, scratch / f"{protocol}-{tick}-{rep}", tick)
                    found.setdefault((protocol, name), []).append(cost)
            found.setdefault(("grpc", "h2load --rps"), []).append(run_h2load(fast, args, scratch))
            if peer:
                found.setdefault(("bolt", "sofaload --qps"), []).append(bolt.theirs(peer, sofa, "2000/s", args)[1])
            print(f"repetition {rep + 1} of {args.reps} done", file=sys.stderr)

    print(f"Client CPU per call at {args.rate:,}/s over {args.connections} connections, medians of {args.reps}; {bench.machine()}\n")
    bench.print_table(
        ["protocol", "load", "CPU a call, µs"],
        [[protocol, name, f"{bench.median(costs):.1f} ({min(costs):.1f} to {max(costs):.1f})"] for (protocol, name), costs in sorted(found.items())],
    )
    missed = False
    print()
    for tick in (args.tick, bundle):
        for (protocol, name), costs in found.items():
            if "--rps" in name or "--qps" in name:
                dearer = bench.median(found[protocol, f"--tick {tick}"]) > bench.median(costs)
                missed |= dearer
                print(f"goal: {protocol} with --tick {tick} costs no more than {name}: {'MISSED' if dearer else 'met'}")
    return 1 if args.gate and missed else 0


if __name__ == "__main__":
    sys.exit(main())
