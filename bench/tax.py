#!/usr/bin/env python3
"""The tax of a link: what proxies, TLS and mutual TLS add to a call, for each protocol, on this machine.

Each protocol has a ladder whose first rung is the bare link, and whose other rungs add TLS, mutual TLS, or one of the
proxies that are installed here, each with and without mutual TLS on both sides. Plimsoll starts all servers and proxies,
with one worker each, and restarts them for every replicate. The bill is printed as Markdown, with the versions; the
configurations are in the ladders' folders (`proxies/`), which --keep keeps.

With --closure, chains of two to four layers are drawn at random that were not measured, then measured, and compared with
what `plimsoll price` predicted for them. With --same, the same proxy is two rungs of a ladder, several times: how often
is a difference claimed where there is none?

    bench/tax.py                                       every protocol and proxy, 30 s a ladder
    bench/tax.py --protocols grpc --proxies haproxy,nginx --seconds 60
    bench/tax.py --closure 20                          twenty chains, with their predictions
    bench/tax.py --same 20 --proxies nginx

The exit code is 1 if fewer than 95 % of the chains were within the interval or within 5 % of the prediction, or if more
than 10 % of the comparisons of a proxy with itself claimed a difference.
"""

import argparse
import contextlib
import datetime
import json
import pathlib
import random
import subprocess
import sys

import side_by_side as bench

CALLS = {
    "http": ('[call.http]\npath = "/bytes/1KiB"\n', "http"),
    "http2": ('[call.http]\nversion = "2"\npath = "/bytes/1KiB"\n', "http"),
    "grpc": ('[call.grpc]\nmethod = "score.ScoreService/GetScore"\nmessage = { json = "[0.1, 0.2, 0.3]" }\n', "score"),
}
METRICS = {"p50": "p50", "client_cpu": "client CPU", "server_cpu": "server CPU", "sidecar_cpu": "proxy CPU"}
# Names of TLS layers in chains, and in plans.
TLS = {"tls": "server", "mtls": "mutual"}
# A prediction counts as right within this share of the measured value, whatever its interval.
CLOSE = 0.05
SEED = 1


