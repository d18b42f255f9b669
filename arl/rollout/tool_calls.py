"""Find the tool calls in what a policy said, in the form that its family was taught.

    hermes   <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>       Qwen, Hermes, arl's tiny models
    llama    {"name": "add", "parameters": {"a": 1}}, also behind <|python_tag|>   Llama 3

The chat template says which. Whatever it is, a call that cannot be read is no error of the run: the policy is told.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from arl.errors import DataError

PYTHON_TAG = "<|python_tag|>"
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class Said(Struct, frozen=True):
    """Split what the policy said in a turn."""

    content: str  # before the calls
    calls: tuple[dict[str, Any], ...] = ()  # name and arguments
    malformed: str = ""  # what is wrong with a call; then there are no calls, and the content is all that was said


Parser = Callable[[str], Said]


def parser_for(template: str, model: str) -> Parser:
    """Return the parser of the calls that a chat template teaches.

    Raises:
        DataError: the template shows no tools, or has calls of a form that arl does not read.
    """
    if "tool" not in template:
        raise DataError(f"the chat template of {model} knows no tools: leave out rollout.tools, or take another model")
    if "<tool_call>" in template and "<function=" not in template:
        return parse_hermes
    if PYTHON_TAG in template or '"parameters"' in template:
        return parse_llama
    raise DataError(
        f"the chat template of {model} has tool calls of a form that arl does not read; it reads <tool_call>{{JSON}} "
        "as of Qwen, and JSON as of Llama 3"
    )


class _HermesCall(Struct):
    name: str
    arguments: dict[str, Any]


class _LlamaCall(Struct):
    name: str
    arguments: dict[str, Any] = field(name="parameters")


def parse_hermes(text: str) -> Said:
    """Read calls between <tool_call> and </tool_call>."""
    written = _HERMES.findall(text)
    return _read(text, text.partition("<tool_call>")[0], written, _HermesCall)


def parse_llama(text: str) -> Said:
    """Read the call of a turn that is JSON and nothing else. There is one, because the template shows no more."""
    head, tag, tail = text.partition(PYTHON_TAG)
    body = tail if tag else text
    if not tag and not body.lstrip().startswith("{"):
        return Said(text)
    return _read(text, head if tag else "", [body], _LlamaCall)


def _read(text: str, content: str, written: list[str], form: type[_HermesCall] | type[_LlamaCall]) -> Said:
    calls = []
    for one in written:
        try:
            call = msgspec.json.decode(one, type=form)
        except (ValueError, RecursionError) as error:
            name, arguments = form.__struct_encode_fields__
            example = f'{{"{name}": …, "{arguments}": {{…}}}}'
            return Said(text, malformed=f"the tool call cannot be read ({error}); write {example}")
        calls.append({"name": call.name, "arguments": call.arguments})
    return Said(content if calls else text, tuple(calls))
