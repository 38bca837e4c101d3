#!/usr/bin/env python3
"""gRPC streams side by side: messages per client CPU-second of Plimsoll, ghz and k6.

Every client makes the same calls to `plimsoll serve echo`, one after the other in every repetition:
server streaming (one message up, many down) and bidirectional (as many up as down). A
message counts once where it is sent and once where it is received. The figures are
medians over the repetitions; a row counts only if all its calls succeeded.
"""

import argparse
import json
import sys

import side_by_side as bench

ECHO_PROTO = bench.ROOT / "crates" / "plimsoll-protocols" / "proto" / "echo.proto"
SERVICE = "grpc.examples.echo.Echo"
METHODS = {"down": "ServerStreamingEcho", "both": "BidirectionalStreamingEcho"}
TEXT = "x" * 100
# Messages that a side sends on a call.
MESSAGES = 1000
CLIENTS = 10
CALLS = {"plimsoll": 2000, "ghz": 60, "k6": 60}
GOAL = 10

K6 = """
import { Client, Stream } from 'k6/net/grpc';
import { Counter } from 'k6/metrics';
const client = new Client();
client.load(['PROTOS'], 'echo.proto');
const received = new Counter('received');
const failed = new Counter('failed');
export const options = { scenarios: { streams: {
  executor: 'shared-iterations', vus: CLIENTS, iterations: CALLS, maxDuration: '2m' } } };
let connected = false;
export default () => {
  if (!connected) { client.connect('ADDRESS', { plaintext: true }); connected = true; }
  const stream = new Stream(client, 'METHOD');
  stream.on('data', () => received.add(1));
  stream.on('error', () => failed.add(1));
  for (let i = 0; i < UP; i++) { stream.write({ message: 'TEXT' }); }
  stream.end();
};
"""


def command(name, shape, address, calls, scratch, folder):
    method = f"{SERVICE}/{METHODS[shape]}"
    up = MESSAGES if shape == "both" else 1
    if name == "plimsoll":
        return [
            bench.plimsoll(), "grpc", f"grpc://{address}", "-m", method, "-d", json.dumps({"message": TEXT}),
            "--expect", MESSAGES, *(["--messages", up] if shape == "both" else []),
            "--clients", CLIENTS, "--calls", calls, "--out", folder, "--json", "-q",
        ]
    if name == "ghz":
        return [
            bench.tool("ghz"), "--proto", ECHO_PROTO, "--call", method, "-d", json.dumps({"message": TEXT}),
            *(["--stream-call-count", up] if shape == "both" else []),
            "-n", calls, "-c", CLIENTS, "--connections", 1, "-O", "json", "--insecure", address,
        ]
    script = K6
    for word, value in (("PROTOS", ECHO_PROTO.parent), ("CLIENTS", CLIENTS), ("CALLS", calls), ("ADDRESS", address),
                        ("METHOD", method), ("UP", up), ("TEXT", TEXT)):
        script = script.replace(word, str(value))
    (scratch / "streams.js").write_text(script, encoding="utf-8")
    return [
        bench.tool("k6"), "run", "--quiet", "--no-usage-report", "--log-output", "none",
        "--summary-export", scratch / "k6.json", scratch / "streams.js",
    ]


def problem_of(name, measured, calls, scratch):
    """Returns the problem of a run, or None."""
    wanted = calls * MESSAGES
    if measured.exit != 0:
        said = (measured.errors.strip() or measured.out.strip()).splitlines()
        return f"exit {measured.exit}: {' / '.join(said[-3:])[-200:]}"
    if name == "plimsoll":
        total = json.loads(measured.out)["runs"][0]["total"]
        received = total["messages"]["received"]
        return None if (total["ok"], received) == (calls, wanted) else f"{total['ok']} calls ok, {received} messages"
    if name == "ghz":
        said = json.loads(measured.out)
        ok = said["statusCodeDistribution"].get("OK", 0)
        return None if ok == calls else f"{ok} of {calls} calls ok; {said.get('errorDistribution')}"
    with open(scratch / "k6.json", encoding="utf-8") as file:
        metrics = json.load(file)["metrics"]
    received = metrics.get("received", {}).get("count", 0)
    failed = metrics.get("failed", {}).get("count", 0)
    return None if (received, failed) == (wanted, 0) else f"{received} messages, {failed} streams failed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--clients", default="plimsoll,ghz,k6")
    parser.add_argument("--quick", action="store_true", help="two repetitions with a quarter of the calls")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed or a row is invalid")
    args = parser.parse_args()
    names = args.clients.split(",")
    for name in names:
        if name not in CALLS:
            parser.error(f"unknown '{name}': expected one of {', '.join(CALLS)}")
    bench.warn_if_busy()
    reps, fraction = (2, 4) if args.quick else (args.reps, 1)

    rates, wrong = {}, {}
    with bench.Scratch() as scratch, bench.Server(
        [bench.plimsoll(), "serve", "echo", "--messages", MESSAGES, "--listen", "127.0.0.1:0"]
    ) as server:
        for rep in range(reps):
            for shape in METHODS:
                # The order rotates with each repetition.
                turn = rep % len(names)
                for name in names[turn:] + names[:turn]:
                    if len(wrong.get((name, shape), [])) == 2:
                        continue
                    calls = CALLS[name] // fraction
                    folder = scratch / f"run-{shape}-{rep}"
                    measured = bench.measure(command(name, shape, server.address, calls, scratch, folder))
                    problem = problem_of(name, measured, calls, scratch)
                    if problem:
                        wrong.setdefault((name, shape), []).append(problem)
                        continue
                    messages = calls * (MESSAGES + (MESSAGES if shape == "both" else 1))
                    rates.setdefault((name, shape), []).append(messages / measured.cpu)
            print(f"repetition {rep + 1} of {reps} done", file=sys.stderr)

    print(f"\ngRPC streams of {MESSAGES} messages, {CLIENTS} at a time on as few connections as the client makes, "
          f"medians of {reps} interleaved repetitions; {bench.machine()}")
    print("messages per client-CPU-second, and how many times more Plimsoll's are (lowest–highest repetition; goal)\n")
    rows, missed = [], 0
    for shape, method in METHODS.items():
        ours = rates.get(("plimsoll", shape))
        row = [method, f"{bench.median(ours):,.0f}" if ours else "invalid"]
        for name in (name for name in names if name != "plimsoll"):
            theirs = rates.get((name, shape))
            if not theirs:
                row.append("invalid")
                continue
            cell = f"{bench.median(theirs):,.0f}"
            if ours:
                ratio = bench.median(ours) / bench.median(theirs)
                each = [a / b for a, b in zip(ours, theirs)]
                held = ratio >= GOAL
                missed += not held
                cell += f" = 1/{ratio:.0f} ({min(each):.0f}–{max(each):.0f}; ≥ {GOAL} {'met' if held else 'MISSED'})"
            row.append(cell)
        rows.append(row)
    bench.print_table(["method", *names], rows)
    for key, said in wrong.items():
        print(f"\ninvalid: {' '.join(key)}: {said[-1]}")
    return 1 if args.gate and (missed or wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
