#!/usr/bin/env python3
"""The tax of a link: what proxies, TLS and mutual TLS add to a call, for each protocol, on this machine.

Each protocol has three ladders. The first rung of each is the bare link; the others add TLS, mutual TLS, or one of the
proxies that are installed here, with plaintext, TLS or mutual TLS on both of its sides. Plimsoll starts all servers and
proxies, with one worker each, and restarts them for every replicate. The bill is printed as Markdown, with the versions;
the configurations are in the ladders' folders (`proxies/`), which --keep keeps.

With --closure, chains of two to four layers are drawn at random that were not measured, then measured, and compared with
what `plimsoll price` predicted for them. With --same, the same proxy is two rungs of a ladder, several times: how often
is a difference claimed where there is none?

    bench/tax.py                                       every protocol and proxy, 30 s a ladder
    bench/tax.py --protocols grpc --proxies haproxy,nginx --seconds 60
    bench/tax.py --closure 20                          twenty chains, with their predictions
    bench/tax.py --same 20 --proxies nginx
    bench/tax.py --keep tax                            started again, it measures only what is missing there

A ladder that fails or hangs is reported, and the others go on: the last lines list all failures. The exit code is 1 if
there were any, if fewer than 95 % of the chains were within the interval or within 5 % of the prediction, or if more than
10 % of the comparisons of a proxy with itself claimed a difference.
"""

import argparse
import contextlib
import datetime
import functools
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import side_by_side as bench

TOKENS = '{\\"model\\": \\"m\\", \\"stream\\": true, \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"x\\"}]}'
# The call of each protocol, the words of its server, and what a proxy must understand of it. Versions are given, because
# others would be negotiated over TLS.
CALLS = {
    "http": ('[call.http]\nversion = "1.1"\npath = "/bytes/1KiB"\n', ["http"], "HTTP/1.1"),
    "http2": ('[call.http]\nversion = "2"\npath = "/bytes/1KiB"\n', ["http"], "HTTP/2"),
    "grpc": (
        '[call.grpc]\nmethod = "score.ScoreService/GetScore"\nmessage = { json = "[0.1, 0.2, 0.3]" }\n',
        ["score"],
        "gRPC",
    ),
    "llm": (
        f'[call.http]\nversion = "1.1"\nmethod = "POST"\npath = "/v1/chat/completions"\nstream = "openai"\nbody = "{TOKENS}"\n',
        ["llm", "--token-delay", "2ms"],
        "HTTP/1.1",
    ),
}
# Those that are measured unless others are named.
DEFAULT_PROTOCOLS = ["http", "http2", "grpc"]
# Proxies that come in pairs, and those that carry one protocol's calls alone, as no obstacle of a single one says.
PAIRED = {"envoy-tunnel"}
ONLY_FOR = {"litellm": "llm"}
# An answer of tokens occupies its connection over HTTP/1.1 for as long as it streams.
CONNECTIONS = {"llm": 40}
METRICS = {
    "p50": "p50",
    "first_token": "first token",
    "client_cpu": "client CPU",
    "server_cpu": "server CPU",
    "sidecar_cpu": "proxy CPU",
}
SECURITY = {"off": "", "server": ", TLS", "mutual": ", mutual TLS"}
# Names of TLS layers in chains, and in plans.
TLS = {"tls": "server", "mtls": "mutual"}
# A prediction counts as right within this share of the measured value, whatever its interval.
CLOSE = 0.05
SEED = 1
# Besides its load, a ladder starts servers and proxies up to twenty times.
START_SECONDS = 900
# After a signal, a ladder writes what it has.
STOP_SECONDS = 60


class NotMeasuredError(Exception):
    """Why something was not measured."""


