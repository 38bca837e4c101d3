"""A WebSocket server on the websockets package: echoes, answers of several messages, refusals, closes.
Prints its address."""

import asyncio
import http
import json
import sys

from websockets.asyncio.server import serve


def process_request(connection, request):
    """Rejects requests for /secret without the key in their header."""
    if request.path == "/secret" and request.headers.get("Authorization") != "Bearer mine":
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no\n")
    if request.path == "/page":
        return connection.respond(http.HTTPStatus.OK, "a page\n")
    return None


def select_subprotocol(connection, subprotocols):
    """Accepts clients without a subprotocol."""
    return "feed.v1" if "feed.v1" in subprotocols else None


async def handler(socket):
    path = socket.request.path
    greeted = path != "/greeted"
    async for message in socket:
        if path.startswith("/greeted") and not greeted:
            assert message == "hello, I am a user", message
            greeted = True
        elif path.startswith("/stream"):
            for number in range(3):
                await socket.send(json.dumps({"n": number}))
                await asyncio.sleep(0.005)
            await socket.send(json.dumps({"done": True}))
        elif path == "/script":
            # The login must come first; then values can be set and read.
            kind, _, text = (message if isinstance(message, str) else message.decode()).partition(" ")
            if kind == "login":
                name = text
                values = []
                await socket.send(f"welcome {name}")
            elif kind == "set":
                values.append(text)
            elif kind == "get":
                for value in values:
                    await socket.send(f"{name} has {value}")
                await socket.send("that is all" if isinstance(message, str) else b"that is all")
            elif kind == "leave":
                await socket.close(1000, "bye")
        elif path == "/fails":
            await socket.send('{"error": "overloaded"}')
        elif path == "/closes":
            await socket.close(1013, "try again later")
        elif path == "/silent":
            pass
        elif path.startswith("/of"):
            await socket.send(path)
        elif path == "/large":
            await socket.send("x" * 100_000)
        else:
            await socket.ping()
            await socket.send(message)


async def main():
    options = {"process_request": process_request, "select_subprotocol": select_subprotocol}
    async with serve(handler, "127.0.0.1", 0, **options) as server:
        port = server.sockets[0].getsockname()[1]
        print(f"listening on 127.0.0.1:{port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
