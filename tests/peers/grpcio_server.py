#!/usr/bin/env python3
"""A gRPC server on grpcio, the reference implementation, for our client to call.

Serves score.ScoreService, orders.OrderService and grpc.examples.echo.Echo, with server
reflection, in plaintext, over TLS, or over mutual TLS, prints `listening on ADDRESS` and
stops on SIGTERM or SIGINT. A score of {"status": "NOT_FOUND", "message": "…"} instead of a
vector fails with that gRPC status. `make setup` generates the code it imports.
"""

import argparse
import json
import pathlib
import random
import signal
import sys
import threading
import time
from concurrent import futures

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".peers" / "generated"))

try:
    import echo_pb2
    import echo_pb2_grpc
    import grpc
    import orders_pb2
    import orders_pb2_grpc
    import score_pb2
    import score_pb2_grpc
    from grpc_reflection.v1alpha import reflection
except ImportError as missing:
    sys.exit(f"grpcio_server: {missing}: run `make setup`, and start this with .peers/venv/bin/python")


class Score(score_pb2_grpc.ScoreServiceServicer):
    def __init__(self, delay):
        self.delay = delay

    def GetScore(self, request, context):
        try:
            vector = json.loads(request.json)
        except ValueError as wrong:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"json: {wrong}")
        if isinstance(vector, dict):
            context.abort(grpc.StatusCode[vector["status"]], vector["message"])
        if not isinstance(vector, list):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "json: expected an array of numbers")
        if self.delay:
            time.sleep(self.delay)
        return score_pb2.ScoreResponse(score=random.random())


class Orders(orders_pb2_grpc.OrderServiceServicer):
    def Submit(self, request, context):
        return orders_pb2.OrderReply(received=True)


class Echo(echo_pb2_grpc.EchoServicer):
    """Implements the echo service, with timestamps in headers and trailers."""

    def begin(self, context):
        context.send_initial_metadata((("timestamp", time.ctime()), ("location", "grpcio")))
        context.set_trailing_metadata((("timestamp", time.ctime()),))

    def UnaryEcho(self, request, context):
        self.begin(context)
        return echo_pb2.EchoResponse(message=request.message)

    def ServerStreamingEcho(self, request, context):
        self.begin(context)
        for _ in range(10):
            yield echo_pb2.EchoResponse(message=request.message)

    def ClientStreamingEcho(self, requests, context):
        self.begin(context)
        message = ""
        for request in requests:
            message = request.message
        return echo_pb2.EchoResponse(message=message)

    def BidirectionalStreamingEcho(self, requests, context):
        self.begin(context)
        for request in requests:
            yield echo_pb2.EchoResponse(message=request.message)


class Guard(grpc.ServerInterceptor):
    """Rejects calls without the right authorization, including those of reflection."""

    def __init__(self, wanted):
        self.wanted = wanted

    def intercept_service(self, continuation, call):
        handler = continuation(call)
        if handler is None or dict(call.invocation_metadata).get("authorization") == self.wanted:
            return handler

        def refuse(_, context):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "authorization is missing or wrong")

        kind = "stream" if handler.request_streaming else "unary"
        kind += "_stream" if handler.response_streaming else "_unary"
        return getattr(grpc, f"{kind}_rpc_method_handler")(
            refuse, handler.request_deserializer, handler.response_serializer
        )


def credentials(args):
    with open(args.tls_key, "rb") as key, open(args.tls_cert, "rb") as cert:
        pair = (key.read(), cert.read())
    client_ca = None
    if args.tls_client_ca:
        with open(args.tls_client_ca, "rb") as ca:
            client_ca = ca.read()
    return grpc.ssl_server_credentials(
        [pair], root_certificates=client_ca, require_client_auth=client_ca is not None
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:0", help="address and port; port 0: any free one")
    parser.add_argument("--tls-cert", help="server certificate chain (PEM)")
    parser.add_argument("--tls-key", help="its key (PEM)")
    parser.add_argument("--tls-client-ca", help="ask clients for a certificate of this CA (PEM)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="wait before every score")
    parser.add_argument("--gzip", action="store_true", help="pack every answer, asked for or not")
    parser.add_argument("--deflate", action="store_true", help="the same in deflate")
    parser.add_argument("--threads", type=int, default=8, help="calls answered at a time")
    parser.add_argument("--authorization", help="refuse calls whose metadata have another one")
    args = parser.parse_args()
    if bool(args.tls_cert) != bool(args.tls_key):
        parser.error("--tls-cert and --tls-key go together")
    if args.tls_client_ca and not args.tls_cert:
        parser.error("--tls-client-ca needs --tls-cert and --tls-key")

    guards = [Guard(args.authorization)] if args.authorization else None
    packing = grpc.Compression.Gzip if args.gzip else None
    packing = grpc.Compression.Deflate if args.deflate else packing
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=args.threads), compression=packing, interceptors=guards)
    score_pb2_grpc.add_ScoreServiceServicer_to_server(Score(args.delay_ms / 1000), server)
    orders_pb2_grpc.add_OrderServiceServicer_to_server(Orders(), server)
    echo_pb2_grpc.add_EchoServicer_to_server(Echo(), server)
    services = [echo_pb2.DESCRIPTOR, orders_pb2.DESCRIPTOR, score_pb2.DESCRIPTOR]
    names = [name for file in services for name in (s.full_name for s in file.services_by_name.values())]
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
    if args.tls_cert:
        port = server.add_secure_port(args.listen, credentials(args))
    else:
        port = server.add_insecure_port(args.listen)
    server.start()

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"listening on {args.listen.rsplit(':', 1)[0]}:{port}", flush=True)
    stop.wait()
    server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
