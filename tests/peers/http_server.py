"""aiohttp's HTTP/1.1 server: fixed bodies, bodies until the end of the connection, streams of
server-sent events and of JSON lines, some of which fail in the middle. Prints its address."""

import asyncio
import gzip
import json
import sys
import zlib

import brotli
import zstandard
from aiohttp import web


async def fixed(request):
    return web.Response(body=b"x" * int(request.match_info["size"]))


PACKERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "identity": bytes,
}


async def packed(request):
    """Answers with a body in the requested content coding, which `Accept-Encoding` must allow."""
    coding = request.match_info["coding"]
    body = b'{"n": 1, "found": "needle"}\n' * int(request.match_info["count"])
    if request.query.get("sse"):
        body = b'data: {"n": 1}\n\n' * int(request.match_info["count"]) + b"data: [DONE]\n\n"
    if coding not in PACKERS:
        return web.Response(body=body, headers={"Content-Encoding": coding})
    if request.query.get("asked") and coding not in request.headers.get("Accept-Encoding", ""):
        return web.Response(status=406)
    body = PACKERS[coding](body)
    if request.query.get("cut"):
        body = body[:-3]
    status = int(request.query.get("status", "200"))
    return web.Response(status=status, body=body, headers={"Content-Encoding": coding})


async def until_close(request):
    response = web.StreamResponse(headers={"Connection": "close"})
    response.force_close()
    await response.prepare(request)
    await response.write(b"a body ")
    await response.write(b"without a length")
    return response


async def events(request):
    kind = request.match_info["kind"]
    count = int(request.match_info["count"])
    sse = request.match_info["format"] == "sse"
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream" if sse else "application/x-ndjson"}
    )
    await response.prepare(request)
    for number in range(count):
        text = json.dumps({"n": number})
        await response.write(f"data: {text}\r\n\r\n".encode() if sse else f"{text}\n".encode())
        await asyncio.sleep(0.002)
    if kind == "fails":
        await response.write(b'data: {"error": "overloaded"}\n\n' if sse else b'{"error": "overloaded"}\n')
    elif kind == "whole":
        await response.write(b"data: [DONE]\n\n" if sse else b'{"done": true}\n')
    return response


async def main():
    app = web.Application()
    app.router.add_get("/bytes/{size}", fixed)
    app.router.add_get("/packed/{coding}/{count}", packed)
    app.router.add_get("/close", until_close)
    app.router.add_route("*", "/{format}/{kind}/{count}", events)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
