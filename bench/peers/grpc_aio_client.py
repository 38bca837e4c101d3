#!/usr/bin/env python3
"""Closed-loop load with grpc.aio, the way a Python load script is usually written.

Messages go out as ready bytes, so that Python's protobuf is no part of what it costs.
Prints the calls that ended ok.
"""

import argparse
import asyncio
import sys

try:
    import grpc
except ImportError:
    sys.exit("grpc_aio_client: grpcio is missing: run `make setup`, and start this with .peers/venv/bin/python")


async def client(call, message, numbers, ok):
    for _ in numbers:
        try:
            await call(message)
            ok.append(1)
        except grpc.aio.AioRpcError as error:
            print(error.code().name, error.details(), file=sys.stderr)
            return


async def run(args):
    with open(args.message, "rb") as file:
        message = file.read()
    # Each channel needs its own pool of subchannels; otherwise grpcio puts all channels on one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    if args.ca:
        with open(args.ca, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        channels = [grpc.aio.secure_channel(args.address, credentials, options) for _ in range(args.connections)]
    else:
        channels = [grpc.aio.insecure_channel(args.address, options) for _ in range(args.connections)]
    calls = [channel.unary_unary("/" + args.method) for channel in channels]
    numbers, ok = iter(range(args.calls)), []
    await asyncio.gather(
        *(client(calls[i % len(calls)], message, numbers, ok) for i in range(args.clients))
    )
    for channel in channels:
        await channel.close()
    print(len(ok))
    return 0 if len(ok) == args.calls else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help="host:port")
    parser.add_argument("--method", required=True, help="package.Service/Method")
    parser.add_argument("--message", required=True, help="file with the encoded message")
    parser.add_argument("--ca", help="trusted CA (PEM); without it: plaintext")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--clients", type=int, default=100, help="calls in flight, over all connections")
    parser.add_argument("--calls", type=int, default=10000)
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
