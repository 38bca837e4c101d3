"""Rooms with a login over HTTP and a socket for each member, on the websockets package: python ws_rooms.py [CERT KEY]

Prints the addresses of its API and of its sockets, which use TLS with a certificate and its key. A member logs in over HTTP, and opens a socket that needs the token of
that login in a header field, in the query and in the subprotocol, and its cookie. A saying is answered by two messages
about others, and one with its id; news that are asked for over HTTP are sent over the socket before that request is
answered. A binary frame is sent back behind the byte 255 and its length. Each socket's close code is written to the file `closes`, one per line.
"""

import asyncio
import http.server
import json
import ssl
import sys
import threading
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

LOOP = asyncio.new_event_loop()
MEMBERS = {}
SOCKETS = {}
LOCK = threading.Lock()
TLS = None
if len(sys.argv) > 2:
    TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    TLS.load_cert_chain(sys.argv[1], sys.argv[2])


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def respond(self, status, answer, *fields):
        body = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        place = urlsplit(self.path)
        if place.path == "/login":
            with LOCK:
                member = f"m{len(MEMBERS)}"
                MEMBERS[member] = json.loads(asked)["user"]
            cookie = ("Set-Cookie", f"sid=s-{member}; Path=/")
            self.respond(200, {"member": member, "token": f"t.{member}"}, cookie)
        elif place.path == "/news":
            member = parse_qs(place.query)["member"][0]
            asyncio.run_coroutine_threadsafe(send_news(SOCKETS[member]), LOOP).result()
            self.respond(202, {"sent": 4})
        else:
            self.respond(404, {"error": "nothing here"})

    def log_message(self, *_):
        pass


async def send_news(socket):
    for number in range(3):
        await socket.send(json.dumps({"type": "news", "number": number}))
    await socket.send(json.dumps({"type": "end", "of": {"news": 3}}))


def process_request(connection, request):
    """Rejects upgrades that lack what the login gave."""
    place = urlsplit(request.path)
    member = place.path.rsplit("/", 1)[-1]
    sent = [
        request.headers.get("Authorization"),
        request.headers.get("Cookie"),
        parse_qs(place.query).get("token"),
        request.headers.get("Sec-WebSocket-Protocol"),
    ]
    wanted = [f"Bearer t.{member}", f"sid=s-{member}", [f"t.{member}"], f"room.v1, t.{member}"]
    if member not in MEMBERS or sent != wanted:
        return connection.respond(401, f"{sent}\n")
    return None


async def handler(socket):
    place = urlsplit(socket.request.path)
    member = place.path.rsplit("/", 1)[-1]
    SOCKETS[member] = socket
    try:
        await socket.send(json.dumps({"type": "welcome", "user": MEMBERS[member], "seat": 7}))
        async for text in socket:
            if isinstance(text, bytes):
                await socket.send(bytes([255, len(text)]) + text)
                continue
            message = json.loads(text)
            if message["do"] == "say":
                await socket.ping()
                for other in range(2):
                    await socket.send(json.dumps({"type": "said", "id": -other, "text": "x"}))
                await socket.send(json.dumps({"type": "said", "id": message["id"], "text": message["text"]}))
            elif message["do"] == "fail":
                await socket.send(json.dumps({"type": "error", "why": "no such room"}))
            elif message["do"] == "leave":
                await socket.send("bye")
                await socket.close(1013, "try again later")
    except ConnectionClosed:
        pass
    finally:
        with open("closes", "a") as file:
            file.write(f"{socket.close_code}\n")


async def main():
    api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    api.daemon_threads = True
    threading.Thread(target=api.serve_forever, daemon=True).start()
    options = {"process_request": process_request, "subprotocols": ["room.v1"]}
    async with serve(handler, "127.0.0.1", 0, ssl=TLS, **options) as server:
        print(f"api: listening on 127.0.0.1:{api.server_address[1]}", flush=True)
        print(f"sockets: listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


LOOP.run_until_complete(main())
