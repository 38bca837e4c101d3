#!/usr/bin/env python3
"""HTTP side by side: client CPU per request of Plimsoll, h2load, oha, wrk and vegeta, and per SSE token against AIPerf.

In every repetition each client requests 1 KiB from nginx, `plimsoll serve http` and `serve fast`: over HTTP/2 with 100
streams on 1 connection and with 10 on each of 10, over HTTP/1.1 with 100 persistent connections. The figures are
medians over the repetitions; a row counts only if all its requests succeeded. Token streams come from `plimsoll serve llm`,
which sends a token every 20 ms: 1,000 concurrent streams for Plimsoll alone, and 50 for Plimsoll and AIPerf in turn,
with the time to the first token that each reports.

    bench/http.py                       everything
    bench/http.py --quick               two repetitions with fewer requests
    bench/http.py --servers nginx --shapes h1x100 --clients plimsoll,wrk
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import time

import side_by_side as bench

# Connections, and streams per connection.
SHAPES = {"1x100": (1, 100), "10x10": (10, 10), "h1x100": (100, 1)}
CLIENTS = {
    "1x100": ("plimsoll", "h2load", "oha"),
    "10x10": ("plimsoll", "h2load", "oha"),
    "h1x100": ("plimsoll", "wrk", "oha", "vegeta"),
}
REQUESTS = {"plimsoll": 600_000, "h2load": 200_000, "oha": 40_000, "wrk": 400_000, "vegeta": 40_000}
# `fast` answers all requests of one read with one write; `awake` also busy-polls between reads. Both only
# speak HTTP/2.
SERVERS = ("nginx", "plimsoll", "fast", "awake")
# Minimum ratio of Plimsoll's requests per CPU-second to the peer's.
GOALS = {
    ("h2load", "1x100"): 4, ("h2load", "10x10"): 4, ("oha", "1x100"): 15, ("oha", "10x10"): 15,
    ("wrk", "h1x100"): 1.2, ("oha", "h1x100"): 5, ("vegeta", "h1x100"): 5,
}
TOKEN_STREAMS = 1_000
# Maximum client CPU per token in µs, with TOKEN_STREAMS concurrent streams.
TOKEN_GOAL = 1.5
# Streams have a connection each, or share this many HTTP/2 connections.
SHARED_CONNECTIONS = 10
# Concurrent streams that AIPerf can handle on one core.
AIPERF_STREAMS = 50
# Minimum ratio of AIPerf's client CPU per token to ours.
AIPERF_GOAL = 50
TOKEN_DELAY_MS, TOKENS = 20, 200
AIPERF = bench.PEERS / "aiperf" / "bin"


class Nginx:
    """nginx with a file of 1 KiB: HTTP/1.1 at `port`, HTTP/2 by prior knowledge at `port2`."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        # Started as root, nginx runs its workers as another user, who needs access.
        self.folder.chmod(0o755)
        (self.folder / "site" / "bytes").mkdir(parents=True, exist_ok=True)
        (self.folder / "site" / "bytes" / "1KiB").write_bytes(b"x" * 1024)
        self.port, self.port2 = (free_port() for _ in range(2))
        temporary = "".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (self.folder / "nginx.conf").write_text(
            "daemon off; worker_processes 1; pid nginx.pid; error_log stderr crit; events { worker_connections 4096; }\n"
            f"http {{ access_log off; {temporary} keepalive_requests 100000000; open_file_cache max=10;\n"
            f"server {{ listen 127.0.0.1:{self.port}; listen 127.0.0.1:{self.port2} http2; root site; }} }}\n",
            encoding="utf-8",
        )
        self.process = subprocess.Popen(
            [bench.tool("nginx"), "-p", self.folder, "-c", "nginx.conf", "-e", "stderr"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
        for port in (self.port, self.port2):
            wait_for(port)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def shapes_of(server, shapes):
    return [shape for shape in shapes if server in ("nginx", "plimsoll") or not shape.startswith("h1")]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for(port):
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                sys.exit(f"no process listens on port {port}")
            time.sleep(0.02)


def plimsoll_server(what):
    fast = ["fast", "--answer-size", "1KiB"]
    said = {"plimsoll": ["http"], "fast": fast, "awake": [*fast, "--busy-poll", "1ms"]}[what]
    return bench.Server([bench.plimsoll(), "serve", *said, "--listen", "127.0.0.1:0"])


def command(name, port, shape, requests, folder):
    connections, streams = SHAPES[shape]
    two = shape != "h1x100"
    url = f"http://127.0.0.1:{port}/bytes/1KiB"
    if name == "plimsoll":
        return [
            bench.plimsoll(), "http", url, "--clients", connections * streams, "--connections", connections,
            *(["--http-version", "2"] if two else []), "--calls", requests, "--out", folder, "--json", "-q",
        ]
    if name == "h2load":
        return [bench.tool("h2load"), "-n", requests, "-c", connections, "-m", streams, "-t", 1, url]
    if name == "oha":
        return [
            bench.tool("oha"), "-n", requests, "-c", connections, *(["-p", streams, "--http2"] if two else []),
            "--no-tui", "--output-format", "json", url,
        ]
    if name == "wrk":
        # wrk runs for a time and reports the number of requests.
        seconds = max(1, requests // 50_000)
        return [bench.tool("wrk"), "-t", 1, "-c", connections, "-d", f"{seconds}s", url]
    rate = f"{requests // 4}/1s"
    script = f"echo 'GET {url}' | {bench.tool('vegeta')} attack -rate {rate} -duration 4s -max-workers {connections} " \
        f"-connections {connections} -workers {connections} | {bench.tool('vegeta')} report -type json"
    return ["sh", "-c", script]


def count_successes(name, measured, folder):
    """Returns the number of successful requests; any other is an error."""
    if name == "plimsoll":
        total = bench.run_record(folder)["total"]
        return total["ok"] if total["errors"] == 0 else 0
    if name == "h2load":
        found = re.search(r"(\d+) succeeded, 0 failed, 0 errored, 0 timeout", measured.out)
        return int(found.group(1)) if found else 0
    if name == "oha":
        said = json.loads(measured.out)
        codes = said["statusCodeDistribution"]
        return codes.get("200", 0) if list(codes) == ["200"] and not said.get("errorDistribution") else 0
    if name == "wrk":
        failed = re.search(r"Socket errors|Non-2xx", measured.out)
        found = re.search(r"(\d+) requests in", measured.out)
        return int(found.group(1)) if found and not failed else 0
    said = json.loads(measured.out)
    return said["status_codes"].get("200", 0) if list(said["status_codes"]) == ["200"] else 0


def run_once(name, port, shape, requests, folder):
    """Returns (µs of CPU per request or None, the problem or None)."""
    measured = bench.measure(command(name, port, shape, requests, folder))
    try:
        ok = count_successes(name, measured, folder)
    except (OSError, ValueError, KeyError) as unreadable:
        ok, measured.errors = 0, f"{measured.errors}\n{type(unreadable).__name__}: {unreadable}"
    if measured.exit != 0 or ok == 0:
        said = " / ".join((measured.errors.strip() or measured.out.strip()).splitlines()[-3:])
        return None, f"exit {measured.exit}, {ok} requests ok: {said[-200:]}"
    return measured.cpu / ok * 1e6, None


def serve_model():
    return bench.Server([
        bench.plimsoll(), "serve", "llm", "--listen", "127.0.0.1:0", "--token-delay", f"{TOKEN_DELAY_MS}ms", "--tokens", TOKENS,
    ])


def measure_tokens(folder, streams, seconds, connections=None):
    """Returns ((µs of client CPU per token, ms to the first token) or None, the problem or None)."""
    with serve_model() as server:
        measured = bench.measure([
            bench.plimsoll(), "llm", f"http://{server.address}", "--model", "m", "--clients", streams,
            *(["--http-version", "2", "--connections", connections] if connections else []),
            "--duration", f"{seconds}s", "--out", folder, "--json", "-q",
        ])
    total = bench.run_record(folder)["total"]
    received = total["measures"]["counts"]["tokens_received"]
    if measured.exit not in (0, 90) or total["errors"] > 0:
        return None, f"exit {measured.exit}, {total['errors']} errors"
    first = total["measures"]["times"]["time_to_first_token"]
    return (measured.cpu / received * 1e6, first["p50_us"] / 1e3), None


def measure_shared_tokens(folder, streams, seconds):
    return measure_tokens(folder, streams, seconds, SHARED_CONNECTIONS)


def tokenizer(folder):
    """Makes a tokenizer, which AIPerf requires although the server counts the tokens: a word is a token."""
    folder.mkdir(exist_ok=True)
    words = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
             "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}
    (folder / "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def measure_aiperf_tokens(folder, streams, seconds):
    """Returns the same for AIPerf, over the lifetime of its processes."""
    folder.mkdir()
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"text": "What does the load line show?"}\n' * streams, encoding="utf-8")
    if not AIPERF.exists():
        sys.exit(f"{AIPERF} is missing: run `make setup`")
    # The number of answers that this many streams produce in this time.
    requests = streams * max(1, round(seconds * 1000 / (TOKEN_DELAY_MS * TOKENS)))
    with serve_model() as server:
        measured = bench.measure([
            AIPERF / "aiperf", "profile", "-m", "m", "--url", f"http://{server.address}", "--endpoint-type", "chat",
            "--streaming", "--concurrency", streams, "--request-count", requests, "--use-server-token-count",
            "--tokenizer", tokenizer(folder / "tokenizer"), "--input-file", prompts, "--custom-dataset-type", "single_turn",
            "--output-artifact-dir", folder / "out", "--ui-type", "none", "--no-server-metrics",
        ], timeout=300)
    try:
        said = json.loads((folder / "out" / "profile_export_aiperf.json").read_text(encoding="utf-8"))
        ended, first = said["request_count"]["avg"], said["time_to_first_token"]["p50"]
    except (OSError, ValueError, KeyError) as unreadable:
        return None, f"exit {measured.exit}, {type(unreadable).__name__}: {unreadable}"
    if measured.exit != 0 or ended != requests:
        return None, f"exit {measured.exit}, {ended} of {requests} requests ok"
    return (measured.cpu / (requests * TOKENS) * 1e6, first), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--shapes", default=",".join(SHAPES), help="connections x streams of HTTP/2; h1x100: HTTP/1.1")
    parser.add_argument("--clients", default="plimsoll,h2load,oha,wrk,vegeta,aiperf")
    parser.add_argument("--no-tokens", action="store_true", help="skip the streams of tokens")
    parser.add_argument("--quick", action="store_true", help="two repetitions with a quarter of the requests")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a goal is missed or a row is invalid")
    args = parser.parse_args()
    servers, shapes, clients = (value.split(",") for value in (args.servers, args.shapes, args.clients))
    for given, known in ((servers, SERVERS), (shapes, list(SHAPES)), (clients, [*REQUESTS, "aiperf"])):
        for word in given:
            if word not in known:
                parser.error(f"unknown '{word}': expected one of {', '.join(known)}")
    bench.warn_if_busy()
    bench.raise_descriptor_limit(TOKEN_STREAMS * 2 + 100)
    reps, fraction = (2, 4) if args.quick else (args.reps, 1)
    costs, wrong, each_token = {}, {}, {}
    with bench.Scratch() as scratch:
        for rep in range(reps):
            for server_name in servers:
                starts = Nginx(scratch) if server_name == "nginx" else plimsoll_server(server_name)
                with starts as server:
                    for shape in shapes_of(server_name, shapes):
                        port = server.port2 if server_name == "nginx" and shape != "h1x100" else server.port
                        crew = [name for name in CLIENTS[shape] if name in clients]
                        # The order rotates with each repetition.
                        turn = rep % len(crew) if crew else 0
                        for name in crew[turn:] + crew[:turn]:
                            key = (name, server_name, shape)
                            if len(wrong.get(key, [])) == 2:
                                continue
                            folder = scratch / f"run-{server_name}-{shape}-{rep}"
                            cost, problem = run_once(name, port, shape, REQUESTS[name] // fraction, folder)
                            if problem:
                                wrong.setdefault(key, []).append(problem)
                            else:
                                costs.setdefault(key, []).append(cost)
            kinds = [] if args.no_tokens else [
                ("plimsoll", measure_tokens, TOKEN_STREAMS), ("plimsoll", measure_shared_tokens, TOKEN_STREAMS),
                ("plimsoll", measure_tokens, AIPERF_STREAMS), ("aiperf", measure_aiperf_tokens, AIPERF_STREAMS),
            ]
            for name, ask, streams in kinds:
                if name in clients:
                    cost, problem = ask(scratch / f"{ask.__name__}-{streams}-{rep}", streams, 20 // fraction)
                    if problem:
                        wrong.setdefault((name, ask.__name__, f"{streams} streams"), []).append(problem)
                    else:
                        each_token.setdefault((ask, streams), []).append(cost)
            print(f"repetition {rep + 1} of {reps} done", file=sys.stderr)
    missed = report(reps, servers, shapes, clients, costs)
    missed += report_tokens(each_token)
    for key, said in wrong.items():
        print(f"\ninvalid: {' '.join(key)}: {said[-1]}")
    return 1 if args.gate and (missed or wrong) else 0


def report(reps, servers, shapes, clients, costs):
    """Prints the table and returns the number of missed goals."""
    print(f"\nGET of 1 KiB over HTTP, closed loop, medians of {reps} interleaved repetitions; {bench.machine()}")
    print("µs of client CPU per request, and how many times more requests Plimsoll makes in a CPU-second (lowest–highest repetition; goal)\n")
    peers = [name for name in ("h2load", "oha", "wrk", "vegeta") if name in clients]
    rows, missed = [], 0
    for server in servers:
        for shape in shapes_of(server, shapes):
            own = costs.get(("plimsoll", server, shape))
            row = [server, shape.replace("x", "×").replace("h1", "HTTP/1.1 "), f"{bench.median(own):.2f} µs" if own else "invalid"]
            for peer in peers:
                theirs = costs.get((peer, server, shape))
                if not theirs:
                    row.append("–" if peer not in CLIENTS[shape] else "invalid")
                    continue
                cell = f"{bench.median(theirs):.2f} µs"
                if own:
                    ratio = bench.median(theirs) / bench.median(own)
                    each = [b / a for a, b in zip(own, theirs)]
                    goal = GOALS[peer, shape]
                    held = ratio >= goal
                    missed += not held
                    cell += f" = {ratio:.1f}× ({min(each):.1f}–{max(each):.1f}; ≥ {goal} {'met' if held else 'MISSED'})"
                row.append(cell)
            rows.append(row)
    bench.print_table(["server", "shape", "plimsoll", *peers], rows)
    return missed


def report_tokens(each_token):
    """Prints the cost of tokens and returns the number of missed goals."""
    missed = 0
    cpu, first = ({key: [pair[place] for pair in pairs] for key, pairs in each_token.items()} for place in (0, 1))
    for ask, way in ((measure_tokens, "a connection each"), (measure_shared_tokens, f"over {SHARED_CONNECTIONS} connections of HTTP/2")):
        own = cpu.get((ask, TOKEN_STREAMS))
        if not own:
            continue
        cost = bench.median(own)
        held = cost <= TOKEN_GOAL
        missed += not held
        print(f"\na token over SSE, {TOKEN_STREAMS:,} streams, {way}: {cost:.2f} µs of client CPU ({min(own):.2f}–{max(own):.2f}; "
              f"≤ {TOKEN_GOAL} {'met' if held else 'MISSED'})")
    own, theirs = (cpu.get((ask, AIPERF_STREAMS)) for ask in (measure_tokens, measure_aiperf_tokens))
    if own and theirs:
        ratio = bench.median(theirs) / bench.median(own)
        held = ratio >= AIPERF_GOAL
        missed += not held
        print(f"{AIPERF_STREAMS} streams: {bench.median(own):.2f} µs, AIPerf {bench.median(theirs):.2f} µs = {ratio:.0f}× "
              f"(≥ {AIPERF_GOAL} {'met' if held else 'MISSED'}), the start of either included")
        seen = [bench.median(first[ask, AIPERF_STREAMS]) for ask in (measure_tokens, measure_aiperf_tokens)]
        print(f"time to the first token (p50), which the server sends after {TOKEN_DELAY_MS} ms: "
              f"{seen[0]:.1f} ms, AIPerf {seen[1]:.1f} ms")
    return missed


if __name__ == "__main__":
    sys.exit(main())
