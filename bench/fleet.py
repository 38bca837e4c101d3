#!/usr/bin/env python3
"""The order fleet: many connections, a set number of orders in all, every one accounted for.

10,000 clients with a connection each send 1,000,000 orders to `plimsoll serve orders`.
Prints orders a second, and the client's memory a connection: its peak RSS, less that of
the same run over one connection, divided by the connections.
"""

import argparse
import json
import sys

import side_by_side as bench

ORDER = {"instrumentID": 42, "price": 10050, "quantity": 100, "side": True}
# 20 × the 3,640 orders a second of the fleet this one replaces.
GOAL_RATE, GOAL_BYTES = 72_800, 4096


def run(address, connections, calls, folder):
    measured = bench.measure([
        bench.plimsoll(), "grpc", f"grpc://{address}", "-m", "orders.OrderService/Submit",
        "-d", json.dumps(ORDER), "--connections", connections, "--clients", connections,
        "--calls", calls, "--out", folder, "-q",
    ], timeout=300)
    record = bench.run_record(folder) if (folder / "run.json").exists() else {"total": {"ok": 0}}
    ok = record["total"]["ok"]
    if measured.exit != 0 or ok != calls:
        sys.exit(f"{connections} connections: exit {measured.exit}, {ok} of {calls} orders ok: {measured.errors.strip()[-600:]}")
    return record, measured


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--server", choices=["orders", "fast"], default="orders", help="which of our servers (orders)")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed")
    args = parser.parse_args()
    bench.warn_if_busy()
    bench.raise_descriptor_limit(args.connections + 200)

    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", args.server, "--listen", "127.0.0.1:0"]
    ) as server:
        _, one = run(server.address, 1, min(args.orders, 50_000), scratch / "one")
        record, many = run(server.address, args.connections, args.orders, scratch / "many")
    stage = record["total"]
    rate = stage["ok"] / (stage["elapsed_us"] / 1e6)
    memory = (many.rss - one.rss) / args.connections
    print(f"\nOrder fleet against `serve {args.server}`; {bench.machine()}\n")
    bench.print_table(
        ["what", "figure", "goal", ""],
        [
            ["orders accounted for", f"{stage['ok']:,} of {args.orders:,}", "all", "met"],
            ["orders a second", f"{rate:,.0f} = {rate / GOAL_RATE * 20:.0f} × 3,640", f"≥ {GOAL_RATE:,} = 20 × 3,640", "met" if rate >= GOAL_RATE else "MISSED"],
            ["client memory a connection", f"{memory:,.0f} bytes", f"< {GOAL_BYTES:,} bytes", "met" if memory < GOAL_BYTES else "MISSED"],
            ["client CPU an order", f"{many.cpu / args.orders * 1e6:.2f} µs", "–", ""],
        ],
    )
    return 1 if args.gate and (rate < GOAL_RATE or memory >= GOAL_BYTES) else 0


if __name__ == "__main__":
    sys.exit(main())
