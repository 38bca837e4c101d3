"""Tests the gateway with Python's `websockets`: python websockets_client.py API SOCKETS [CA|compressed]

API and SOCKETS are HOST:PORT; with a CA file both are reached over TLS. `compressed` requires that
the gateway agrees to permessage-deflate. Runs a session as a user of the library would, and exits
with 0 if everything was as expected.
"""

import asyncio
import json
import ssl
import sys
import urllib.request

import websockets
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

API, SOCKETS = sys.argv[1:3]
LINK = sys.argv[3] if len(sys.argv) > 3 else None
COMPRESSED = LINK == "compressed"
TLS = ssl.create_default_context(cafile=LINK) if LINK and not COMPRESSED else None
HTTP, WS = ("https", "wss") if TLS else ("http", "ws")


def post(path):
    request = urllib.request.Request(f"{HTTP}://{API}{path}", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
        return json.load(answer)


def open_socket(session, token, query="", **more):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    more.setdefault("additional_headers", headers)
    return connect(f"{WS}://{SOCKETS}/agent/ws/{session}{query}", ssl=TLS, open_timeout=10, **more)


async def until_done(socket):
    frames = []
    async with asyncio.timeout(20):
        async for text in socket:
            frames.append(json.loads(text))
            if frames[-1]["type"] == "done":
                return frames
    raise AssertionError(f"the socket ended before its done: {frames}")


async def assert_refused(status, *arguments):
    try:
        async with open_socket(*arguments):
            raise AssertionError("it was let in")
    except InvalidStatus as e:
        assert e.response.status_code == status, e


async def main():
    made = await asyncio.to_thread(post, "/session/create")
    session, token = made["session_id"], made["token"]
    await assert_refused(401, session, None)
    await assert_refused(403, session, token[:-2] + ("aa" if token[-2:] != "aa" else "bb"))
    await assert_refused(403, "another-session", token)

    async with open_socket(session, token) as socket:
        agreed = [extension.name for extension in socket.protocol.extensions]
        assert agreed == ["permessage-deflate"] * COMPRESSED, agreed
        pong = await socket.ping(b"are you there")
        await asyncio.wait_for(pong, 10)
        begun = await asyncio.to_thread(post, f"/session/{session}/run")
        frames = await until_done(socket)
        assert [f["seq"] for f in frames] == list(range(1, begun["tokens"] + 2)), frames
        assert frames[-1]["tokens"] == begun["tokens"] and frames[-1]["finish"] == "stop"
        # A message in fragments, of a type that has no listener: the gateway reports an error.
        await socket.send(iter(['{"type":', '"hel', 'lo"}']), text=True)
        error = json.loads(await asyncio.wait_for(socket.recv(), 10))
        assert error["type"] == "error" and error["code"] == "nobody_listens", error

    # The client cancels the run; it passes its token as a browser has to.
    async with open_socket(session, None, subprotocols=["bearer", token]) as socket:
        assert socket.subprotocol == "bearer"
        # On a busy machine a run may be over before it is cancelled.
        for _ in range(50):
            await asyncio.to_thread(post, f"/session/{session}/run")
            await socket.send('{"type":"cancel"}')
            frames = await until_done(socket)
            if frames[-1]["finish"] == "cancelled":
                break
        assert frames[-1]["finish"] == "cancelled", frames
        last = frames[-1]["seq"]

    # The client reconnects and reads the last three frames.
    async with open_socket(session, token, f"?after={last - 3}") as socket:
        resumed = json.loads(await asyncio.wait_for(socket.recv(), 10))
        assert resumed["type"] == "resumed" and resumed["resumed"] is True, resumed
        frames = [json.loads(await asyncio.wait_for(socket.recv(), 10)) for _ in range(3)]
        assert [f["seq"] for f in frames] == [last - 2, last - 1, last], frames

    # An oversized message is answered by close code 1009; a second socket closes the first with 4001.
    async with open_socket(session, token) as socket:
        await socket.send('"' + "x" * 100_000 + '"')
        try:
            await asyncio.wait_for(socket.recv(), 10)
            raise AssertionError("100 kB were taken")
        except ConnectionClosed as e:
            assert e.rcvd.code == 1009, e
    async with open_socket(session, token) as first:
        async with open_socket(session, token):
            try:
                await asyncio.wait_for(first.recv(), 10)
                raise AssertionError("two sockets for one session")
            except ConnectionClosed as e:
                assert e.rcvd.code == 4001, e
    print(f"ok: websockets {websockets.__version__}, {last} frames")


asyncio.run(main())
