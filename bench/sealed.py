#!/usr/bin/env python3
"""A sealed proof: many short runs against `plimsoll serve known`, which `plimsoll assay` compares with the true times.

A run has one of ten laws of delay, a rate from 200/s to 5,000/s, and HTTP/1.1, HTTP/2 or gRPC; all combinations occur
before one is repeated, in an order that `--seed` determines. The server draws the seed of its delays itself, and
commits to it before the first request. After a run its true p99 is known, and two objectives are judged from its records: a
limit of twice the true p99, which was met, and one of half of it, which was missed.

Conditions:
    quiet        nothing else is started; each run records the load average, which shows other work on the machine
    bursts N%    a process of real-time priority on each core takes N % of its time, 1 to 20 ms at once (as root)
    busy N       N processes that compute endlessly

    bench/sealed.py target/release/plimsoll --condition quiet --condition 'bursts 5%' --condition 'busy 4' --runs 300
    bench/sealed.py --table-only

Each run is a line of --results, so an interrupted measurement resumes where it stopped, and the table covers all lines.
Runs with an interval that excludes the true value, or with a wrongly judged objective, are kept in --keep.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

import side_by_side as bench

RATES = (200, 500, 1000, 2000, 5000)
PROTOCOLS = ("http/1.1", "http/2", "grpc")
LAWS = {
    "constant": 'law = "constant"\ndelay = "5ms"\n',
    "exponential": 'law = "exponential"\nmean = "5ms"\n',
    "bimodal": 'law = "bimodal"\nfast = "2ms"\nslow = "40ms"\nslow_share = 0.02\n',
    "lognormal": 'law = "lognormal"\nmedian = "4ms"\nsigma = 0.7\n',
    "pareto": 'law = "pareto"\nmin = "1ms"\nalpha = 1.5\nmax = "500ms"\n',
    "stalls": 'law = "stalls"\nevery = "1s"\nlength = "100ms"\nof = { law = "constant", delay = "2ms" }\n',
    "drift": 'law = "drift"\nto = 4\nover = "2s"\nof = { law = "exponential", mean = "3ms" }\n',
    "mixture": 'law = "mixture"\n[[parts]]\nshare = 0.9\nof = { law = "constant", delay = "1ms" }\n'
               '[[parts]]\nshare = 0.1\nof = { law = "lognormal", median = "20ms", sigma = 0.5 }\n',
    # Busy for four fifths of the time at {rate}/s.
    "capacity": 'law = "capacity"\nplaces = {places}\nservice = { law = "exponential", mean = "5ms" }\n',
    "collapse": 'law = "collapse"\nlimit = {limit}\nfactor = 10\nof = { law = "exponential", mean = "4ms" }\n',
}
NAMES = ("mean", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max")
# Shortest and longest burst, in seconds.
BURST_S = (0.001, 0.02)
Case = collections.namedtuple("Case", "law rate protocol")


def cases(seed):
    """Yields all combinations in random order, repeatedly, each time in another order."""
    order = random.Random(seed)
    combinations = [Case(*words) for words in itertools.product(LAWS, RATES, PROTOCOLS)]
    while True:
        order.shuffle(combinations)
        yield from combinations


def law_text(case):
    busy_at_once = case.rate * 0.005
    text = LAWS[case.law].replace("{places}", str(max(2, round(busy_at_once / 0.8))))
    return text.replace("{limit}", str(max(20, round(case.rate * 0.004 * 5))))


class Condition:
    """The other load of the machine during runs; its processes are stopped by their ids when the `with` block ends."""

    def __init__(self, name):
        self.name, self.pids = name, []
        bursts = re.fullmatch(r"bursts (\d+(?:\.\d+)?) ?%", name)
        busy = re.fullmatch(r"busy (\d+)", name)
        self.share = float(bursts.group(1)) / 100 if bursts else 0.0
        self.loops = int(busy.group(1)) if busy else 0
        if name != "quiet" and not bursts and not busy or self.share > 0.5 or self.loops > 64:
            sys.exit(f"--condition {name}: use quiet, 'bursts N%' (50 at most) or 'busy N' (64 at most)")

    def __enter__(self):
        for cpu in sorted(os.sched_getaffinity(0)) if self.share else ():
            self.fork(lambda ended, cpu=cpu: take_bursts(cpu, self.share, ended))
        for _ in range(self.loops):
            self.fork(lambda ended: compute_until(ended))
        return self

    def fork(self, work):
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                work(lambda: os.getppid() != parent)
            except PermissionError as error:
                print(f"--condition {self.name}: real-time priority: {error}: run this as root", file=sys.stderr)
            finally:
                os._exit(1)
        self.pids.append(pid)

    def check(self):
        """Exits if one of the processes has ended."""
        for pid in self.pids:
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.pids.remove(pid)
                sys.exit(f"--condition {self.name}: process {pid}, which is to keep the machine busy, has ended")

    def __exit__(self, *_):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def take_bursts(cpu, share, ended):
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    random.seed()
    while not ended():
        burst_s = random.uniform(*BURST_S)
        end = time.monotonic() + burst_s
        while time.monotonic() < end:
            pass
        time.sleep(burst_s * (1 - share) / share * random.uniform(0.5, 1.5))


def compute_until(ended):
    while not ended():
        for _ in range(1_000_000):
            pass


def load_command(program, case, address, seconds, run):
    load = ["--rate", f"{case.rate}/s", "--duration", f"{seconds:g}s", "--warmup", "0s", "--out", run, "-q"]
    if case.protocol == "grpc":
        call = ["grpc", f"grpc://{address}", "-m", bench.METHOD, "-d", json.dumps({"json": bench.VECTOR})]
        return [program, *call, "--connections", "4", *load]
    call = ["http", f"http://{address}/"]
    if case.protocol == "http/2":
        return [program, *call, "--http-version", "2", "--connections", "4", *load]
    # Enough connections for a stall of 100 ms, since each carries one request at a time.
    return [program, *call, "--connections", str(max(40, case.rate // 5)), *load]


def assay(program, run, envelope):
    done = subprocess.run([program, "assay", run, envelope, "--json"], capture_output=True, check=False)
    if done.returncode not in (0, 90, 99):
        raise RuntimeError(f"plimsoll assay ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return json.loads(done.stdout)


def verdicts(program, run, envelope, true_p99_us):
    """Returns how limits of twice and of half the true p99 are judged from the run, as `assay` does."""
    found = {}
    plan = run / "plan.toml"
    text = plan.read_text(encoding="utf-8")
    for name, factor in (("twice", 2), ("half", 0.5)):
        limit = f"{round(true_p99_us * factor * 1000)}ns"
        plan.write_text(f'{text}\n[objective]\np99 = "< {limit}"\n', encoding="utf-8")
        (found[name],) = assay(program, run, envelope)["objectives"]
    plan.write_text(text, encoding="utf-8")
    return found


def measure(program, case, seconds, folder):
    """Makes one run and returns its result; its files stay in `folder`."""
    (folder / "law.toml").write_text(law_text(case), encoding="utf-8")
    envelope, run = folder / "envelope.jsonl", folder / "run"
    serve = [program, "serve", "known", "--law", folder / "law.toml", "--envelope", envelope, "--listen", "127.0.0.1:0"]
    before = os.getloadavg()[0]
    with bench.Server(serve) as server:
        done = bench.measure(load_command(program, case, server.address, seconds, run))
    after = os.getloadavg()[0]
    result = {**case._asdict(), "seconds": seconds, "load_average": [before, after], "exit": done.exit}
    if done.exit not in (0, 90):
        raise RuntimeError(f"the load ended with {done.exit}: {done.errors.strip()}")
    found = assay(program, run, envelope)
    kept = ("basis", "calls", "compared", "disagreements", "valid", "falsely_valid", "server_late_p50_us",
            "server_late_max_us", "seed", "figures")
    result.update({key: found[key] for key in kept})
    true = {figure["name"]: figure["true_us"] for figure in found["figures"]}
    if "p99" in true:
        result["objectives"] = verdicts(program, run, envelope, sum(true["p99"]) / 2)
    return result


def is_off(result):
    wrong = any(judged["wrong"] for judged in result.get("objectives", {}).values())
    return wrong or any(figure["holds"] is False for figure in result["figures"])


def describe_misses(result):
    """Describes each interval that excludes the true value, and each wrongly judged objective."""
    for figure in result["figures"]:
        if figure["holds"] is False:
            [low, high], [true_low, true_high] = figure["instrument_us"], figure["true_us"]
            off = f"{low - true_high:.1f} µs above" if low > true_high else f"{true_low - high:.1f} µs below"
            yield f"{figure['name']} {low:.1f} to {high:.1f} µs, {off} {true_low:.1f} to {true_high:.1f}"
    for name, judged in result.get("objectives", {}).items():
        if judged["wrong"]:
            yield f"a limit of {name} the p99 judged {judged['verdict']}"


def share(part, whole):
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def median_width(results, name):
    widths = [figure["relative_width"] for result in results for figure in result["figures"]
              if figure["name"] == name and figure["relative_width"] is not None]
    return f"{statistics.median(widths):.1%}" if widths else "none"


def print_tables(lines):
    by_condition = collections.defaultdict(list)
    for line in lines:
        by_condition[line["condition"]].append(line)
    print("Intervals that contain the true value:\n")
    rows, judged_rows = [], []
    for condition, all_lines in by_condition.items():
        results = [line for line in all_lines if "error" not in line]
        cells = []
        for name in NAMES:
            holds = [figure["holds"] for result in results for figure in result["figures"]
                     if figure["name"] == name and figure["holds"] is not None]
            cells.append(f"{sum(holds)}/{len(holds)}")
        rows.append([condition, *cells])
        loads = [load for result in results for load in result["load_average"]]
        objectives = [result["objectives"] for result in results if "objectives" in result]
        twice = sum(found["twice"]["verdict"] == "met" for found in objectives)
        half = sum(found["half"]["verdict"] == "missed" for found in objectives)
        wrong = sum(judged["wrong"] for found in objectives for judged in found.values())
        judged_rows.append([
            condition, len(all_lines), len(all_lines) - len(results),
            f"{statistics.median(loads):.1f} ({min(loads):.1f} to {max(loads):.1f})" if loads else "",
            f"{median_width(results, 'p50')}, {median_width(results, 'p99')}",
            share(twice, len(objectives)), share(half, len(objectives)), wrong,
            sum(result["falsely_valid"] for result in results),
        ])
    bench.print_table(["condition", *NAMES], rows)
    print("\nWidths and objectives:\n")
    bench.print_table(
        ["condition", "runs", "failed", "load average", "median width p50, p99", "limit of 2 × p99 met",
         "limit of p99 / 2 missed", "wrong", "off and valid"],
        judged_rows,
    )
    print("\nIntervals that hold, by law:\n")
    rows = []
    for law in LAWS:
        cells = []
        for condition in by_condition:
            holds = [figure["holds"] for line in by_condition[condition] if line["law"] == law
                     for figure in line.get("figures", ()) if figure["holds"] is not None]
            cells.append(f"{sum(holds)}/{len(holds)}")
        rows.append([law, *cells])
    bench.print_table(["law", *by_condition], rows)
    off = [line for line in lines if "error" in line or is_off(line)]
    if off:
        print("\nRuns with a missed interval or a wrong verdict:\n")
    for line in off:
        words = line["error"] if "error" in line else "; ".join(describe_misses(line))
        where = f"{line['condition']} #{line['number']}: {line['law']}, {line['rate']}/s, {line['protocol']}"
        loads = line.get("load_average")
        load = f", load average {loads[1]:.1f}" if loads else ""
        print(f"- {where}{load}: {words}")


def read_results(path):
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help="the plimsoll to measure [PLIMSOLL, or target/release]")
    parser.add_argument("--condition", action="append", help="quiet, 'bursts N%%' or 'busy N'; repeatable [quiet]")
    parser.add_argument("--runs", type=int, default=300, help="of each condition, those in --results included")
    parser.add_argument("--seconds", type=float, default=2, help="length of a run")
    parser.add_argument("--seed", type=int, default=1, help="of the order of runs")
    parser.add_argument("--until", metavar="HH:MM", help="begin no run after this time")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("sealed.jsonl"))
    parser.add_argument("--keep", type=pathlib.Path, help="keep the files of runs that are off in this folder")
    parser.add_argument("--table-only", action="store_true", help="print the table of --results")
    arguments = parser.parse_args()
    if arguments.table_only:
        print_tables(read_results(arguments.results))
        return
    program = str(pathlib.Path(arguments.program).resolve()) if arguments.program else bench.plimsoll()
    if not os.access(program, os.X_OK):
        parser.error(f"{program}: no such program: name the plimsoll to measure")
    print(bench.machine())
    print(subprocess.run([program, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()[0])
    # Exits through the `with` blocks, which stop servers and loops.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    conditions = [Condition(name) for name in arguments.condition or ["quiet"]]
    for condition in conditions:
        done = {line["number"] for line in read_results(arguments.results) if line["condition"] == condition.name}
        with condition:
            for number, case in enumerate(itertools.islice(cases(arguments.seed), arguments.runs)):
                if arguments.until and time.strftime("%H:%M") >= arguments.until:
                    break
                if number in done:
                    continue
                condition.check()
                run_and_record(program, condition.name, number, case, arguments)
    print()
    print_tables(read_results(arguments.results))


def run_and_record(program, condition, number, case, arguments):
    with bench.Scratch() as folder:
        try:
            result = measure(program, case, arguments.seconds, folder)
        except RuntimeError as error:
            result = {**case._asdict(), "error": str(error)}
        result = {"condition": condition, "number": number, **result}
        with arguments.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        if "error" in result or is_off(result):
            words = result.get("error") or "; ".join(describe_misses(result))
            print(f"{condition} #{number} {case.law} {case.rate}/s {case.protocol}: {words}", flush=True)
            if arguments.keep:
                shutil.copytree(folder, arguments.keep / f"{condition.replace(' ', '-')}-{number}", dirs_exist_ok=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        # The timer of an interrupted run would keep this process alive for minutes.
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.cancel()
