"""Define the messages of a conversation, in the form that OpenAI's clients and chat templates share, and compare them.

{"role": "assistant", "content": "…", "tool_calls": [{"id": …, "function": {"name": …, "arguments": "{…}"}}]}
"""

import json
from collections.abc import Mapping
from typing import Any

from arl.errors import DataError

Message = dict[str, Any]
ToolSpec = dict[str, Any]  # {"type": "function", "function": {"name", "description", "parameters": JSON schema}}
THOUGHT_END = "</think>"
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")


def for_template(message: Mapping[str, Any]) -> Message:
    """Return a message as templates take it: its content is text, and the arguments of its tool calls are objects.

    Raises:
        DataError: the arguments of a call are no JSON.
    """
    kept: Message = {name: message[name] for name in KEPT if message.get(name)}
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content)
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [{**call, "function": _with_object(call["function"])} for call in calls]
    return kept | {"content": content}


def key_of(message: Message) -> tuple[Any, ...]:
    """Return what is equal for messages that say the same.

    Clients strip space, leave out thoughts, write JSON in their own way, and number calls.
    """
    calls = [call["function"] for call in message.get("tool_calls", ())]
    said = [(call["name"], json.dumps(call["arguments"], sort_keys=True)) for call in calls]
    text = message["content"]
    if message["role"] == "assistant":
        text = text.rpartition(THOUGHT_END)[2]
    return message["role"], text.strip(), tuple(said)


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise DataError(f"a call of tool {function['name']} has arguments that are no JSON ({error})") from error
    return {**function, "arguments": arguments}
