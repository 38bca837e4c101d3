"""A token-streaming backend in FastAPI, served by Granian: python session_backend.py

It is independent of Plimsoll: sessions are keys in Redis, tokens are only PUBLISHed, frames are not
numbered, and the answer to /run does not announce the number of tokens. Environment variables set
everything: REDIS_URL, FASTAPI_HOST, FASTAPI_PORT, FASTAPI_WORKERS, TOKEN_DELAY_MS,
LLM_RESPONSE_TEXT, SESSION_TTL_SECONDS, JWT_SECRET, JWT_ALGORITHM.
"""

import asyncio
import base64
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import signal
import time
import uuid

import redis.asyncio
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

DELAY = float(os.environ.get("TOKEN_DELAY_MS", "50")) / 1000
TEXT = os.environ.get("LLM_RESPONSE_TEXT", "one two three four five six")
TTL = int(os.environ.get("SESSION_TTL_SECONDS", "10800"))
SECRET = os.environ.get("JWT_SECRET", "").encode()
RUNS = set()


class Query(BaseModel):
    query: str


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(session):
    assert os.environ.get("JWT_ALGORITHM", "HS256") == "HS256"
    head = {"alg": "HS256", "typ": "JWT"}
    claims = {"session_id": session, "iat": int(time.time())}
    signed = b".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
    signature = hmac.new(SECRET, signed, hashlib.sha256).digest()
    return (signed + b"." + base64url(signature)).decode()


@contextlib.asynccontextmanager
async def lifespan(app):
    app.state.redis = redis.asyncio.from_url(os.environ["REDIS_URL"])
    yield
    await asyncio.gather(*RUNS, return_exceptions=True)
    await app.state.redis.aclose()


app = FastAPI(lifespan=lifespan)


async def known(session):
    if not await app.state.redis.exists(f"session:{session}"):
        raise HTTPException(404, "Session not found")


@app.get("/health")
async def health():
    await app.state.redis.ping()
    return {"status": "healthy"}


@app.post("/session/create")
async def create():
    session = str(uuid.uuid4())
    await app.state.redis.set(f"session:{session}", "open", ex=TTL)
    return {"session_id": session, "auth_token": token(session)}


async def stream(session):
    channel, words = f"session:{session}:down", TEXT.split()
    for place, word in enumerate(words):
        await asyncio.sleep(DELAY)
        content = word if place == len(words) - 1 else word + " "
        await app.state.redis.publish(channel, json.dumps({"type": "token", "content": content}))
    await app.state.redis.publish(channel, json.dumps({"type": "done", "content": ""}))


@app.post("/session/{session}/run")
async def run(session: str, query: Query):
    await known(session)
    running = asyncio.create_task(stream(session))
    RUNS.add(running)
    running.add_done_callback(RUNS.discard)
    return {"status": "started", "session_id": session}


@app.post("/session/{session}/close")
async def close(session: str):
    await known(session)
    await app.state.redis.delete(f"session:{session}")
    return {"status": "closed", "session_id": session}


if __name__ == "__main__":
    from granian import Granian

    Granian(
        "session_backend:app",
        address=os.environ.get("FASTAPI_HOST", "127.0.0.1"),
        port=int(os.environ.get("FASTAPI_PORT", "8000")),
        workers=int(os.environ.get("FASTAPI_WORKERS", "1")),
        interface="asgi",
        log_access=False,
    ).serve()
else:
    # A worker ends when its master ends, however that happens (PR_SET_PDEATHSIG).
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
