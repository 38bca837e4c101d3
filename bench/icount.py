#!/usr/bin/env python3
"""Instructions per call of worker, driver and recorder over an in-memory network, under callgrind.

Time on a busy machine cannot show a change of 3 %; the number of instructions is the same in every run. The
figure per call is the difference between a long and a short load divided by the difference in calls, which
excludes startup and shutdown; the server is excluded, too. Each figure is compared with the record beside this
file, which also names the compiler, because another one generates other code.

    bench/icount.py             fails if a call takes over 3 % more than recorded
    bench/icount.py --bless     records the current figures
    bench/icount.py --build     only compiles the program

`make icount` calls it. CARGO and CARGO_FLAGS are those of the Makefile.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = ROOT / "bench" / "icount.json"
CASES = ("grpc", "grpc-open", "http2", "bolt")
SHORT, LONG = 10_000, 30_000
MAX_RATIO = 1.03


def build():
    """Builds the load program with function names; returns its path."""
    command = [*shlex.split(os.environ.get("CARGO", "cargo")), "rustc", *os.environ.get("CARGO_FLAGS", "").split()]
    command += ["--release", "-p", "plimsoll-protocols", "--bin", "icount"]
    command += ["--no-default-features", "--features", "icount"]
    command += ["--message-format=json-render-diagnostics", "--", "-C", "strip=none"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    made = [json.loads(line) for line in done.stdout.splitlines()]
    return [message["executable"] for message in made if message.get("executable")][-1]


def instructions(program, case, calls):
    """Returns the instructions of a load of `calls` calls, without those of the server."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    # The first option alone would begin with counting disabled.
    command += ["--toggle-collect=*icount*serve*", "--collect-atstart=yes", program, case, str(calls)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        sys.exit(f"icount: {shlex.join(command)} ended with status {done.returncode}:\n{done.stderr}")
    return int(found[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bless", action="store_true", help="record what calls take now")
    parser.add_argument("--build", action="store_true", help="only compile the program")
    options = parser.parse_args()
    if options.build:
        build()
        return
    if not shutil.which("valgrind"):
        sys.exit("icount: missing: valgrind. Install Debian's package of that name.")
    program = build()
    rustc = subprocess.run(["rustc", "--version"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    compiler = rustc.stdout.split()[1]
    def of_a_call(case):
        return (instructions(program, case, LONG) - instructions(program, case, SHORT)) / (LONG - SHORT)

    # Other work on the machine does not affect the counts.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(CASES, pool.map(of_a_call, CASES)))
    if options.bless:
        record = {"rustc": compiler, "instructions": {case: round(count, 1) for case, count in counts.items()}}
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    failed = False
    for case, count in counts.items():
        recorded = record["instructions"].get(case)
        if recorded is None:
            sys.exit(f"icount: {RECORD.name} has no {case}: record it (make icount BLESS=1)")
        failed |= count > MAX_RATIO * recorded
        print(f"{case:10} {count:8.1f} instructions a call, recorded {recorded:8.1f} ({count / recorded - 1:+.1%})")
    if compiler != record["rustc"]:
        sys.exit(f"icount: recorded with rustc {record['rustc']}, and this is {compiler}: record it again (make icount BLESS=1)")
    if failed:
        sys.exit(f"icount: more than {MAX_RATIO - 1:.0%} over the record: find out why, or record it (make icount BLESS=1)")


if __name__ == "__main__":
    main()