def plimsoll_json(*arguments):
    done = subprocess.run([bench.plimsoll(), *arguments, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotMeasuredError(f"plimsoll {' '.join(map(str, arguments))}: {last_line(done.stderr)}")
    return json.loads(done.stdout)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


@functools.cache
def obstacle(proxy, wire, listen, upstream):
    """Returns why a proxy can't carry calls with this security on both sides, or None."""
    command = [bench.plimsoll(), "proxies", "--config", proxy, "--carry", wire, "--tls", listen, "--upstream-tls", upstream]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else last_line(done.stderr)


def stands_alone(proxy, protocol):
    """Returns whether one instance of a proxy can be a rung with plaintext on both sides."""
    if proxy in PAIRED or ONLY_FOR.get(proxy, protocol) != protocol:
        return False
    return obstacle(proxy, CALLS[protocol][2], "off", "off") is None


def rung(name, **settings):
    text = ", ".join(f'{axis} = "{value}"' for axis, value in {"tls": "off", **settings}.items())
    return f'{{ name = "{name}", {text} }}'


class Study:
    """The ladders of one invocation, in folders below `root`."""

    def __init__(self, root, arguments):
        self.root = root
        self.rate = arguments.rate
        self.seconds = arguments.seconds
        self.end = None if arguments.budget is None else time.monotonic() + arguments.budget * 60
        self.failures = []

    def fail(self, what):
        self.failures.append(what)
        print(f"\nFAILED: {what}", flush=True)

    def plan(self, protocol, rungs):
        call, server, _ = CALLS[protocol]
        connections = f"connections = {CONNECTIONS[protocol]}\n" if protocol in CONNECTIONS else ""
        listed = ",\n  ".join(rungs)
        return (
            f'name = "{protocol}"\n{call}[load]\nrate = "{self.rate}/s"\nduration = "{self.seconds}s"\n{connections}'
            f'[ladder]\nserve = {json.dumps(server)}\nparts = ["none"]\nrungs = [\n  {listed},\n]\n'
        )

    def measure(self, name, protocol, rungs):
        """Runs a ladder, unless its folder has it already; returns folder and record."""
        folder = self.root / name
        plan, failed = folder.with_suffix(".toml"), folder.with_suffix(".failed")
        text = self.plan(protocol, rungs)
        is_same = plan.exists() and plan.read_text(encoding="utf-8") == text
        if not failed.exists() and (record := complete_record(folder)):
            if is_same:
                return folder, record
            raise NotMeasuredError(f"{name}: {folder} has a ladder of another plan: give --keep another folder")
        limit = START_SECONDS + 2 * self.seconds
        if self.end is not None:
            limit = min(limit, self.end - time.monotonic())
        if limit <= 0:
            raise NotMeasuredError(f"{name}: the time of --budget is over")
        shutil.rmtree(folder, ignore_errors=True)
        plan.write_text(text, encoding="utf-8")
        # What ends this script leaves the mark, so that the ladder is measured again.
        failed.write_text("it was not finished\n", encoding="utf-8")
        command = [bench.plimsoll(), "ladder", plan, "--out", folder, "--progress", "none"]
        status, said = run_for(command, limit)
        record = complete_record(folder)
        if status == 0 and record:
            failed.unlink()
            return folder, record
        why = f"{name}: {last_line(said) if status is not None else f'not finished after {limit:.0f} s'}"
        failed.write_text(f"{why}\n{said}", encoding="utf-8")
        if status is None or not record:
            raise NotMeasuredError(why)
        # Some rungs were measured; the others are in `skipped`.
        self.fail(why)
        return folder, record


def complete_record(folder):
    """Returns the record of a ladder that was measured to its end, or None."""
    try:
        record = json.loads((folder / "ladder.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return None if record["interrupted"] else record


def run_for(command, limit):
    """Runs a command for at most `limit` seconds; returns its status (None: it was stopped), and what it wrote to stderr."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=limit)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    except KeyboardInterrupt:
        # The ladder got the signal, too.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_SECONDS)
        process.kill()
        raise
    try:
        _, said = process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
    return None, said


def priced(folder, chain=()):
    """Returns the metrics of each layer, or of the chain, that `plimsoll price` prints, by name and key."""
    more = ["--chain", ",".join(chain)] if chain else []
    said = plimsoll_json("price", folder, *more)
    return {
        "+".join(one["chain"]): {cost["metric"]: cost for cost in one["metrics"]} for one in said["predictions"]
    }


def show(cost):
    if cost is None:
        return "–"
    half = max(cost["high"] - cost["added"], cost["added"] - cost["low"])
    return f"{cost['added']:+.1f} ± {half:.1f} µs"


def failed_calls(record):
    """Returns a line for each rung of which calls failed."""
    lines = []
    for measured in record["rungs"]:
        errors = sum(slice["errors"] for slice in measured["slices"])
        calls = errors + sum(slice.get("ok") or 0 for slice in measured["slices"])
        if errors:
            lines.append(f"{measured['name']}: {errors} of {calls} calls failed")
    return lines


def bill(study, protocol, proxies):
    """Measures the layers of a protocol and prints them; returns the plaintext ladder's folder and its proxies."""
    rows, notes, prices = [], [], None
    for security, suffix in SECURITY.items():
        rungs = [rung("bare")]
        if security == "off":
            rungs += [rung("tls", tls="server"), rung("mtls", tls="mutual")]
        rungs += [rung(f"{proxy}{suffix}", via=proxy, tls=security) for proxy in proxies]
        if len(rungs) < 2:
            continue
        name = f"{protocol}-{security}"
        try:
            folder, record = study.measure(name, protocol, rungs)
            costs_by_layer = priced(folder)
        except NotMeasuredError as why:
            study.fail(str(why))
            continue
        if security == "off":
            prices = folder, [measured["name"] for measured in record["rungs"] if measured["name"] in proxies]
        versions = {measured["name"]: measured.get("proxy", "") for measured in record["rungs"]}
        rows += [(layer, costs, versions.get(layer, "")) for layer, costs in costs_by_layer.items()]
        notes += [f"{skipped['name']} was not measured: {skipped['reason']}" for skipped in record.get("skipped", [])]
        for line in failed_calls(record):
            study.fail(f"{name}: {line}")
    shown = {key: title for key, title in METRICS.items() if any(key in costs for _, costs, _ in rows)}
    print(f"\n### {protocol}, {study.rate} calls/s\n")
    print(f"| layer | {' | '.join(shown.values())} | proxy |\n|---|{'---|' * (len(shown) + 1)}")
    for name, costs, version in rows:
        print(f"| {name} | {' | '.join(show(costs.get(metric)) for metric in shown)} | {version} |")
    for note in notes:
        print(f"\n{note}")
    sys.stdout.flush()
    return prices


def draw_chain(draw, proxies):
    """Draws a chain of two to four layers: proxies, with TLS or mutual TLS before some of them."""
    while True:
        chain = []
        for _ in range(draw.choice((1, 2))):
            chain += draw.choice(([], ["tls"], ["mtls"])) + [draw.choice(proxies)]
        if 2 <= len(chain) <= 4:
            return chain


def legs_of(chain):
    """Returns a chain's proxies, and how its legs are secured: TLS before the first proxy is the load's, other TLS is
    between proxies."""
    proxies = [layer for layer in chain if layer not in TLS]
    legs = {"load": "off", "between": "off"}
    leg = "load"
    for layer in chain:
        if layer in TLS:
            legs[leg] = TLS[layer]
        else:
            leg = "between"
    return proxies, legs


def can_be_measured(chain, wire):
    proxies, legs = legs_of(chain)
    ends = [legs["load"]] + [legs["between"]] * (len(proxies) - 1) + ["off"]
    return all(obstacle(proxy, wire, *ends[nth : nth + 2]) is None for nth, proxy in enumerate(proxies))


def rung_of_chain(name, chain):
    """Returns the rung that measures a chain."""
    proxies, legs = legs_of(chain)
    return rung(name, tls=legs["load"], via="+".join(proxies), upstream_tls="off", between_tls=legs["between"])


def closure(study, protocol, prices, count):
    """Measures chains that were drawn, and compares them with predictions; returns whether enough of these were right."""
    folder, proxies = prices
    draw = random.Random(SEED)
    drawn = (draw_chain(draw, proxies) for _ in range(20 * count))
    chains = [chain for chain in drawn if can_be_measured(chain, CALLS[protocol][2])][:count]
    right = measured_chains = 0
    print(f"\n### closure, {protocol}: p50 of a call\n\n| chain | predicted | measured | |\n|---|---|---|---|")
    for nth, chain in enumerate(chains):
        rungs = [rung("bare"), rung_of_chain("chain", chain)]
        try:
            predicted = priced(folder, chain)["+".join(chain)]["p50"]
            measured_in, record = study.measure(f"{protocol}-chain-{nth + 1}", protocol, rungs)
            measured = priced(measured_in)["chain"]["p50"]
        except (NotMeasuredError, KeyError) as why:
            print(f"| {' + '.join(chain)} | | | not measured |", flush=True)
            study.failures.append(f"{protocol}, {' + '.join(chain)}: {why}")
            continue
        study.failures += [f"{protocol}, {' + '.join(chain)}: {line}" for line in failed_calls(record)]
        # The measured value has an interval, too.
        overlap = measured["low"] <= predicted["high"] and predicted["low"] <= measured["high"]
        close = abs(measured["added"] - predicted["added"]) <= CLOSE * abs(measured["added"])
        right += overlap or close
        measured_chains += 1
        verdict = "within" if overlap or close else "**missed**"
        print(f"| {' + '.join(chain)} | {show(predicted)} | {show(measured)} | {verdict} |", flush=True)
    print(f"\n{right} of {measured_chains} chains were as predicted")
    return measured_chains > 0 and right >= 0.95 * measured_chains


def same(study, protocol, proxies, count):
    """Compares proxies with themselves; returns whether differences were claimed seldom enough."""
    proxies = [proxy for proxy in proxies if stands_alone(proxy, protocol)]
    claimed = compared = 0
    print(f"\n### {protocol}: each proxy beside itself\n\n| proxy | p50 | claimed |\n|---|---|---|")
    for nth in range(count if proxies else 0):
        proxy = proxies[nth % len(proxies)]
        rungs = [rung("first", via=proxy), rung("second", via=proxy)]
        try:
            folder, record = study.measure(f"{protocol}-same-{nth + 1}", protocol, rungs)
            costs = priced(folder)["second"]
        except (NotMeasuredError, KeyError) as why:
            study.fail(f"{protocol}, {proxy} beside itself: {why}")
            continue
        study.failures += [f"{protocol}, {proxy} beside itself: {line}" for line in failed_calls(record)]
        # The proxies' CPU is a price, not a difference of the two rungs.
        compare = {metric: cost for metric, cost in costs.items() if metric != "sidecar_cpu"}
        differs = [METRICS.get(metric, metric) for metric, cost in compare.items() if cost["low"] > 0 or cost["high"] < 0]
        claimed += bool(differs)
        compared += 1
        print(f"| {proxy} | {show(costs.get('p50'))} | {', '.join(differs)} |", flush=True)
    print(f"\na difference was claimed in {claimed} of {compared}")
    return compared > 0 and claimed <= 0.1 * compared


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--protocols", default=",".join(DEFAULT_PROTOCOLS), help=f"of {', '.join(CALLS)}")
    parser.add_argument("--proxies", help="default: those that are installed")
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=30, help="of load, for each ladder")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="do not measure for longer; default: no limit")
    parser.add_argument("--closure", type=int, default=0, metavar="CHAINS")
    parser.add_argument("--same", type=int, default=0, metavar="TIMES")
    parser.add_argument(
        "--keep", type=pathlib.Path, help="a folder for the ladders, with all configurations; those that it has are not repeated"
    )
    arguments = parser.parse_args()
    protocols = arguments.protocols.split(",")
    if unknown := [protocol for protocol in protocols if protocol not in CALLS]:
        parser.error(f"--protocols: {unknown[0]} is not one of {', '.join(CALLS)}")
    installed = [proxy["name"] for proxy in plimsoll_json("proxies")["proxies"] if proxy["program"]]
    proxies = arguments.proxies.split(",") if arguments.proxies else installed
    print(f"{datetime.date.today()}, {bench.machine()}", flush=True)
    bench.warn_if_busy()
    well = True
    with contextlib.nullcontext(arguments.keep) if arguments.keep else bench.Scratch() as root:
        root.mkdir(parents=True, exist_ok=True)
        study = Study(root, arguments)
        for protocol in protocols:
            if arguments.same:
                well &= same(study, protocol, proxies, arguments.same)
                continue
            prices = bill(study, protocol, proxies)
            if arguments.closure and prices and prices[1]:
                well &= closure(study, protocol, prices, arguments.closure)
        if study.failures:
            print(f"\n### failures\n\n{len(study.failures)}:")
            for failure in study.failures:
                print(f"- {failure}")
    return 0 if well and not study.failures else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotMeasuredError as problem:
        sys.exit(f"bench/tax.py: {problem}")
    except KeyboardInterrupt:
        sys.exit("bench/tax.py: interrupted; with the same --keep, it measures only what is missing")
