#!/usr/bin/env python3
"""Searches of servers whose load line is known: how near `plimsoll find` comes, and how often its bounds hold it.

`plimsoll serve known` serves so many requests at a time. With a constant service time and evenly spaced arrivals it
carries exactly that number divided by the service time. With exponential service times and Poisson arrivals the line is
computed: the highest rate at which at least half of simulated trials, as long as the one that confirms a line, meet
the objective. Each search begins at a fifth of the line, so that it has to find it, and has --budget seconds.

    bench/search.py                                       20 searches of 60 s, each server in turn
    bench/search.py --searches 40 --condition 'busy 4'    beside four busy loops
    bench/search.py --table-only

Conditions are those of bench/sealed.py. Each search is a line of --results, so an interrupted measurement resumes where
it stopped.
"""

import argparse
import collections
import functools
import heapq
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

import sealed
import side_by_side as bench

Known = collections.namedtuple("Known", "name places service_s law arrivals limit_s")
SERVERS = (
    Known("20 x 100 ms", 20, 0.100, "constant", "constant", 0.300),
    Known("4 x 5 ms", 4, 0.005, "constant", "constant", 0.050),
    Known("1 x 1 ms", 1, 0.001, "constant", "constant", 0.025),
    Known("20 x 20 ms, exponential", 20, 0.020, "exponential", "poisson", 0.120),
)
# Share of the budget that the confirming trial takes, about.
CONFIRM_SHARE = 0.15
# Simulated trials for each rate.
SIMULATED_TRIALS = 60
# A line is accurate if it is within this share of the true one.
ACCURACY = 0.03


def law_text(server):
    key = "delay" if server.law == "constant" else "mean"
    service = f'{{ law = "{server.law}", {key} = "{server.service_s * 1000:g}ms" }}'
    return f'law = "capacity"\nplaces = {server.places}\nservice = {service}\n'


def plan_text(server, address, rate, budget_s):
    return (
        f'target = "http://{address}"\n[call.http]\n'
        f'[load]\nrate = "{rate:g}/s"\narrivals = "{server.arrivals}"\nconnections = {max(40, round(rate))}\n'
        f'[objective]\np95 = "< {server.limit_s * 1000:g}ms"\n'
        f'[find]\nbudget = "{budget_s:g}s"\n'
    )


def meets(server, rate, seconds, seed):
    """Returns whether the p95 of a simulated trial at `rate` is below the limit."""
    draw = random.Random(seed)
    free_at = [0.0] * server.places
    now, responses = 0.0, []
    while now < seconds:
        now += draw.expovariate(rate)
        start = max(now, heapq.heappop(free_at))
        end = start + draw.expovariate(1 / server.service_s)
        heapq.heappush(free_at, end)
        responses.append(end - now)
    return statistics.quantiles(responses, n=20)[-1] < server.limit_s


@functools.cache
def true_line(server, budget_s):
    """Returns the load line in arrivals per second."""
    capacity = server.places / server.service_s
    if server.law == "constant":
        return capacity
    low, high = 0.5 * capacity, 1.1 * capacity
    while high - low > 0.002 * capacity:
        rate = (low + high) / 2
        met = sum(meets(server, rate, budget_s * CONFIRM_SHARE, seed) for seed in range(SIMULATED_TRIALS))
        low, high = (rate, high) if met * 2 >= SIMULATED_TRIALS else (low, rate)
    return low


def search(program, server, budget_s, folder):
    """Makes one search and returns its result."""
    line = true_line(server, budget_s)
    (folder / "law.toml").write_text(law_text(server), encoding="utf-8")
    envelope, out = folder / "envelope.jsonl", folder / "search"
    serve = [program, "serve", "known", "--law", folder / "law.toml", "--envelope", envelope, "--listen", "127.0.0.1:0"]
    before = os.getloadavg()[0]
    with bench.Server(serve) as served:
        plan = folder / "plan.toml"
        plan.write_text(plan_text(server, served.address, line / 5, budget_s), encoding="utf-8")
        done = bench.measure([program, "find", plan, "--out", out, "-q"], timeout=budget_s * 3 + 60)
    record = out / "search.json"
    if not record.exists():
        return {"error": f"find ended with {done.exit}: {done.errors.strip()}"}
    found = json.loads(record.read_text(encoding="utf-8"))["finding"] or {}
    return {
        "true": line,
        "load_average": [before, os.getloadavg()[0]],
        "exit": done.exit,
        "seconds": done.wall,
        "line": found.get("line_per_s"),
        "low": found.get("low_per_s"),
        "high": found.get("high_per_s"),
        "confirmed": found.get("confirmed", False),
        "limit": found.get("limit"),
        "said": done.out.strip().splitlines()[:1],
    }


