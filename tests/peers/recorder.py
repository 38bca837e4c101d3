#!/usr/bin/env python3
"""A gRPC server on grpcio that accepts any call and records what it receives.

Every method reads the client's messages as bytes and answers with one empty message. The server
prints `listening on ADDRESS`; on SIGTERM or SIGINT it prints a line of JSON and stops: `metadata`
counts the calls by metadata name and value (hexadecimal for names that end in -bin), and `calls`
counts them by their messages (hexadecimal, joined with commas).
"""

import collections
import json
import signal
import sys
import threading
from concurrent import futures

try:
    import grpc
except ImportError as missing:
    sys.exit(f"recorder: {missing}: run `make setup`, and start this with .peers/venv/bin/python")


class Recorder(grpc.GenericRpcHandler):
    def __init__(self):
        self.lock = threading.Lock()
        self.metadata = collections.defaultdict(collections.Counter)
        self.calls = collections.Counter()

    def service(self, _):
        return grpc.stream_stream_rpc_method_handler(self.take, None, None)

    def take(self, messages, context):
        carried = [message.hex() for message in messages]
        with self.lock:
            self.calls[",".join(carried)] += 1
            for name, value in context.invocation_metadata():
                self.metadata[name][value.hex() if isinstance(value, bytes) else value] += 1
        yield b""


def main():
    recorder = Recorder()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8), handlers=[recorder])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"listening on 127.0.0.1:{port}", flush=True)
    stop.wait()
    server.stop(grace=1).wait()
    print(json.dumps({"metadata": recorder.metadata, "calls": recorder.calls}), flush=True)


if __name__ == "__main__":
    main()
