#!/usr/bin/env python3
"""The order fleet: 1,000 to 100,000 clients, each with a connection, send 1,000,000 orders.

Every order must be accounted for. One row per size: orders per second, CPU of the load and
of the server per order, and the load's memory per client: the peak RSS of its processes,
minus theirs with one connection, divided by the clients. Clients and servers are spread over
as many processes as the limit of open files demands.
"""

import argparse
import json
import math
import resource
import sys

import side_by_side as bench

ORDER = {"instrumentID": 42, "price": 10050, "quantity": 100, "side": True}
# Minimum orders per second, 20 times the 3,640 of the program that this fleet replaces; maximum bytes per client.
GOAL_RATE, GOAL_BYTES = 72_800, 4096
# The number of clients for which the goals are checked, if it is measured.
GOAL_CLIENTS = 10_000
# Maximum CPU per order at the largest size, client and server together, relative to the smallest size.
GOAL_FLAT = 1.5


def server_processes(clients, limit):
    """Returns the processes for these clients; connections are distributed at random, so each has 20 % spare room."""
    return math.ceil(clients * 1.2 / (limit - 100))


def run(address, clients, calls, folder, rate=None):
    words = [
        bench.plimsoll(), "grpc", f"grpc://{address}", "-m", "orders.OrderService/Submit",
        "-d", json.dumps(ORDER), "--fleet", clients, "--calls", calls,
        # 100,000 clients delay each other, so the deadline is long.
        "--deadline", "60s", "--out", folder, "-q",
    ]
    if rate:
        words += ["--connect-rate", rate]
    measured = bench.measure(words, timeout=900)
    record = bench.run_record(folder) if (folder / "run.json").exists() else {"total": {"ok": 0}}
    total = record["total"]
    if measured.exit != 0 or total["ok"] != calls or not record["count_check"]["matches"]:
        sys.exit(f"{clients} clients: exit {measured.exit}, {total['ok']} of {calls} orders ok: {measured.errors.strip()[-600:]}")
    return record


def measure(clients, args, limit, scratch):
    """Returns the figures of one row."""
    processes = server_processes(clients, limit)
    command = [bench.plimsoll(), "serve", args.server, "--listen", "127.0.0.1:0", "--processes", processes]
    if processes > 1:
        command += ["--workers", 1]
    with bench.Server(command) as server:
        one = run(server.address, 1, 20_000, scratch / f"one-{clients}")["total"]
        record = run(server.address, clients, args.orders, scratch / f"fleet-{clients}", args.connect_rate)
    total = record["total"]
    ours = record.get("processes", 1)
    # Several processes have a supervisor in addition.
    own = one["client"]["rss_bytes_max"] * (ours + (ours > 1))
    return {
        "clients": clients,
        "ok": total["ok"],
        "rate": total["ok"] / (total["elapsed_us"] / 1e6),
        "p50": total["response"]["p50_us"],
        "p99": total["response"]["p99_us"],
        "client_cpu": total["client"]["cpu_us_per_call"],
        "server_cpu": total["server"]["cpu_us_per_call"],
        "memory": (total["client"]["rss_bytes_max"] - own) / clients,
        "processes": (ours, processes),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 20_000, 100_000])
    parser.add_argument("--orders", type=int, default=1_000_000, help="total orders for each size")
    parser.add_argument("--connect-rate", help="new connections a second, such as 5000/s")
    parser.add_argument("--server", choices=["orders", "fast"], default="orders", help="which of our servers (orders)")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed")
    args = parser.parse_args()
    bench.warn_if_busy()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bench.raise_descriptor_limit(min(hard, max(args.clients) + 200) if hard != resource.RLIM_INFINITY else soft)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    with bench.Scratch() as scratch:
        rows = [measure(clients, args, limit, scratch) for clients in sorted(args.clients)]
    print(f"\nOrder fleet against `serve {args.server}`, {args.orders:,} orders for each row; {bench.machine()}\n")
    bench.print_table(
        ["clients", "accounted for", "orders/s", "p50", "p99", "client CPU an order", "server's", "memory a client", "processes"],
        [
            [
                f"{row['clients']:,}", f"{row['ok']:,}", f"{row['rate']:,.0f}",
                f"{row['p50'] / 1000:,.1f} ms", f"{row['p99'] / 1000:,.1f} ms",
                f"{row['client_cpu']:.2f} µs", f"{row['server_cpu']:.2f} µs",
                f"{row['memory']:,.0f} bytes", "{} and {}".format(*row["processes"]),
            ]
            for row in rows
        ],
    )
    goals = []
    at = next((row for row in rows if row["clients"] == GOAL_CLIENTS), None)
    if at:
        goals.append((f"orders a second at {GOAL_CLIENTS:,}", f"{at['rate']:,.0f} = {at['rate'] / GOAL_RATE * 20:.0f} × 3,640", f"≥ {GOAL_RATE:,} = 20 × 3,640", at["rate"] >= GOAL_RATE))
        goals.append((f"memory a client at {GOAL_CLIENTS:,}", f"{at['memory']:,.0f} bytes", f"< {GOAL_BYTES:,} bytes", at["memory"] < GOAL_BYTES))
    if len(rows) > 1:
        cost = [row["client_cpu"] + row["server_cpu"] for row in rows]
        flat = cost[-1] / cost[0]
        goals.append((f"CPU an order at {rows[-1]['clients']:,} against {rows[0]['clients']:,}", f"{flat:.2f} ×", f"≤ {GOAL_FLAT} ×", flat <= GOAL_FLAT))
    print()
    bench.print_table(["what", "figure", "goal", ""], [[what, figure, goal, "met" if met else "MISSED"] for what, figure, goal, met in goals])
    return 1 if args.gate and not all(met for *_, met in goals) else 0


if __name__ == "__main__":
    sys.exit(main())
