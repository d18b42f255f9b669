"""Write answers of OpenAI's API, whole or as the events of a stream.

Reply… ─► chat_answer, completion_answer ─► JSON
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

CHAT = "chat.completion"
TEXT = "text_completion"
DONE = b"data: [DONE]\n\n"


def chat_answer(replies: Sequence[Reply], codec: TextCodec, wants_logprobs: bool) -> dict[str, Any]:
    """Return the answer to a request to /chat/completions, with a choice for each reply."""
    choices = []
    for index, reply in enumerate(replies):
        logprobs = None
        if wants_logprobs:
            pairs = zip(_token_texts(reply, codec), reply.completion.logprobs, strict=True)
            content = [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in pairs
            ]
            logprobs = {"content": content, "refusal": None}
        choices.append(
            {"index": index, "message": reply.message, "finish_reason": reply.finish_reason, "logprobs": logprobs}
        )
    return _answer(CHAT, choices, replies)


def completion_answer(replies: Sequence[Reply], codec: TextCodec, wants_logprobs: bool) -> dict[str, Any]:
    """Return the answer to a request to /completions, with a choice for each reply."""
    choices = []
    for index, reply in enumerate(replies):
        logprobs = None
        if wants_logprobs:
            logprobs = {"tokens": _token_texts(reply, codec), "token_logprobs": reply.completion.logprobs}
        text = reply.message["content"]
        choices.append({"index": index, "text": text, "finish_reason": reply.finish_reason, "logprobs": logprobs})
    return _answer(TEXT, choices, replies)


def stream_events(answer: dict[str, Any], wants_usage: bool) -> Iterator[bytes]:
    """Yield the events of a stream that says the same as `answer`."""
    head = {key: answer[key] for key in ("id", "object", "created", "model")}
    if answer["object"] == CHAT:
        head["object"] = "chat.completion.chunk"
    for choice in answer["choices"]:
        for part in _parts(choice):
            yield _event({**head, "choices": [part]})
    if wants_usage:
        yield _event({**head, "choices": [], "usage": answer["usage"]})
    yield DONE


def _parts(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a stream says of one choice: of a chat's, what it says, and then why it ends."""
    if "message" not in choice:
        return [choice]
    delta = choice.pop("message")
    if delta.get("tool_calls"):
        delta = {**delta, "tool_calls": [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]}
    end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
    return [{**choice, "delta": delta, "finish_reason": None}, end]


def _token_texts(reply: Reply, codec: TextCodec) -> list[str]:
    return codec.decode_all([[token] for token in reply.completion.token_ids], special_tokens=True)


def _answer(kind: str, choices: list[dict[str, Any]], replies: Sequence[Reply]) -> dict[str, Any]:
    num_prompt = replies[0].prompt_tokens
    num_said = sum(len(reply.completion.token_ids) for reply in replies)
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_said, "total_tokens": num_prompt + num_said}
    return {
        "id": f"{'chatcmpl' if kind == CHAT else 'cmpl'}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL,
        "choices": choices,
        "usage": usage,
    }


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
