#!/usr/bin/env python3
"""A gRPC client on grpcio, the reference implementation, that checks a server of ours.

Makes the requested calls, checks every answer, and exits with 0 only if all were as expected:

    grpcio_client.py score  ADDRESS [--ca F [--cert F --key F]] [--calls N]
    grpcio_client.py orders ADDRESS …
    grpcio_client.py echo   ADDRESS …                        (a call is one of each kind)
    grpcio_client.py echo   ADDRESS --gzip                   (compresses its messages)
    grpcio_client.py score  ADDRESS --expect UNAVAILABLE     (the call must fail with this status)
"""

import argparse
import pathlib
import sys

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
except ImportError as missing:
    sys.exit(f"grpcio_client: {missing}: run `make setup`, and start this with .peers/venv/bin/python")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def channel_to(args):
    # Without retries a rejected handshake fails at once.
    options = [("grpc.enable_retries", 0)]
    if args.gzip:
        options.append(("grpc.default_compression_algorithm", grpc.Compression.Gzip.value))
    if args.server_name:
        options.append(("grpc.ssl_target_name_override", args.server_name))
    if args.authority:
        options.append(("grpc.default_authority", args.authority))
    if not args.ca:
        return grpc.insecure_channel(args.address, options)
    credentials = grpc.ssl_channel_credentials(
        read(args.ca),
        read(args.key) if args.key else None,
        read(args.cert) if args.cert else None,
    )
    return grpc.secure_channel(args.address, credentials, options)


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def score(channel, number, timeout):
    stub = score_pb2_grpc.ScoreServiceStub(channel)
    answer = stub.GetScore(score_pb2.JsonVector(json=f"[{number}, 0.5]"), timeout=timeout)
    check(0.0 <= answer.score <= 1.0, f"call {number}: score {answer.score}: expected 0 to 1")


def malformed_score(channel, timeout):
    stub = score_pb2_grpc.ScoreServiceStub(channel)
    try:
        stub.GetScore(score_pb2.JsonVector(json="[1, "), timeout=timeout)
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.INVALID_ARGUMENT, f"malformed vector: {error.code()}: expected INVALID_ARGUMENT")
    else:
        raise AssertionError("malformed vector: accepted: expected INVALID_ARGUMENT")


def order(channel, number, timeout):
    stub = orders_pb2_grpc.OrderServiceStub(channel)
    answer = stub.Submit(
        orders_pb2.Order(instrumentID=number, price=-100 + number, quantity=10, side=number % 2 == 0),
        timeout=timeout,
    )
    check(answer.received, f"call {number}: received is false: expected true")


def echo(channel, number, timeout):
    """Makes one call of each kind; checks messages, their number, and metadata."""
    stub = echo_pb2_grpc.EchoStub(channel)
    text = f"message {number} " + "x" * 1000
    message = echo_pb2.EchoRequest(message=text)

    def stamped(call, what):
        for name, metadata in (("headers", call.initial_metadata()), ("trailers", call.trailing_metadata())):
            check("timestamp" in dict(metadata), f"{what}: no timestamp in the {name}")
        check("location" in dict(call.initial_metadata()), f"{what}: no location in the headers")

    answer, call = stub.UnaryEcho.with_call(message, timeout=timeout)
    check(answer.message == text, f"UnaryEcho: {answer.message!r}: expected what was sent")
    stamped(call, "UnaryEcho")

    call = stub.ServerStreamingEcho(message, timeout=timeout)
    answers = [answer.message for answer in call]
    check(answers == [text] * 10, f"ServerStreamingEcho: {len(answers)} messages: expected 10, each what was sent")
    stamped(call, "ServerStreamingEcho")

    many = [echo_pb2.EchoRequest(message=f"{text} {i}") for i in range(25)]
    answer, call = stub.ClientStreamingEcho.with_call(iter(many), timeout=timeout)
    check(answer.message == many[-1].message, f"ClientStreamingEcho: {answer.message!r}: expected the last of 25")
    stamped(call, "ClientStreamingEcho")

    call = stub.BidirectionalStreamingEcho(iter(many), timeout=timeout)
    answers = [answer.message for answer in call]
    check(answers == [m.message for m in many], f"BidirectionalStreamingEcho: {len(answers)} messages: expected the 25 that were sent")
    stamped(call, "BidirectionalStreamingEcho")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("service", choices=["score", "orders", "echo"])
    parser.add_argument("address", help="host:port")
    parser.add_argument("--ca", help="trusted CA (PEM); without it: plaintext")
    parser.add_argument("--cert", help="client certificate chain (PEM)")
    parser.add_argument("--key", help="its key (PEM)")
    parser.add_argument("--authority", help=":authority to send [default: the channel's own]")
    parser.add_argument("--server-name", help="name to check the certificate against")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--gzip", action="store_true", help="pack requests, which asks for packed answers")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds a call")
    parser.add_argument("--expect", metavar="CODE", help="the first call must fail with this gRPC status")
    args = parser.parse_args()
    if bool(args.cert) != bool(args.key):
        parser.error("--cert and --key go together")

    with channel_to(args) as channel:
        call = {"score": score, "orders": order, "echo": echo}[args.service]
        if args.expect:
            try:
                call(channel, 0, args.timeout)
            except grpc.RpcError as error:
                if error.code().name == args.expect:
                    print(f"failed as expected: {error.code().name}: {error.details()}")
                    return 0
                print(f"{error.code().name}: {error.details()}: expected {args.expect}", file=sys.stderr)
                return 1
            print(f"the call succeeded: expected {args.expect}", file=sys.stderr)
            return 1
        try:
            for number in range(args.calls):
                call(channel, number, args.timeout)
            if args.service == "score":
                malformed_score(channel, args.timeout)
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 1
        except AssertionError as wrong:
            print(wrong, file=sys.stderr)
            return 1
    print(f"{args.calls} {args.service} calls answered as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
