#!/usr/bin/env python3
"""Accuracy of load generators: each measures `plimsoll serve known`, whose delays follow the same laws.

The delays of the server are drawn from a seed that it has committed to before the first request; its envelope says
afterwards what each request took from its arrival to its answer. Every tool is asked for the same rate for the same
time, with the flags that its own documentation recommends for an open loop, and gets a server and a seed of its own.
The error of a percentile is the printed value minus the true one, relative to the true one. Plimsoll's own runs are
also checked by `plimsoll assay`, which counts the intervals that contain the true value.

Tools differ in what they measure: h2load and vegeta count from when a request was really sent, Plimsoll from when it was
due. wrk has no rate, so it runs a closed loop and corrects its percentiles for the times that such a loop hides.
The true value is always the server's time for the requests that the tool sent.

    bench/assay.py                        all laws, with the tools that are installed
    bench/assay.py --rate 500 --seconds 5 --laws constant,bimodal --clients plimsoll,h2load
"""

import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys

import side_by_side as bench

LAWS = {
    "constant": 'law = "constant"\ndelay = "5ms"\n',
    "exponential": 'law = "exponential"\nmean = "5ms"\n',
    "bimodal": 'law = "bimodal"\nfast = "2ms"\nslow = "40ms"\nslow_share = 0.02\n',
    "lognormal": 'law = "lognormal"\nmedian = "4ms"\nsigma = 0.7\n',
    "pareto": 'law = "pareto"\nmin = "1ms"\nalpha = 1.5\nmax = "500ms"\n',
    "stalls": 'law = "stalls"\nevery = "2s"\nlength = "100ms"\nof = { law = "constant", delay = "2ms" }\n',
    "capacity": 'law = "capacity"\nplaces = 8\nservice = { law = "exponential", mean = "5ms" }\n',
    "collapse": 'law = "collapse"\nlimit = 20\nfactor = 10\nof = { law = "exponential", mean = "4ms" }\n',
}
PERCENTILES = (50.0, 90.0, 99.0)
CONNECTIONS = 10


def percentile(values, percent):
    """Returns the value at the rank that histograms use; `values` are sorted."""
    return values[max(math.ceil(percent / 100 * len(values)) - 1, 0)]


def true_times(envelope):
    """Returns the times from arrival to answer in µs, sorted; the middle where only a range is known."""
    times = []
    for line in envelope.read_text(encoding="utf-8").splitlines():
        request = json.loads(line).get("request")
        if request and "written_ns" in request:
            began, ended = request["written_ns"]
            times.append(((began + ended) / 2 - request["arrived_ns"]) / 1000)
    return sorted(times)