def plimsoll_json(*arguments):
    done = subprocess.run([bench.plimsoll(), *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def rung(name, **settings):
    text = ", ".join(f'{axis} = "{value}"' for axis, value in {"tls": "off", **settings}.items())
    return f'{{ name = "{name}", {text} }}'


def measure(folder, protocol, rungs, rate, seconds):
    """Runs a ladder in `folder`; returns its record."""
    call, server = CALLS[protocol]
    plan = folder.with_suffix(".toml")
    listed = ",\n  ".join(rungs)
    plan.write_text(
        f'name = "{protocol}"\n{call}[load]\nrate = "{rate}/s"\nduration = "{seconds}s"\n[ladder]\nserve = ["{server}"]\n'
        f'parts = ["none"]\nrungs = [\n  {listed},\n]\n',
        encoding="utf-8",
    )
    command = [bench.plimsoll(), "ladder", plan, "--out", folder, "--progress", "none"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not (folder / "ladder.json").exists():
        sys.exit(f"bench/tax.py: {plan} was not measured:\n{done.stderr}")
    return json.loads((folder / "ladder.json").read_text(encoding="utf-8"))


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


def bill(folder, protocol, proxies, rate, seconds):
    """Measures the layers of a protocol and prints them."""
    rungs = [rung("bare"), rung("tls", tls="server"), rung("mtls", tls="mutual")]
    for proxy in proxies:
        rungs += [rung(proxy, via=proxy), rung(f"{proxy}, mutual TLS", via=proxy, tls="mutual")]
    record = measure(folder, protocol, rungs, rate, seconds)
    print(f"\n### {protocol}, {rate} calls/s\n")
    print(f"| layer | {' | '.join(METRICS.values())} | proxy |\n|---|{'---|' * (len(METRICS) + 1)}")
    versions = {measured["name"]: measured.get("proxy", "") for measured in record["rungs"]}
    for name, costs in priced(folder).items():
        print(f"| {name} | {' | '.join(show(costs.get(metric)) for metric in METRICS)} | {versions.get(name, '')} |")
    for skipped in record.get("skipped", []):
        print(f"\n{skipped['name']} was not measured: {skipped['reason']}")
    sys.stdout.flush()
    return [measured["name"] for measured in record["rungs"] if measured["name"] in proxies]


def draw_chain(draw, proxies):
    """Draws a chain of two to four layers: proxies, with TLS or mutual TLS before some of them."""
    while True:
        chain = []
        for _ in range(draw.choice((1, 2))):
            chain += draw.choice(([], ["tls"], ["mtls"])) + [draw.choice(proxies)]
        if 2 <= len(chain) <= 4:
            return chain


def rung_of_chain(name, chain):
    """Returns the rung that measures a chain: TLS before the first proxy is the load's, other TLS between proxies."""
    proxies = [layer for layer in chain if layer not in TLS]
    legs = {"load": "off", "between": "off"}
    leg = "load"
    for layer in chain:
        if layer in TLS:
            legs[leg] = TLS[layer]
        else:
            leg = "between"
    return rung(name, tls=legs["load"], via="+".join(proxies), upstream_tls="off", between_tls=legs["between"])


def closure(folder, protocol, proxies, arguments):
    """Measures chains that were drawn, and compares them with predictions; returns how many of these were right."""
    draw = random.Random(SEED)
    chains = [draw_chain(draw, proxies) for _ in range(arguments.closure)]
    right = 0
    print(f"\n### closure, {protocol}: p50 of a call\n\n| chain | predicted | measured | |\n|---|---|---|---|")
    for nth, chain in enumerate(chains):
        predicted = priced(folder, chain)["+".join(chain)]["p50"]
        measured_in = folder.with_name(f"{folder.name}-chain-{nth + 1}")
        rungs = [rung("bare"), rung_of_chain("chain", chain)]
        measure(measured_in, protocol, rungs, arguments.rate, arguments.seconds)
        measured = priced(measured_in)["chain"]["p50"]
        # The measured value has an interval, too.
        overlap = measured["low"] <= predicted["high"] and predicted["low"] <= measured["high"]
        close = abs(measured["added"] - predicted["added"]) <= CLOSE * abs(measured["added"])
        right += overlap or close
        verdict = "within" if overlap or close else "**missed**"
        print(f"| {' + '.join(chain)} | {show(predicted)} | {show(measured)} | {verdict} |", flush=True)
    print(f"\n{right} of {len(chains)} chains were as predicted")
    return right >= 0.95 * len(chains)


def same(folder, protocol, proxies, arguments):
    """Compares proxies with themselves; returns whether differences were claimed seldom enough."""
    claimed = compared = 0
    for nth in range(arguments.same):
        proxy = proxies[nth % len(proxies)]
        measured_in = folder.with_name(f"{folder.name}-same-{nth + 1}")
        rungs = [rung("first", via=proxy), rung("second", via=proxy)]
        measure(measured_in, protocol, rungs, arguments.rate, arguments.seconds)
        costs = priced(measured_in)["second"]
        cost = costs["p50"]
        differs = cost["low"] > 0 or cost["high"] < 0
        claimed += differs
        compared += 1
        print(f"{proxy} beside itself: {show(cost)}{' CLAIMED' if differs else ''}", flush=True)
    print(f"\na difference was claimed in {claimed} of {compared}")
    return claimed <= 0.1 * compared


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--protocols", default=",".join(CALLS))
    parser.add_argument("--proxies", help="default: those that are installed")
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=30, help="of load, for each ladder")
    parser.add_argument("--closure", type=int, default=0, metavar="CHAINS")
    parser.add_argument("--same", type=int, default=0, metavar="TIMES")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the ladders, with all configurations")
    arguments = parser.parse_args()
    installed = [proxy["name"] for proxy in plimsoll_json("proxies")["proxies"] if proxy["program"]]
    proxies = arguments.proxies.split(",") if arguments.proxies else installed
    print(f"{datetime.date.today()}, {bench.machine()}")
    bench.warn_if_busy()
    well = True
    with contextlib.nullcontext(arguments.keep) if arguments.keep else bench.Scratch() as root:
        root.mkdir(parents=True, exist_ok=True)
        for protocol in arguments.protocols.split(","):
            folder = root / protocol
            if arguments.same:
                well &= same(folder, protocol, proxies, arguments)
                continue
            measured = bill(folder, protocol, proxies, arguments.rate, arguments.seconds)
            if arguments.closure and measured:
                well &= closure(folder, protocol, measured, arguments)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
