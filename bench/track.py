#!/usr/bin/env python3
"""False alarms and power of `plimsoll track`, live: the same service twice, and one that is slower by a known amount.

The service answers after half a millisecond of sleep and some work, in Python, and burns as much more CPU time or sleeps
as much longer as it is told. Each comparison is a whole `plimsoll track` on two commands: it starts, restarts, measures
and judges. What share of the comparisons was called slower is printed as a table, with the time they took.

    bench/track.py                            10 comparisons of each kind
    bench/track.py --count 200 --kinds same   a long A/A
    bench/track.py --rate 1000 --budget 3m

The exit code is 1 if more than one unchanged service in 200 (at least one) is called slower. How many slower ones are
found depends on the machine, and is only printed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import side_by_side as bench

SERVICE = '''
import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sleep_s, rounds = float(sys.argv[1]) / 1e6, int(sys.argv[2])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(sleep_s)
        n = 0
        for i in range(rounds):
            n += i
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

    def log_message(self, *words):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
'''
SLEEP_US, ROUNDS = 500, 10_000
# Sleep in microseconds and rounds of work of the new version. The work is most of the service's CPU time.
KINDS = {
    "same": (SLEEP_US, ROUNDS),
    "more CPU": (SLEEP_US, int(ROUNDS * 1.1)),
    "longer": (int(SLEEP_US * 1.5), ROUNDS),
}


def compare(folder, kind, number, arguments):
    """Runs one comparison; returns its record and the seconds that it took."""
    program = folder / "service.py"
    program.write_text(SERVICE)
    serve = lambda sleep, rounds: f"exec {sys.executable} {program} {sleep} {rounds}"
    out = folder / f"{kind.replace(' ', '-')}-{number}"
    begin = time.monotonic()
    done = subprocess.run(
        [bench.plimsoll(), "track", "--old", serve(SLEEP_US, ROUNDS), "--new", serve(*KINDS[kind]), "http://{address}/",
         "--rate", f"{arguments.rate}/s", "--connections", "8", "--budget", arguments.budget, "--out", out, "--json",
         "--quiet"],
        stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 90, 99):
        sys.exit(f"{kind}: plimsoll track ended with {done.returncode}")
    return json.loads(done.stdout), time.monotonic() - begin


def change(record, metric):
    """Returns the interval of a metric's change as text."""
    for one in record["comparison"]["changes"]:
        if one["metric"] == metric and one["low_percent"] is not None:
            return f"{one['low_percent']:+.1f} to {one['high_percent']:+.1f} %"
    return "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10, help="comparisons of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kinds, of: " + ", ".join(KINDS))
    parser.add_argument("--rate", type=int, default=400, help="calls a second, of both versions together")
    parser.add_argument("--budget", default="1m", help="the longest load of a comparison")
    arguments = parser.parse_args()
    table = []
    false_alarms = 0
    bench.warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.kinds.split(","):
            counts = {"not_slower": 0, "slower": 0, "undecided": 0}
            spent = 0.0
            for number in range(arguments.count):
                record, seconds = compare(pathlib.Path(folder), kind, number, arguments)
                counts[record["verdict"]] += 1
                spent += seconds
                print(f"{kind} {number + 1}: {record['verdict']}, p99 {change(record, 'p99')}, "
                      f"server CPU {change(record, 'server_cpu')}, {seconds:.0f} s", file=sys.stderr)
            table.append([kind, arguments.count, *counts.values(), f"{spent / arguments.count:.0f}"])
            if kind == "same":
                false_alarms = counts["slower"]
    print("| new version | comparisons | not slower | SLOWER | not decided | seconds each |")
    print("|---|---|---|---|---|---|")
    for row in table:
        print("| " + " | ".join(map(str, row)) + " |")
    return 1 if false_alarms > max(1, arguments.count // 200) else 0


if __name__ == "__main__":
    sys.exit(main())