def plimsoll(url, folder, rate, seconds):
    subprocess.run(
        [bench.plimsoll(), "http", url, "--http-version", "2", "--connections", str(CONNECTIONS), "--rate", f"{rate}/s",
         "--duration", f"{seconds}s", "--warmup", "0s", "--out", folder / "run", "-q"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    response = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["total"]["response"]
    return {percent: response[f"p{percent:g}_us"] for percent in PERCENTILES}


def h2load(url, folder, rate, seconds):
    log = folder / "h2load.log"
    subprocess.run(
        [bench.tool("h2load"), "-t1", f"-c{CONNECTIONS}", "-m100", f"--rps={rate / CONNECTIONS:g}", f"-D{seconds}",
         f"--log-file={log}", url],
        check=True, stdout=subprocess.DEVNULL,
    )
    times = sorted(float(line.split("\t")[2]) for line in log.read_text(encoding="utf-8").splitlines())
    return {percent: percentile(times, percent) for percent in PERCENTILES}


def vegeta(url, folder, rate, seconds):
    vegeta_path = bench.tool("vegeta")
    results = folder / "vegeta.bin"
    subprocess.run(
        [vegeta_path, "attack", f"-rate={rate}", f"-duration={seconds}s", "-h2c", f"-output={results}"],
        check=True, input=f"GET {url}\n".encode(),
    )
    report = subprocess.run([vegeta_path, "report", "-type=json", results], check=True, stdout=subprocess.PIPE)
    latencies = json.loads(report.stdout)["latencies"]
    return {percent: latencies[f"{percent:g}th"] / 1000 for percent in PERCENTILES}


def wrk(url, _folder, _rate, seconds):
    printed = subprocess.run(
        [bench.tool("wrk"), "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", url],
        check=True, stdout=subprocess.PIPE,
    ).stdout.decode()
    units = {"us": 1, "ms": 1000, "s": 1_000_000}
    found = {}
    for line in printed.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].endswith("%"):
            number = words[1].rstrip("mus")
            found[float(words[0].rstrip("%"))] = float(number) * units[words[1][len(number):]]
    return {percent: found[percent] for percent in PERCENTILES}


CLIENTS = {"plimsoll": plimsoll, "h2load": h2load, "vegeta": vegeta, "wrk": wrk}
VERSIONS = {"plimsoll": "--version", "h2load": "--version", "vegeta": "-version", "wrk": "--version"}


def is_installed(name):
    return name == "plimsoll" or (bench.PEERS / "bin" / name).exists() or shutil.which(name) is not None


def version(name):
    program = bench.plimsoll() if name == "plimsoll" else bench.tool(name)
    done = subprocess.run([program, VERSIONS[name]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode(errors="replace").splitlines()[0]


def count_covered(run, envelope):
    """Returns how many of the run's intervals contain the true value, and how many there are."""
    done = subprocess.run([bench.plimsoll(), "assay", run, envelope, "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 90, 99):
        sys.exit(f"plimsoll assay ended with {done.returncode}")
    found = json.loads(done.stdout)
    return found["intervals_that_hold"], found["intervals"]


def measure(name, law, arguments):
    """Returns the printed and the true percentiles in µs, and the intervals that contain the true value."""
    with bench.Scratch() as folder:
        (folder / "law.toml").write_text(LAWS[law], encoding="utf-8")
        envelope = folder / "envelope.jsonl"
        serve = [bench.plimsoll(), "serve", "known", "--law", folder / "law.toml", "--envelope", envelope,
                 "--listen", "127.0.0.1:0"]
        with bench.Server(serve) as server:
            printed = CLIENTS[name](f"http://{server.address}/", folder, arguments.rate, arguments.seconds)
        times = true_times(envelope)
        true = {percent: percentile(times, percent) for percent in PERCENTILES}
        return printed, true, count_covered(folder / "run", envelope) if name == "plimsoll" else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laws", default=",".join(LAWS))
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--rate", type=int, default=1000, help="requests a second")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--json", type=pathlib.Path, help="write all figures to this file, too")
    arguments = parser.parse_args()
    laws, clients = arguments.laws.split(","), arguments.clients.split(",")
    for typed, known in ((laws, LAWS), (clients, CLIENTS)):
        unknown = [name for name in typed if name not in known]
        if unknown:
            parser.error(f"{', '.join(unknown)}: there are {', '.join(known)}")
    missing = [name for name in clients if not is_installed(name)]
    if missing:
        print(f"Not installed, and skipped: {', '.join(missing)} (`make setup` installs peers).\n")
    clients = [name for name in clients if name not in missing]
    print(bench.machine())
    bench.warn_if_busy()
    for name in clients:
        print(f"{name}: {version(name)}")
    print(f"\n{arguments.rate}/s for {arguments.seconds} s each; µs printed / true (error)\n")
    print("| law | tool | " + " | ".join(f"p{percent:g}" for percent in PERCENTILES) + " | intervals that contain the true value |")
    print("|---|---|" + "---|" * (len(PERCENTILES) + 1))
    errors, rows = {name: {percent: [] for percent in PERCENTILES} for name in clients}, []
    for law in laws:
        for name in clients:
            printed, true, holding = measure(name, law, arguments)
            cells = []
            for percent in PERCENTILES:
                error = (printed[percent] - true[percent]) / true[percent]
                errors[name][percent].append(abs(error))
                cells.append(f"{printed[percent]:.0f} / {true[percent]:.0f} ({error:+.1%})")
            shown = "" if holding is None else f"{holding[0]} of {holding[1]}"
            print(f"| {law} | {name} | {' | '.join(cells)} | {shown} |", flush=True)
            rows.append({"law": law, "tool": name, "printed_us": printed, "true_us": true, "intervals": holding})
    print("\nMedian of the errors, without their signs:")
    for name in clients:
        medians = (f"p{percent:g} {statistics.median(errors[name][percent]):.1%}" for percent in PERCENTILES)
        print(f"  {name}: {', '.join(medians)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
