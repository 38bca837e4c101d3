#!/usr/bin/env python3
"""Accuracy of load generators: each measures `plimsoll serve known`, whose delays follow the same laws.

The delays of the server are drawn from a seed that it has committed to before the first request; its envelope says
afterwards what each request took from its arrival to its answer. Every tool is asked for the same rate for the same
time, with the flags that its own documentation recommends for an open loop, and gets its own server and seed.
The error of a percentile is the printed value minus the true one, relative to the true one. Plimsoll's own runs are
also checked by `plimsoll assay`, which counts the intervals that contain the true value.

Tools differ in what they measure: h2load and vegeta count from when a request was really sent, Plimsoll from when it was
due. wrk has no rate, so it runs a closed loop and corrects its percentiles for the times that such a loop hides. Locust's
users and hey's workers wait for each answer before they send the next request.
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
# Connections of tools that send over HTTP/2, and of those that send over HTTP/1.1: one for each request in progress.
CONNECTIONS = 10
HTTP1_CONNECTIONS = 100


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


def oha(url, _folder, rate, seconds):
    printed = json.loads(subprocess.run(
        [bench.tool("oha"), "--no-tui", "--output-format", "json", "-q", str(rate), "--latency-correction",
         "-c", str(HTTP1_CONNECTIONS), "-z", f"{seconds}s", url],
        check=True, stdout=subprocess.PIPE,
    ).stdout)
    return {percent: printed["latencyPercentiles"][f"p{percent:g}"] * 1_000_000 for percent in PERCENTILES}


def hey(url, _folder, rate, seconds):
    # -q is the rate of each of the -c workers.
    workers = math.gcd(rate, HTTP1_CONNECTIONS)
    printed = subprocess.run(
        [bench.tool("hey"), "-c", str(workers), "-q", f"{rate // workers}", "-z", f"{seconds}s", url],
        check=True, stdout=subprocess.PIPE,
    ).stdout.decode()
    found = {}
    for line in printed.splitlines():
        words = line.split()
        if len(words) == 4 and words[1] == "in" and words[3] == "secs":
            found[float(words[0].rstrip("%"))] = float(words[2]) * 1_000_000
    return {percent: found[percent] for percent in PERCENTILES}


def fortio(url, folder, rate, seconds):
    result = folder / "fortio.json"
    subprocess.run(
        [bench.tool("fortio"), "load", "-quiet", "-qps", str(rate), "-c", str(HTTP1_CONNECTIONS), "-t", f"{seconds}s",
         "-uniform", "-p", ",".join(f"{percent:g}" for percent in PERCENTILES), "-json", result, url],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    percentiles = json.loads(result.read_text(encoding="utf-8"))["DurationHistogram"]["Percentiles"]
    return {entry["Percentile"]: entry["Value"] * 1_000_000 for entry in percentiles}


K6_SCRIPT = """import http from 'k6/http';
export const options = {
  scenarios: { load: { executor: 'constant-arrival-rate', rate: %d, timeUnit: '1s', duration: '%ds',
                       preAllocatedVUs: %d, maxVUs: %d } },
  summaryTrendStats: [%s],
};
export default function () { http.get('%s'); }
"""


def k6(url, folder, rate, seconds):
    names = {percent: f"p({percent:g})" for percent in PERCENTILES}
    script, summary = folder / "load.js", folder / "k6.json"
    stats = ", ".join(f"'{name}'" for name in names.values())
    script.write_text(K6_SCRIPT % (rate, seconds, HTTP1_CONNECTIONS, 10 * HTTP1_CONNECTIONS, stats, url), encoding="utf-8")
    subprocess.run(
        [bench.tool("k6"), "run", "--quiet", "--no-usage-report", "--log-output", "none", "--summary-export", summary, script],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    metric = json.loads(summary.read_text(encoding="utf-8"))["metrics"]["http_req_duration"]
    return {percent: metric[name] * 1000 for percent, name in names.items()}


def ghz(url, _folder, rate, seconds):
    address = url.removeprefix("http://").rstrip("/")
    printed = json.loads(subprocess.run(
        [bench.tool("ghz"), "--insecure", "--proto", bench.SCORE_PROTO, "--call", bench.METHOD,
         "-d", json.dumps({"json": bench.VECTOR}), "--connections", str(CONNECTIONS), "-c", str(HTTP1_CONNECTIONS),
         "--rps", str(rate), "--async", "-z", f"{seconds}s", "--duration-stop", "wait", "-O", "json", address],
        check=True, stdout=subprocess.PIPE,
    ).stdout)
    found = {float(entry["percentage"]): entry["latency"] / 1000 for entry in printed["latencyDistribution"]}
    return {percent: found[percent] for percent in PERCENTILES}


LOCUST_USER = """from locust import FastHttpUser, constant_throughput, task


class User(FastHttpUser):
    wait_time = constant_throughput(%g)

    @task
    def get(self):
        self.client.get("/")
"""


def locust(url, folder, rate, seconds):
    script = folder / "locustfile.py"
    script.write_text(LOCUST_USER % (rate / HTTP1_CONNECTIONS), encoding="utf-8")
    printed = json.loads(subprocess.run(
        [bench.tool("locust"), "-f", script, "--headless", "--json", "--skip-log", "-u", str(HTTP1_CONNECTIONS),
         "-r", str(HTTP1_CONNECTIONS), "-t", f"{seconds}s", "--host", url.rstrip("/")],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ).stdout)
    (requests,) = printed
    times = sorted((float(ms) * 1000, count) for ms, count in requests["response_times"].items())
    total = sum(count for _, count in times)
    found = {}
    for percent in PERCENTILES:
        rank = max(math.ceil(percent / 100 * total), 1)
        for time_us, count in times:
            rank -= count
            if rank <= 0:
                found[percent] = time_us
                break
    return found


CLIENTS = {"plimsoll": plimsoll, "h2load": h2load, "ghz": ghz, "k6": k6, "vegeta": vegeta, "oha": oha, "fortio": fortio,
           "hey": hey, "wrk": wrk, "locust": locust}
VERSIONS = {"vegeta": ["-version"], "fortio": ["version"], "k6": ["version"], "hey": None}


def is_installed(name):
    return name == "plimsoll" or (bench.PEERS / "bin" / name).exists() or shutil.which(name) is not None


def version(name):
    arguments = VERSIONS.get(name, ["--version"])
    if arguments is None:
        return "does not print its version"
    program = bench.plimsoll() if name == "plimsoll" else bench.tool(name)
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
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
