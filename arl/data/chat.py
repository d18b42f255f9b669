"""Define the messages of a conversation, in the form that OpenAI's clients and chat templates share, and compare them.

{"role": "assistant", "content": "…", "tool_calls": [{"id": …, "function": {"name": …, "arguments": "{…}"}}]}
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from arl.data.text_codec import TextCodec
from arl.errors import DataError
from arl.types import Problem

Message = dict[str, Any]
ToolSpec = dict[str, Any]  # {"type": "function", "function": {"name", "description", "parameters": JSON schema}}
THOUGHT_END = "</think>"
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")


class ChatCodec(TextCodec, Protocol):
    """Render conversations too, with the model's own template."""

    @property
    def name(self) -> str:
        """Return the model's, for messages to the user."""

    @property
    def template(self) -> str | None:
        """Return the source of the chat template; None: prompts are plain text."""

    def messages(self, problem: Problem) -> list[Message]:
        """Return the messages of a problem's prompt, with the recipe's system prompt and suffix."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), for_answer: bool = True) -> str:
        """Return the text of a conversation; `for_answer`: ready for the policy's turn.

        Raises:
            DataError: the template does not take it.
        """

    def check_turns(self) -> None:
        """Raise where the template does not show earlier turns.

        Raises:
            DataError: a conversation would not be told from its last message.
        """


def for_template(message: Mapping[str, Any]) -> Message:
    """Return a message as templates take it: its content is text, and the arguments of its tool calls are objects.

    Raises:
        DataError: a part of its content is no text.
    """
    kept: Message = {name: message[name] for name in KEPT if message.get(name)}
    content = message.get("content") or ""
    if not isinstance(content, str):
        if any(part.get("type") != "text" for part in content):
            kinds = ", ".join(sorted({str(part.get("type")) for part in content}))
            raise DataError(f"a message of role {message['role']!r} has parts of type {kinds}; give text alone")
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
    answer = message["content"].rpartition(THOUGHT_END)[2]
    return message["role"], answer.strip(), tuple(said)


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise DataError(f"a call of tool {function['name']} has arguments that are no JSON ({error})") from error
    return {**function, "arguments": arguments}
