#!/usr/bin/env python3
"""gRPC unary calls side by side: client CPU per call of Plimsoll, h2load, ghz and grpc.aio.

Every client loads the same servers with the same message, one after the other in every repetition; the
figures are medians over the repetitions. A row counts only if all its calls succeeded.
Plimsoll runs as users run it: every latency recorded, every status checked, and a run
directory written.

    bench/grpc.py                       everything
    bench/grpc.py --quick               two repetitions with fewer calls
    bench/grpc.py --servers go --shapes 10x10 --reps 8
"""

import argparse
import json
import re
import sys

import side_by_side as bench

# Calls per client, enough to make process start and the first TLS handshake negligible.
CALLS = {
    ("plimsoll", "fast"): 4_000_000,
    ("plimsoll", "awake"): 4_000_000,
    ("plimsoll", "go"): 2_000_000,
    ("h2load", "fast"): 400_000,
    ("h2load", "awake"): 400_000,
    ("h2load", "go"): 300_000,
    "ghz": 30_000,
    "grpc.aio": 10_000,
}
SUITE = "TLS_AES_128_GCM_SHA256"
GROUP = "X25519"
SHAPES = {"1x100": (1, 100), "10x10": (10, 10)}
SERVERS = ("fast", "awake", "go")
# Minimum ratio of Plimsoll's calls per CPU-second to the peer's, by (peer, server, shape).
GOALS = {
    **{("h2load", server, shape): 5 for server in ("fast", "awake") for shape in SHAPES},
    ("h2load", "go", "1x100"): 3,
    ("h2load", "go", "10x10"): 2,
    **{("ghz", server, shape): 80 for server in SERVERS for shape in SHAPES},
}


def start(name, tls, certs):
    """Returns the server `name`, over TLS with the certificates in `certs` if `tls`."""
    pair = [certs / "server.crt", certs / "server.key"] if tls else []
    if name != "go":
        words = ["serve", "fast", "--listen", "127.0.0.1:0"]
        if name == "awake":
            words += ["--busy-poll", "1ms"]
        return bench.Server([bench.plimsoll(), *words, *flags(["--tls-cert", "--tls-key"], pair)])
    return bench.Server([bench.tool("go-score"), *flags(["-tls-cert", "-tls-key"], pair)])


def flags(names, values):
    return [word for pair in zip(names, values) for word in pair]


class Client:
    """A load generator: its command line, and how its count of successful calls is read."""

    def __init__(self, name, scratch, certs):
        self.name, self.scratch, self.certs, self.runs = name, scratch, certs, 0
        (scratch / "frame").write_bytes(bench.grpc_frame(bench.VECTOR))
        (scratch / "message").write_bytes(bench.grpc_frame(bench.VECTOR)[5:])

    def command(self, server, tls, connections, streams, calls):
        ca = str(self.certs / "ca.crt") if tls else None
        clients = connections * streams
        if self.name == "plimsoll":
            self.runs += 1
            self.folder = self.scratch / f"run{self.runs}"
            scheme = "grpcs" if tls else "grpc"
            return [
                bench.plimsoll(), "grpc", f"{scheme}://{server.address}", "-m", bench.METHOD,
                "-d", json.dumps({"json": bench.VECTOR}), "--clients", clients,
                "--connections", connections, "--calls", calls, "--out", self.folder, "--json", "-q",
                *(["--ca", ca, "--suite", SUITE, "--group", GROUP] if tls else []),
            ]
        if self.name == "h2load":
            scheme = "https" if tls else "http"
            return [
                bench.tool("h2load"), "-n", calls, "-c", connections, "-m", streams, "-t", 1,
                "-d", self.scratch / "frame", "-H", "content-type: application/grpc", "-H", "te: trailers",
                *([f"--tls13-ciphers={SUITE}", f"--groups={GROUP}"] if tls else []),
                f"{scheme}://{server.address}/{bench.METHOD}",
            ]
        if self.name == "ghz":
            return [
                bench.tool("ghz"), "--proto", bench.SCORE_PROTO, "--call", bench.METHOD,
                "-d", json.dumps({"json": bench.VECTOR}), "-n", calls, "-c", clients,
                "--connections", connections, "-O", "json",
                *(["--cacert", ca, "--cname", "localhost"] if tls else ["--insecure"]),
                server.address,
            ]
        return [
            bench.PEERS / "venv" / "bin" / "python", bench.ROOT / "bench/peers/grpc_aio_client.py",
            server.address, "--method", bench.METHOD, "--message", self.scratch / "message",
            "--connections", connections, "--clients", clients, "--calls", calls,
            *(["--ca", ca] if tls else []),
        ]

    def ok(self, measured):
        """Returns the successful calls. h2load does not know gRPC statuses and only checks for 2xx."""
        if self.name == "plimsoll":
            return bench.run_record(self.folder)["total"]["ok"]
        if self.name == "h2load":
            found = re.search(r"(\d+) succeeded, 0 failed, 0 errored, 0 timeout", measured.out)
            return int(found.group(1)) if found else 0
        if self.name == "ghz":
            return json.loads(measured.out)["statusCodeDistribution"].get("OK", 0)
        return int(measured.out.strip() or 0)


