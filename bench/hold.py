#!/usr/bin/env python3
"""Memory of an idle connection at both ends: 18,000 connections over TCP, TLS and mutual TLS.

Plimsoll holds connections to its own server, a new one for each run; no memory is trimmed
before it is measured. The figures of other systems were published by their makers or users
for other machines: they show how large such a connection usually is.

    bench/hold.py                       everything
    bench/hold.py --connections 4000    fewer
    bench/hold.py --links mtls --certificates 100
    bench/hold.py --links mtls,mtls-new post-quantum algorithms beside the usual ones
"""

import argparse
import json
import shutil
import sys

import side_by_side as bench

SUITE = "TLS_AES_128_GCM_SHA256"
# Key exchange and kind of certificates of each link.
ALGORITHMS = {"tls": ("X25519", "ecdsa-p256"), "mtls": ("X25519", "ecdsa-p256"), "mtls-new": ("X25519MLKEM768", "ml-dsa-65")}
LINKS = ("tcp", *ALGORITHMS)
# Maximum resident bytes per connection: client, server.
GOALS = {"tls": (2_100, 2_000), "mtls": (2_100, 2_000)}
# Maximum bytes that post-quantum algorithms may add to an idle connection, at client or server.
MAX_ADDED_BYTES = 300
# Published for 20,000 connections: (system, client TLS / mTLS, server TLS / mTLS), kB.
PUBLISHED = [
    ("Go, untrimmed", "9.9 / 10.3", "18.5 / 24.3"),
    ("MOSN, certificates shared", "10.3 / 11.5", "14.1 / 17.8"),
]


def serve(link, certs, names):
    """Returns `serve hold` over this link."""
    words = [bench.plimsoll(), "serve", "hold", "--listen", "127.0.0.1:0"]
    if link != "tcp":
        words += ["--tls-cert", certs / "server.crt", "--tls-key", certs / "server.key"]
        words += ["--tls-certs", names] if names else []
    if link.startswith("mtls"):
        words += ["--tls-client-ca", certs / "ca.crt"]
    return bench.Server(words)


def run_hold(link, server, certs, folder, args):
    """Returns the run's record; exits if a connection is missing or was lost."""
    url = f"tcp://127.0.0.1:{server.port}" if link == "tcp" else f"tls://localhost:{server.port}"
    words = [
        bench.plimsoll(), "hold", url, "--connections", args.connections, "--for", args.held,
        "--connect-rate", args.connect_rate, "--out", folder, "--json", "-q",
    ]
    words += ["--keepalive", args.keepalive] if args.keepalive else []
    if link != "tcp":
        words += ["--ca", certs / "ca.crt", "--suite", SUITE, "--group", ALGORITHMS[link][0]]
        words += ["--records", args.records]
    if link.startswith("mtls"):
        words += ["--cert", certs / "client.crt", "--key", certs / "client.key"]
    measured = bench.measure(words, timeout=600)
    if measured.exit != 0:
        sys.exit(f"{link}: exit {measured.exit}\n{measured.errors.strip()}")
    run = bench.run_record(folder)
    total, memory = run["total"], run.get("memory")
    wrong = total["errors"] + total["not_started"] + total["connections_lost"]
    if wrong or not memory or memory["held"]["connections"] != args.connections:
        held = memory and memory["held"]["connections"]
        sys.exit(f"{link}: {held} of {args.connections} connections held, {wrong} lost or failed")
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=18_000)
    parser.add_argument("--for", dest="held", default="10s", help="how long they are held (10s)")
    parser.add_argument("--keepalive", help="send a byte on each connection this often (none)")
    parser.add_argument("--connect-rate", default="2000/s")
    parser.add_argument("--links", default=",".join(LINKS), help="links to measure, of " + ", ".join(LINKS))
    parser.add_argument("--records", default="own", help="record layer: own or library (own)")
    parser.add_argument("--certificates", type=int, default=1, help="certificates that the server holds, by name (1)")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--json", metavar="FILE", help="write every reading")
    args = parser.parse_args()
    links = args.links.split(",")
    for link in links:
        if link not in LINKS:
            parser.error(f"unknown link '{link}': expected one of {', '.join(LINKS)}")
    bench.warn_if_busy()

    rows, readings, missed = [], {}, 0
    with bench.Scratch() as scratch:
        kinds = {kind for _, kind in ALGORITHMS.values()}
        sets = {kind: bench.make_certificates(scratch / kind, kind) for kind in sorted(kinds)}
        certs = sets["ecdsa-p256"]
        names = None
        if args.certificates > 1:
            names = scratch / "names"
            names.mkdir()
            for n in range(args.certificates - 1):
                for end in ("crt", "key"):
                    shutil.copy(certs / f"server.{end}", names / f"host{n}.test.{end}")
        for link in links:
            certs = sets[ALGORITHMS.get(link, ALGORITHMS["tls"])[1]]
            with serve(link, certs, names) as server:
                run = run_hold(link, server, certs, scratch / link, args)
            readings[link] = run["memory"]
            for end, goal in zip(("client", "server"), GOALS.get(link, (None, None))):
                each, last = (run["memory"][key][end] for key in ("per_connection", "per_connection_last"))
                most = max(each["rss_bytes"], last["rss_bytes"])
                verdict = ""
                if goal and args.records == "own":
                    missed += most > goal
                    verdict = f"≤ {goal} {'met' if most <= goal else 'MISSED'}"
                usual = readings.get("mtls")
                if link == "mtls-new" and usual:
                    added = each["rss_bytes"] - usual["per_connection"][end]["rss_bytes"]
                    missed += added > MAX_ADDED_BYTES
                    verdict = f"{added:+.0f} beside mtls, ≤ {MAX_ADDED_BYTES} {'met' if added <= MAX_ADDED_BYTES else 'MISSED'}"
                rows.append([
                    link, end, *(f"{each[key]:.0f}" for key in ("rss_bytes", "pss_bytes", "private_bytes")),
                    f"{last['rss_bytes']:.0f}", verdict,
                ])
            kernel = run["memory"]["per_connection"]["kernel"]
            rows.append([link, "kernel, both ends", f"{kernel['slab_bytes']:.0f} of slabs",
                         f"{kernel['tcp_buffer_bytes']:.0f} of buffers", "", "", ""])
            print(f"{link} done", file=sys.stderr)
    print(f"\nBytes per connection, {args.connections:,} idle for {args.held}, records {args.records}, "
          f"server with {args.certificates} certificate(s); {bench.machine()}\n")
    print("; ".join(f"{link}: {group}, {kind}" for link, (group, kind) in ALGORITHMS.items() if link in links) + "\n")
    bench.print_table(["link", "end", "resident", "proportional", "private", "resident at the end", "goal"], rows)
    print("\nPublished for 20,000 connections, other machines, kB a connection, TLS / mutual TLS:\n")
    bench.print_table(["system", "client", "server"], PUBLISHED)
    print(f"\ngoals: {missed} missed")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": bench.machine(), "memory": readings}, file, indent=1)
    return 1 if args.gate and missed else 0


if __name__ == "__main__":
    sys.exit(main())
