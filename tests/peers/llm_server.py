"""OpenAI's routes as commonly written in Python: an ASGI application that streams server-sent events, on uvicorn, or
on hypercorn (also HTTP/2) if the first argument says so. The model's name selects how it answers; the key must be
`sk-7f3a9c`. /metrics has the names of vLLM. Prints its address."""

import asyncio
import json
import sys

import asgi


async def whole_body(receive):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


# Words of all prompts and of all answers, and requests for the model `busy`, the first two of which are refused.
counts = {"prompt": 0, "generated": 0, "asked": 0}


def metrics():
    """Returns the metrics as vLLM's server writes them, with the Python client of Prometheus."""
    labels = 'engine="0",model_name="m"'
    return "".join(
        f"# HELP {name} Help.\n# TYPE {name.removesuffix('_total')} {kind}\n{name}{{{labels}}} {float(value)}\n"
        for name, kind, value in [
            ("vllm:num_requests_running", "gauge", 1),
            ("vllm:num_requests_waiting", "gauge", 0),
            ("vllm:kv_cache_usage_perc", "gauge", 0.25),
            ("vllm:prefix_cache_queries_total", "counter", counts["prompt"]),
            ("vllm:prefix_cache_hits_total", "counter", counts["prompt"] / 2),
            ("vllm:num_preemptions_total", "counter", 3),
            ("vllm:prompt_tokens_total", "counter", counts["prompt"]),
            ("vllm:generation_tokens_total", "counter", counts["generated"]),
            ("process_open_fds", "gauge", 9),
        ]
    )


def echo(text):
    """Returns the complete answer to a question."""
    return "".join(word + " " for word in text.split())


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = await whole_body(receive)
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}

    async def begin(status, kind):
        fields = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": fields})

    async def say(text, more=True):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

    async def refuse(status, message):
        await begin(status, "application/json")
        await say(json.dumps({"error": {"message": message, "type": "invalid_request_error"}}), False)

    if scope["path"] == "/metrics":
        await begin(200, "text/plain; version=0.0.4; charset=utf-8")
        return await say(metrics(), False)
    if headers.get("authorization") != "Bearer sk-7f3a9c":
        return await refuse(401, "Incorrect API key provided")
    asked = json.loads(body)
    if asked["model"] == "busy":
        counts["asked"] += 1
        if counts["asked"] <= 2:
            fields = [(b"content-type", b"application/json"), (b"retry-after", b"0.2")]
            await send({"type": "http.response.start", "status": 429, "headers": fields})
            return await say('{"error": {"message": "Rate limit reached"}}', False)
    chat = scope["path"] == "/v1/chat/completions"
    if not asked.get("stream") or chat != ("messages" in asked):
        return await refuse(400, "not a stream, or another API's")
    said = asked.get("messages", [])
    if asked["model"] == "recalls":
        # A conversation must repeat the earlier answers.
        for question, answer in zip(said, said[1:]):
            if answer["role"] == "assistant" and answer["content"] != echo(question["content"]):
                return await refuse(400, f"not what was answered: {said}")
        roles = [message["role"] for message in said]
        if roles != ["system"] + ["user", "assistant"] * (len(said) // 2 - 1) + ["user"]:
            return await refuse(400, f"not a conversation: {roles}")
    # The answer repeats the prompt.
    prompt = asked["messages"][-1]["content"] if chat else asked["prompt"]
    words = prompt.split()[: asked.get("max_tokens")]
    with_usage = asked.get("stream_options", {}).get("include_usage")

    def event(choices, **more):
        kind = "chat.completion.chunk" if chat else "text_completion"
        data = {"id": "x-1", "object": kind, "created": 1, "model": asked["model"], "choices": choices}
        return f"data: {json.dumps({**data, **more})}\n\n"

    def piece(text):
        choice = {"delta": {"content": text}} if chat else {"text": text}
        return event([{"index": 0, **choice, "finish_reason": None}])

    counts["prompt"] += len(prompt.split())
    await begin(200, "text/event-stream")
    # A comment, as some servers send to keep proxies from timing out.
    await say(": waiting\r\n\r\n")
    if chat:
        await say(event([{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
    await asyncio.sleep(0.05)
    for number, word in enumerate(words):
        if asked["model"] == "fails" and number == 2:
            await say('data: {"error": {"message": "CUDA out of memory", "code": 500}}\n\n')
            return await say("", False)
        counts["generated"] += 1
        await say(piece(word + " "))
        await asyncio.sleep(0.005)
    if asked["model"] == "short":
        return await say("", False)
    await say(event([{"index": 0, "delta" if chat else "text": {} if chat else "", "finish_reason": "stop"}]))
    if with_usage:
        # Has more tokens than pieces, like speculative decoding.
        asked_for = " ".join(message["content"] for message in said) if chat else prompt
        usage = {"prompt_tokens": len(asked_for.split()), "completion_tokens": 2 * len(words)}
        await say(event([], usage=usage))
    await say("data: [DONE]\n\n", False)


if __name__ == "__main__":
    asgi.serve(app, *sys.argv[1:])
