#!/usr/bin/env python3
"""Costs of several shards, and how simultaneously they start.

Skew: shards of one machine meet in a folder, and a server stamps each request. Call k of a constant rate is due k
intervals after the beginning, so its delay shows when its shard began. A shard's start is the median over its calls,
and the skew is the difference between the last and the first shard.

Merging: the CPU of `plimsoll merge` for runs of few and of many shards; the difference is shown per shard and second of
load.
"""

import argparse
import asyncio
import pathlib
import subprocess
import sys
import threading
import time

import side_by_side as bench

PLAN = """
name = "shards"
target = "{target}"

{call}

[load]
rate = "{rate}/s"
duration = "{seconds}s"
warmup = "0s"
connections = {connections}
"""

HTTP = '[call.http]\npath = "/"'
GRPC = f'[call.grpc]\nmethod = "{bench.METHOD}"\nmessage = {{ json = "[0.1]" }}'


class Recorder:
    """An HTTP server that records when each request arrived."""

    def __init__(self):
        self.stamps = []
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def serve(self, reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.stamps.append(time.monotonic())
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def run_shards(folder, run_id, count):
    """Runs the folder's plan; the run directory is `run_id`."""
    words = [bench.plimsoll(), "run", "plan.toml", "-q", "--rendezvous", f"file://{folder}/meeting", "--run-id", run_id,
             "--shards", str(count), "--out", run_id]
    children = [subprocess.Popen([*words, "--shard", str(shard)], cwd=folder, stdout=subprocess.DEVNULL)
                for shard in range(count)]
    codes = {child.wait(timeout=600) for child in children}
    # A late generator does not matter here.
    if not codes <= {0, 90}:
        sys.exit(f"{count} shards: exit codes {sorted(codes)}")
    return bench.run_record(folder / run_id)


def skew_ms(folder, run_id, count, rate, seconds):
    recorder = Recorder()
    plan = PLAN.format(target=f"http://127.0.0.1:{recorder.port}", call=HTTP, rate=rate, seconds=seconds, connections=count)
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    record = run_shards(folder, run_id, count)
    recorder.loop.call_soon_threadsafe(recorder.loop.stop)
    if len(recorder.stamps) != record["total"]["due"]:
        sys.exit(f"{len(recorder.stamps)} requests arrived of {record['total']['due']}")
    late = [stamp - k / rate for k, stamp in enumerate(sorted(recorder.stamps))]
    begins = [bench.median(late[shard::count]) for shard in range(count)]
    return (max(begins) - min(begins)) * 1e3


def merging_s(folder, count, rate, seconds, reps):
    """Returns the CPU of merging a run and the bytes of its logs, and checks that the result is exact."""
    run_id = f"merged-{count}"
    with bench.Server([bench.plimsoll(), "serve", "score", "--listen", "127.0.0.1:0", "--delay", "2ms"]) as server:
        plan = PLAN.format(target=f"grpc://{server.address}", call=GRPC, rate=rate * count, seconds=seconds, connections=count)
        (folder / "plan.toml").write_text(plan, encoding="utf-8")
        record = run_shards(folder, run_id, count)
    cpu = []
    for rep in range(reps):
        out = folder / f"{run_id}-{rep}"
        measured = bench.measure([bench.plimsoll(), "merge", f"file://{folder}/meeting", "--run-id", run_id, "--out", out, "-q"])
        if bench.run_record(out)["total"] != record["total"]:
            sys.exit(f"merging {count} shards gives a different total than the run")
        cpu.append(measured.cpu)
    logs = pathlib.Path(folder, "meeting", run_id, "logs").rglob("*.zst")
    return bench.median(cpu), sum(log.stat().st_size for log in logs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5, help="repetitions (5)")
    parser.add_argument("--few", type=int, default=4, help="shards of the small run, and of the skew (4)")
    parser.add_argument("--many", type=int, default=32, help="shards of the large run (32)")
    parser.add_argument("--rate", type=int, default=100, help="calls a second of each shard (100)")
    parser.add_argument("--seconds", type=int, default=20, help="length of the load (20)")
    args = parser.parse_args()
    bench.warn_if_busy()
    with bench.Scratch() as folder:
        skews = [skew_ms(folder, f"skew-{rep}", args.few, 40 * args.few, 5) for rep in range(args.reps)]
        few, few_bytes = merging_s(folder, args.few, args.rate, args.seconds, args.reps)
        many, many_bytes = merging_s(folder, args.many, args.rate, args.seconds, args.reps)
    shard_seconds = (args.many - args.few) * args.seconds
    print(bench.machine())
    bench.print_table(["what", "measured"], [
        [f"skew of {args.few} shards, median (and most) of {args.reps}", f"{bench.median(skews):.2f} ms ({max(skews):.2f} ms)"],
        [f"merging {args.few} shards, CPU", f"{few * 1e3:.0f} ms"],
        [f"merging {args.many} shards, CPU", f"{many * 1e3:.0f} ms"],
        ["merging, CPU a shard and second of load", f"{(many - few) / shard_seconds * 1e6:.0f} µs"],
        ["log, bytes a shard and second of load", f"{(many_bytes - few_bytes) / shard_seconds:.0f}"],
    ])


if __name__ == "__main__":
    main()
