"""A token-streaming stack on Python's `websockets`: python websockets_server.py [CERT KEY]

Prints the addresses of its API and of its sockets, and serves until it is killed. Every
odd token arrives in fragments, a ping comes before each run's third token, and the socket of every
fourth session is dropped in mid-run; the next socket continues after the last number that the client
received. With a certificate and its key both addresses use TLS. With TENANT in the environment,
requests and upgrades need an X-Tenant of that value, and requests also an Authorization, whose
values are written to the file `keys`, one per line.
"""

import asyncio
import http.server
import json
import os
import ssl
import sys
import threading
import uuid
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import serve

WORDS = [f"word{i} " for i in range(12)]
TLS = None
if len(sys.argv) > 2:
    TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    TLS.load_cert_chain(sys.argv[1], sys.argv[2])
TENANT = os.environ.get("TENANT")
KEYS = []


def is_known(headers):
    return TENANT is None or headers.get_all("X-Tenant") == [TENANT]


def record_key(key):
    if key is not None and key not in KEYS:
        KEYS.append(key)
        with open("keys", "a") as file:
            file.write(key + "\n")
    return key


class Session:
    def __init__(self, number):
        self.log, self.drops = [], number % 4 == 3
        self.grown = asyncio.Event()

    def add(self, frame):
        self.log.append(json.dumps({**frame, "seq": len(self.log) + 1}))
        self.grown.set()

    async def run(self, run):
        for word in WORDS:
            await asyncio.sleep(0.004)
            self.add({"type": "token", "content": word, "run": run})
        self.add({"type": "done", "content": "", "run": run, "tokens": len(WORDS), "finish": "stop"})


SESSIONS = {}
LOOP = asyncio.new_event_loop()


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = self.path.strip("/").split("/")
        status, answer = 404, {"error": "nothing here"}
        if not is_known(self.headers) or TENANT and record_key(self.headers.get("Authorization")) is None:
            status, answer = 403, {"error": "who asks?"}
        elif parts == ["session", "create"]:
            name = str(uuid.uuid4())
            SESSIONS[name] = Session(len(SESSIONS))
            status, answer = 200, {"session_id": name, "token": "token-of-" + name}
        elif len(parts) == 3 and parts[1] in SESSIONS and parts[2] == "run":
            session = SESSIONS[parts[1]]
            assert isinstance(json.loads(asked)["query"], str), asked
            run = len(session.log) + 1
            asyncio.run_coroutine_threadsafe(session.run(run), LOOP)
            status, answer = 200, {"run": run, "tokens": len(WORDS)}
        elif len(parts) == 3 and parts[1] in SESSIONS and parts[2] == "close":
            status, answer = 200, {"closed": True}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


async def serve_socket(socket):
    place = urlsplit(socket.request.path)
    name = place.path.rsplit("/", 1)[-1]
    headers = socket.request.headers
    if headers.get_all("Authorization") != [f"Bearer token-of-{name}"] or not is_known(headers):
        await socket.close(1008, "not your session")
        return
    session = SESSIONS[name]
    at = int(parse_qs(place.query).get("after", ["0"])[0])
    while True:
        while at < len(session.log):
            text = session.log[at]
            at += 1
            if session.drops and at == 5:
                session.drops = False
                socket.transport.abort()
                return
            if at % len(WORDS) == 3:
                await socket.ping()
            if at % 2:
                await socket.send(iter([text[:7], text[7:20], text[20:]]), text=True)
            else:
                await socket.send(text)
        session.grown.clear()
        waiting = [asyncio.create_task(session.grown.wait()), asyncio.create_task(socket.wait_closed())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        closed = waiting[1].done()
        for task in waiting:
            task.cancel()
        if closed:
            return


async def main():
    api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    api.daemon_threads = True
    if TLS:
        api.socket = TLS.wrap_socket(api.socket, server_side=True)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    # Compression is offered by the server's own default; the client never asks for it.
    async with serve(serve_socket, "127.0.0.1", 0, ssl=TLS) as server:
        print(f"api: listening on 127.0.0.1:{api.server_address[1]}", flush=True)
        print(f"sockets: listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


LOOP.run_until_complete(main())
