"""Write answers of OpenAI's API, whole or as the events of a stream.

Reply… ─► answer_of ─► JSON
               └──► stream_events ─► data: …, data: [DONE]
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from arl.data.text_codec import TextCodec
from arl.endpoint.openai_requests import MODEL
from arl.rollout.conversation import Reply

Json = dict[str, Any]
CHAT = "chat.completion"
TEXT = "text_completion"


def answer_of(kind: str, replies: Sequence[Reply], codec: TextCodec, wants_logprobs: bool) -> Json:
    """Return a whole answer."""
    choices = []
    for i, reply in enumerate(replies):
        said = {"message": reply.message} if kind == CHAT else {"text": reply.message["content"]}
        logprobs = _logprobs(kind, reply, codec) if wants_logprobs else None
        choices.append({"index": i, **said, "logprobs": logprobs, "finish_reason": reply.finish_reason})
    num_prompt = replies[0].prompt_tokens
    num_said = sum(len(reply.completion.token_ids) for reply in replies)
    return {
        "id": f"{kind}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL,
        "choices": choices,
        "usage": {"prompt_tokens": num_prompt, "completion_tokens": num_said, "total_tokens": num_prompt + num_said},
    }


def stream_events(answer: Json, wants_usage: bool) -> Iterator[bytes]:
    """Yield the events of a stream that says the same as `answer`."""
    head = {key: answer[key] for key in ("id", "object", "created", "model")}
    if answer["object"] == CHAT:
        head["object"] = "chat.completion.chunk"
    for choice in answer["choices"]:
        for part in _parts(choice):
            yield _event({**head, "choices": [part]})
    if wants_usage:
        yield _event({**head, "choices": [], "usage": answer["usage"]})
    yield b"data: [DONE]\n\n"


def _parts(choice: Json) -> list[Json]:
    """Return what a stream says of one choice: of a chat's, what it says, and then why it ends."""
    if "message" not in choice:
        return [choice]
    delta = choice["message"]
    if "tool_calls" in delta:
        calls = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
        delta = {**delta, "tool_calls": calls}
    number = choice["index"]
    said = {"index": number, "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
    ended = {"index": number, "delta": {}, "finish_reason": choice["finish_reason"]}
    return [said, ended]


def _logprobs(kind: str, reply: Reply, codec: TextCodec) -> Json:
    texts = codec.decode_all([[token] for token in reply.completion.token_ids], special_tokens=True)
    logprobs = reply.completion.logprobs
    if kind == TEXT:
        return {"tokens": texts, "token_logprobs": logprobs}
    tokens = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in zip(texts, logprobs, strict=True)
    ]
    return {"content": tokens}


def _event(value: Json) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
