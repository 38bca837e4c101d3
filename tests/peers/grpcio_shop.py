#!/usr/bin/env python3
"""A shop on grpcio, the reference implementation of gRPC, that users go through step by step.

A user logs in and gets a token, which every later call carries in its metadata together with the session that the
login's trailing metadata named. Items come in pages. The first attempt of each user to order is refused as UNAVAILABLE;
an order must repeat the item as it was listed. Prints `listening on ADDRESS`, and stops on SIGTERM or SIGINT.
"""

import argparse
import pathlib
import secrets
import signal
import sys
import threading
from concurrent import futures

import grpc
from grpc_reflection.v1alpha import reflection

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
shop_pb2, shop_pb2_grpc = grpc.protos_and_services("shop.proto")

ITEMS = [
    shop_pb2.Item(
        id=2**53 + number,
        availability=shop_pb2.IN_STOCK if number % 3 else shop_pb2.SOLD_OUT,
        since={"seconds": 1_700_000_000 + number, "nanos": 500_000_000},
        prices={"EUR": number + 0.25},
    )
    for number in range(1, 10)
]
PAGE = 3


class Shop(shop_pb2_grpc.ShopServicer):
    def __init__(self):
        self.lock = threading.Lock()
        self.users = {}  # Token: session, name.
        self.tried = set()
        self.orders = {}

    def user(self, context):
        """Returns the token of a call's user; ends the call without one."""
        metadata = dict(context.invocation_metadata())
        token = metadata.get("authorization", "").removeprefix("Bearer ")
        with self.lock:
            session = self.users.get(token)
        if session is None or metadata.get("x-session") != session:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "log in first")
        return token

    def LogIn(self, request, context):
        if not request.user or request.password != f"secret of {request.user}":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "user or password is wrong")
        token, session = f"{secrets.token_urlsafe(24)}+/=", secrets.token_hex(8)
        with self.lock:
            self.users[token] = session
        context.set_trailing_metadata((("x-session", session),))
        return shop_pb2.LogInReply(access_token=token)

    def ListItems(self, request, context):
        self.user(context)
        start = int(request.page_token or 0)
        after = start + PAGE
        next_page = str(after) if after < len(ITEMS) else ""
        return shop_pb2.ListItemsReply(items=ITEMS[start:after], next_page_token=next_page)

    def PlaceOrder(self, request, context):
        token = self.user(context)
        with self.lock:
            is_first = token not in self.tried
            self.tried.add(token)
        if is_first:
            context.abort(grpc.StatusCode.UNAVAILABLE, "try again")
        item = next((item for item in ITEMS if item.id == request.item_id), None)
        is_listed = item is not None and item == request.item and request.seen_as == item.availability
        if not is_listed or request.price != item.prices["EUR"] or list(request.also_seen) != [7, item.id]:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not as it was listed: {request}")
        if item.availability != shop_pb2.IN_STOCK:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "sold out")
        with self.lock:
            name = f"orders/{len(self.orders) + 1}"
            self.orders[name] = token
        context.send_initial_metadata((("x-order", name),))
        return shop_pb2.Order(name=name)

    def WatchOrder(self, request, context):
        token = self.user(context)
        if self.orders.get(request.name) != token:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no order {request.name!r} of this user")
        for state in (shop_pb2.OPEN, shop_pb2.OPEN, shop_pb2.SHIPPED):
            yield shop_pb2.Order(name=request.name, state=state)

    def CountOrders(self, request, context):
        return shop_pb2.CountOrdersReply(orders=len(self.orders), users=len(self.users))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gzip", action="store_true", help="pack every answer, asked for or not")
    arguments = parser.parse_args()
    packing = grpc.Compression.Gzip if arguments.gzip else None
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8), compression=packing)
    shop_pb2_grpc.add_ShopServicer_to_server(Shop(), server)
    reflection.enable_server_reflection(("shop.Shop", reflection.SERVICE_NAME), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"listening on 127.0.0.1:{port}", flush=True)
    stop.wait()
    server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
