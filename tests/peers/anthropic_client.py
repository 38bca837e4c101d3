"""The anthropic package as client of the LLM simulator, whose URL is the argument: messages, whole and streamed. Fails
if the package does not parse an answer like one of Anthropic's."""

import os
import sys

from anthropic import Anthropic, BadRequestError

TEXT = "Load is what a link carries, and the load line shows how much it carries before it sinks."

os.environ["NO_PROXY"] = "127.0.0.1"
client = Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
asked = {"model": "any", "system": "Be brief.", "messages": [{"role": "user", "content": "What is a load line?"}]}

for limit, text, reason in ((100, TEXT, "end_turn"), (2, "Load is", "max_tokens")):
    whole = client.messages.create(max_tokens=limit, **asked)
    # The package puts the message together from its events, and refuses events that do not fit together.
    with client.messages.stream(max_tokens=limit, **asked) as events:
        pieces = list(events.text_stream)
        gathered = events.get_final_message()
    assert "".join(pieces) == text, pieces
    for message in (whole, gathered):
        assert [block.text for block in message.content] == [text], message
        assert (message.stop_reason, message.model, message.role) == (reason, "any", "assistant"), message
        assert (message.usage.input_tokens, message.usage.output_tokens) == (7, len(text.split())), message

kinds = [event.type for event in client.messages.create(max_tokens=2, stream=True, **asked)]
assert kinds == ["message_start", "content_block_start"] + ["content_block_delta"] * 2 + [
    "content_block_stop",
    "message_delta",
    "message_stop",
], kinds

try:
    client.messages.create(max_tokens=0, **asked)
    raise SystemExit("a request for no tokens was answered")
except BadRequestError as refused:
    assert "max_tokens" in str(refused), refused

print("ok")