def run_once(client, server, tls, shape, calls):
    """Returns (µs of CPU per call or None, the problem or None)."""
    connections, streams = SHAPES[shape]
    measured = bench.measure(client.command(server, tls, connections, streams, calls))
    try:
        ok = client.ok(measured)
    except (OSError, ValueError, KeyError) as unreadable:
        ok, measured.errors = 0, measured.errors + f"\n{type(unreadable).__name__}: {unreadable}"
    if measured.exit != 0 or ok != calls:
        said = " / ".join((measured.errors.strip() or measured.out.strip()).splitlines()[-3:])
        return None, f"exit {measured.exit}, {ok} of {calls} calls ok: {said[-200:]}"
    return measured.cpu / calls * 1e6, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--clients", default="plimsoll,h2load,ghz,grpc.aio")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="connections x streams")
    parser.add_argument("--links", default="plaintext,tls")
    parser.add_argument("--certs", help="folder with ca.crt, server.crt, server.key (default: made afresh)")
    parser.add_argument("--quick", action="store_true", help="two repetitions with a quarter of the calls")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed or a row is invalid")
    parser.add_argument("--json", metavar="FILE", help="write every repetition's figures")
    args = parser.parse_args()
    bench.warn_if_busy()
    reps, fraction = (2, 4) if args.quick else (args.reps, 1)
    servers, clients, shapes, links = (
        value.split(",") for value in (args.servers, args.clients, args.shapes, args.links)
    )
    for given, known in ((servers, SERVERS), (shapes, list(SHAPES)),
                         (clients, ["plimsoll", "h2load", "ghz", "grpc.aio"]), (links, ["plaintext", "tls"])):
        for word in given:
            if word not in known:
                parser.error(f"unknown '{word}': expected one of {', '.join(known)}")

    costs, wrong = {}, {}
    with bench.Scratch() as scratch:
        certs = bench.pathlib.Path(args.certs) if args.certs else None
        if "tls" in links and not certs:
            certs = bench.make_certificates(scratch / "certs")
        crew = [Client(name, scratch, certs) for name in clients]
        for rep in range(reps):
            for name in servers:
                for link in links:
                    tls = link == "tls"
                    with start(name, tls, certs) as server:
                        for shape in shapes:
                            # The order rotates with each repetition.
                            turn = rep % len(crew)
                            for client in crew[turn:] + crew[:turn]:
                                key = (client.name, name, link, shape)
                                if len(wrong.get(key, [])) == 2:
                                    continue
                                calls = CALLS.get((client.name, name)) or CALLS[client.name]
                                cost, problem = run_once(client, server, tls, shape, calls // fraction)
                                if problem:
                                    wrong.setdefault(key, []).append(problem)
                                else:
                                    costs.setdefault(key, []).append(cost)
            print(f"repetition {rep + 1} of {reps} done", file=sys.stderr)
    missed = report(reps, servers, clients, shapes, links, costs, wrong)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            rows = [dict(zip(("client", "server", "link", "shape"), key), cpu_us_per_call=cost) for key, cost in costs.items()]
            json.dump({"machine": bench.machine(), "rows": rows, "invalid": [[*key, said] for key, said in wrong.items()]}, file, indent=1)
    return 1 if args.gate and (missed or wrong) else 0


def format_ratio(ratio):
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def report(reps, servers, clients, shapes, links, costs, wrong):
    """Prints the table and returns the number of missed goals."""
    peers = [name for name in clients if name != "plimsoll"]
    print(f"\ngRPC unary calls, closed loop, medians of {reps} interleaved repetitions; {bench.machine()}")
    print("µs of client CPU per call, and how many times more calls Plimsoll makes in a CPU-second (lowest–highest repetition; goal)\n")
    rows, missed, met = [], 0, 0
    for name in servers:
        for link in links:
            for shape in shapes:
                ours = costs.get(("plimsoll", name, link, shape))
                row = [name, link, shape.replace("x", "×"), f"{bench.median(ours):.2f} µs" if ours else "invalid"]
                for peer in peers:
                    theirs = costs.get((peer, name, link, shape))
                    if not theirs:
                        row.append("invalid")
                        continue
                    cell = f"{bench.median(theirs):.2f} µs"
                    if ours:
                        ratio = bench.median(theirs) / bench.median(ours)
                        each = [b / a for a, b in zip(ours, theirs)]
                        cell += f" = {format_ratio(ratio)}× ({format_ratio(min(each))}–{format_ratio(max(each))}"
                        goal = GOALS.get((peer, name, shape))
                        if goal:
                            held = ratio >= goal
                            met, missed = met + held, missed + (not held)
                            cell += f"; ≥ {goal} {'met' if held else 'MISSED'}"
                        cell += ")"
                    row.append(cell)
                rows.append(row)
    bench.print_table(["server", "link", "shape", "plimsoll", *peers], rows)
    for key, said in wrong.items():
        print(f"\ninvalid: {' '.join(key)}: {said[-1]}")
    print(f"\ngoals: {met} met, {missed} missed")
    return missed


if __name__ == "__main__":
    sys.exit(main())