def holds(result):
    """Returns whether the bounds contain the true line; a bound that was not found excludes nothing."""
    return (result["low"] or 0) <= result["true"] <= (result["high"] or float("inf"))


def is_accurate(result):
    return result["line"] is not None and abs(result["line"] / result["true"] - 1) <= ACCURACY


def print_table(lines):
    rows = []
    for condition in dict.fromkeys(line["condition"] for line in lines):
        for name in [server.name for server in SERVERS] + ["all"]:
            chosen = [line for line in lines if line["condition"] == condition and name in (line["server"], "all")]
            results = [line for line in chosen if "error" not in line]
            if not results:
                continue
            ratios = [result["line"] / result["true"] for result in results if result["line"]]
            widths = [(result["high"] - result["low"]) / result["true"] for result in results
                      if result["high"] and result["low"]]
            count = len(chosen)
            rows.append([
                condition, name, count, f"{statistics.mean(result['load_average'][1] for result in results):.1f}",
                f"{len(ratios)} of {count}",
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})" if ratios else "",
                f"{sum(is_accurate(r) and r['confirmed'] for r in results)} of {count}",
                f"{sum(map(holds, results))} of {count}",
                f"{statistics.median(widths):.1%}" if widths else "",
                f"{max(result['seconds'] for result in results):.0f} s",
            ])
    bench.print_table(
        ["condition", "server", "searches", "load average", "have a line", "line / true line", "within 3 % and confirmed",
         "bounds hold", "median width", "longest"],
        rows,
    )
    for line in lines:
        if "error" in line:
            print(f"- {line['condition']} #{line['number']}, {line['server']}: {line['error']}")
        elif not holds(line) or not is_accurate(line) or not line["confirmed"]:
            print(f"- {line['condition']} #{line['number']}, {line['server']}: true {line['true']:.1f}, line {line['line']}, "
                  f"{line['low']} to {line['high']}, confirmed {line['confirmed']}, limit {line['limit']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help="the plimsoll to measure [PLIMSOLL, or target/release]")
    parser.add_argument("--condition", action="append", help="quiet, 'bursts N%%' or 'busy N'; repeatable [quiet]")
    parser.add_argument("--searches", type=int, default=20, help="of each condition, those in --results included")
    parser.add_argument("--budget", type=float, default=60, help="seconds of a search")
    parser.add_argument("--until", metavar="HH:MM", help="begin no search after this time")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("search.jsonl"))
    parser.add_argument("--table-only", action="store_true", help="print the table of --results")
    arguments = parser.parse_args()
    if arguments.table_only:
        print_table(sealed.read_results(arguments.results))
        return
    program = str(pathlib.Path(arguments.program).resolve()) if arguments.program else bench.plimsoll()
    if not os.access(program, os.X_OK):
        parser.error(f"{program}: no such program: name the plimsoll to measure")
    print(bench.machine())
    print(subprocess.run([program, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()[0])
    # Exits through the `with` blocks, which stop servers and loops.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    for condition in [sealed.Condition(name) for name in arguments.condition or ["quiet"]]:
        done = {line["number"] for line in sealed.read_results(arguments.results) if line["condition"] == condition.name}
        with condition:
            for number in range(arguments.searches):
                if arguments.until and time.strftime("%H:%M") >= arguments.until:
                    break
                if number in done:
                    continue
                condition.check()
                server = SERVERS[number % len(SERVERS)]
                with bench.Scratch() as folder:
                    result = search(program, server, arguments.budget, folder)
                result = {"condition": condition.name, "number": number, "server": server.name, **result}
                with arguments.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                print(f"{condition.name} #{number} {server.name}: {result.get('error') or result['said']}", flush=True)
    print()
    print_table(sealed.read_results(arguments.results))


if __name__ == "__main__":
    main()
