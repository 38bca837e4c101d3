"""Users of a token-streaming stack, on aiohttp and websockets: python session_client.py

It is independent of Plimsoll. Each user creates a session, and opens and closes a socket; for each
query it first sends the query, then opens a socket, reads it to `done`, and closes it; finally it
closes the session. The environment sets FASTAPI_URL, WSPROXY_URL, CLIENTS and QUERIES_PER_CLIENT.
Prints a JSON object with the numbers of queries and tokens, and how often each complete text was
received. The exit code is 0 if no query failed.
"""

import asyncio
import collections
import json
import os
import sys

import aiohttp
from websockets.asyncio.client import connect

API = os.environ["FASTAPI_URL"].rstrip("/")
SOCKETS = os.environ["WSPROXY_URL"].rstrip("/")
CLIENTS = int(os.environ.get("CLIENTS", "10"))
QUERIES = int(os.environ.get("QUERIES_PER_CLIENT", "1"))
# Seconds to wait for a token; long enough for a busy machine, so only a lost token exceeds it.
MAX_WAIT_S = 120


class Tally:
    def __init__(self):
        self.queries = self.tokens = 0
        self.texts, self.errors = collections.Counter(), collections.Counter()


def socket(session, token):
    headers = {"Authorization": f"Bearer {token}"}
    return connect(f"{SOCKETS}/agent/ws/{session}", additional_headers=headers, open_timeout=MAX_WAIT_S)


async def post(http, path, **more):
    async with http.post(API + path, **more) as answer:
        answer.raise_for_status()
        return await answer.json()


async def query(http, session, token, number, tally):
    await post(http, f"/session/{session}/run", json={"query": f"What is query {number}?"})
    words = []
    async with asyncio.timeout(MAX_WAIT_S), socket(session, token) as incoming:
        async for text in incoming:
            frame = json.loads(text)
            if frame["type"] == "token":
                words.append(frame["content"])
            elif frame["type"] == "done":
                break
        else:
            raise EOFError("the socket was closed before done")
    tally.queries += 1
    tally.tokens += len(words)
    tally.texts["".join(words)] += 1


async def user(http, tally):
    try:
        made = await post(http, "/session/create")
        session, token = made["session_id"], made["auth_token"]
        async with asyncio.timeout(MAX_WAIT_S), socket(session, token):
            pass
        for number in range(QUERIES):
            await query(http, session, token, number, tally)
        await post(http, f"/session/{session}/close")
    except Exception as e:
        tally.errors[f"{type(e).__name__}: {e}"] += 1


async def main():
    tally = Tally()
    limit = aiohttp.ClientTimeout(total=MAX_WAIT_S)
    async with aiohttp.ClientSession(timeout=limit) as http:
        await asyncio.gather(*(user(http, tally) for _ in range(CLIENTS)))
    print(json.dumps(vars(tally)))
    return 1 if tally.errors else 0


sys.exit(asyncio.run(main()))
