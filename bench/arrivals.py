#!/usr/bin/env python3
"""How evenly calls arrive at the server: variance over mean of the arrivals per millisecond.

The server (bench/peers/recorder) stamps each request as it is read from the socket.
0 is a perfectly even stream, 1 a Poisson process; more means bursts, which queue at the
server, so that the generator measures queueing that it caused itself. Medians of interleaved repetitions.
"""

import argparse
import json
import re
import sys

import side_by_side as bench

GOAL = 0.2


def command(client, server, rate, seconds, scratch):
    if client == "plimsoll":
        return [
            bench.plimsoll(), "grpc", f"grpc://{server.address}", "-m", bench.METHOD,
            "-d", json.dumps({"json": bench.VECTOR}), "--rate", f"{rate}/s",
            "--duration", f"{seconds}s", "--connections", 1, "--out", scratch / f"run{server.port}", "-q",
        ]
    if client == "h2load":
        frame = scratch / "frame"
        frame.write_bytes(bench.grpc_frame(bench.VECTOR))
        return [
            bench.tool("h2load"), f"--rps={rate}", "-n", rate * seconds, "-c", 1, "-m", 100, "-t", 1, "-d", frame,
            "-H", "content-type: application/grpc", "-H", "te: trailers", f"http://{server.address}/{bench.METHOD}",
        ]
    return [
        bench.tool("ghz"), "--proto", bench.SCORE_PROTO, "--call", bench.METHOD, "--insecure",
        "-d", json.dumps({"json": bench.VECTOR}), "--rps", rate, "-n", rate * seconds, "-c", 50,
        "--connections", 1, "-O", "json", server.address,
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=2000, help="calls a second (2000)")
    parser.add_argument("--seconds", type=int, default=5, help="length of one run (5)")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--clients", default="plimsoll,h2load,ghz")
    parser.add_argument("--gate", action="store_true", help=f"exit 1 unless ours is below {GOAL}")
    args = parser.parse_args()
    bench.warn_if_busy()

    found, wrong = {}, {}
    clients = args.clients.split(",")
    with bench.Scratch() as scratch:
        for rep in range(args.reps):
            for client in clients:
                server = bench.Server([bench.tool("recorder")])
                with server:
                    measured = bench.measure(command(client, server, args.rate, args.seconds, scratch))
                said = re.search(r"\{.*\}", server.out)
                record = json.loads(said.group(0)) if said else {}
                expected = args.rate * args.seconds
                if measured.exit != 0 or record.get("requests") != expected:
                    wrong[client] = f"exit {measured.exit}, {record.get('requests', 0):.0f} of {expected} requests arrived: {measured.errors.strip()[-200:]}"
                elif "variance_over_mean" in record:
                    found.setdefault(client, []).append(record["variance_over_mean"])
            print(f"repetition {rep + 1} of {args.reps} done", file=sys.stderr)

    print(f"\nVariance over mean of arrivals per millisecond at {args.rate:,}/s, medians of {args.reps} repetitions; {bench.machine()}\n")
    rows = [
        [client, f"{bench.median(found[client]):.3f}" if client in found else "invalid",
         f"{min(found[client]):.3f}–{max(found[client]):.3f}" if client in found else "–"]
        for client in clients
    ]
    bench.print_table(["client", "variance / mean", "lowest–highest"], rows)
    for client, said in wrong.items():
        print(f"\ninvalid in some repetitions: {client}: {said}")
    if "plimsoll" in clients:
        held = "plimsoll" in found and bench.median(found["plimsoll"]) < GOAL
        print(f"\ngoal: below {GOAL} on a quiet machine: {'met' if held else 'MISSED'}")
        return 1 if args.gate and not held else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
