"""An ASGI application on uvicorn or hypercorn, as the first argument says; a certificate and its key may follow. It
answers with fixed bodies, echoes, bodies in pieces, statuses, and streams of server-sent events, some of which are
cut off. Prints its address."""

import email.utils
import sys
import time

import asgi

asked = {"busy": 0}


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body")
    what, _, number = scope["path"].strip("/").partition("/")
    number = int(number or 0)

    async def begin(status, *fields):
        version = (b"x-version", scope["http_version"].encode())
        await send({"type": "http.response.start", "status": status, "headers": [version, *fields]})

    async def say(data, more=True):
        await send({"type": "http.response.body", "body": data, "more_body": more})

    if what == "bytes":
        await begin(200, (b"content-length", b"%d" % number))
        await say(b"x" * number, False)
    elif what == "pieces":
        await begin(200)
        for _ in range(number):
            await say(b"0123456789")
        await say(b"", False)
    elif what == "echo":
        await begin(201, (b"content-type", dict(scope["headers"])[b"content-type"]))
        await say(body, False)
    elif what == "status":
        await begin(number, (b"retry-after", b"2"))
        await say(b"no", False)
    elif what == "busy":
        # Refuses the first requests, for a second in both forms of Retry-After.
        asked["busy"] += 1
        if asked["busy"] > number:
            await begin(200)
            return await say(b"ok", False)
        date = email.utils.formatdate(time.time() + 1, usegmt=True)
        wait = "1" if asked["busy"] % 2 else date
        await begin(429, (b"retry-after", wait.encode()))
        await say(b"later", False)
    elif what == "sse":
        await begin(200, (b"content-type", b"text/event-stream"))
        for n in range(number):
            await say(b'data: {"n": %d}\n\n' % n)
        await say(b"data: [DONE]\n\n", False)
    elif what == "breaks":
        await begin(200, (b"content-type", b"text/event-stream"))
        await say(b"data: 1\n\n")
        raise RuntimeError("in the middle of an answer")


if __name__ == "__main__":
    asgi.serve(app, *sys.argv[1:])
