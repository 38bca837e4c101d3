"""The openai package as client of the LLM simulator, whose URL is the argument: models, chat completions,
completions and responses, whole and streamed, embeddings, several at once; over HTTP/2 if the second argument is a file of CA certificates.
Fails if the package does not parse an answer like one of OpenAI's."""

import asyncio
import ssl
import sys

import httpx
from openai import AsyncOpenAI, BadRequestError, OpenAI

TEXT = "Load is what a link carries, and the load line shows how much it carries before it sinks."

url, authorities = f"{sys.argv[1]}/v1", sys.argv[2:]
wire = {"trust_env": False, "http2": bool(authorities)}
if authorities:
    wire["verify"] = ssl.create_default_context(cafile=authorities[0])

client = OpenAI(base_url=url, api_key="none", max_retries=0, http_client=httpx.Client(**wire))
assert [model.id for model in client.models.list()] == ["plimsoll"]
version = client.models.with_raw_response.list().http_response.http_version
assert version == ("HTTP/2" if authorities else "HTTP/1.1"), version
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a load line?"}]

whole = client.chat.completions.create(model="any", messages=messages)
assert whole.choices[0].message.content == TEXT, whole
assert (whole.choices[0].finish_reason, whole.model) == ("stop", "any")
assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 18), whole.usage

cut = client.completions.create(model="any", prompt="Once upon a time", max_tokens=3)
assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("Load is what", "length"), cut

for options in ({}, {"stream_options": {"include_usage": True}}):
    events = list(client.chat.completions.create(model="any", messages=messages, stream=True, **options))
    pieces = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(pieces) == TEXT, pieces
    assert events[0].choices[0].delta.role == "assistant"
    usage = [event.usage.completion_tokens for event in events if event.usage]
    assert usage == ([18] if options else []), usage

texts = [event.choices[0].text for event in client.completions.create(model="any", prompt="x", stream=True)]
assert "".join(texts) == TEXT, texts

# The package puts the response together from its events, and refuses events that do not fit together.
for options, text, status in (({}, TEXT, "completed"), ({"max_output_tokens": 2}, "Load is", "incomplete")):
    whole = client.responses.create(model="any", instructions="Be brief.", input="What is it?", **options)
    with client.responses.stream(model="any", instructions="Be brief.", input=messages[1:], **options) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        gathered = events.get_final_response() if status == "completed" else None
    assert "".join(pieces) == text, pieces
    for response in filter(None, (whole, gathered)):
        assert (response.output_text, response.status) == (text, status), response
        assert response.usage.output_tokens == len(text.split()), response
        assert response.usage.input_tokens in (2 + 3, 2 + 5), response
    assert (whole.incomplete_details and whole.incomplete_details.reason) == (
        None if status == "completed" else "max_output_tokens"
    ), whole

for given, count, words in (("one two", 1, 2), (["one two", "three"], 2, 3)):
    vectors = client.embeddings.create(model="any", input=given)
    assert [len(item.embedding) for item in vectors.data] == [16] * count, vectors
    assert vectors.usage.prompt_tokens == words, vectors

try:
    client.chat.completions.create(model="any", messages=[])
    raise SystemExit("an empty list of messages was answered")
except BadRequestError as refused:
    assert "messages" in str(refused), refused


async def several(count):
    many = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=httpx.AsyncClient(**wire))

    async def one():
        stream = await many.chat.completions.create(model="any", messages=messages, stream=True)
        return "".join([event.choices[0].delta.content or "" async for event in stream])

    assert await asyncio.gather(*(one() for _ in range(count))) == [TEXT] * count


asyncio.run(several(20))
print("ok")
