"""Read requests of OpenAI's API. Nothing here knows an episode.

body ─► read_request ─► ChatRequest or CompletionRequest        RefusedRequest ─► 4xx {"error": {…}}

The trainer learns from the policy itself. Therefore a parameter that would change the distribution of a token, such as
top_p, is served at its neutral value alone.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from arl.errors import ArlError, short_message

MODEL = "policy"  # the one model that an endpoint serves
CONTEXT_EXCEEDED = "context_length_exceeded"  # the code by which agents and libraries know that nothing more fits
NEUTRAL: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "logit_bias": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "top_logprobs": 0,
    "top_p": 1,
}
WITHOUT_EFFECT = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
MAX_CHOICES = 128  # as OpenAI's

Positive = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]


class RefusedRequest(ArlError):
    """Report that a request cannot be served as it is. The episode goes on.

    Args:
        message: value, rule and remedy.
        status: of HTTP.
        code: a short name for programs.
    """

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(short_message(message))
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the answer in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


class SamplingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Hold what both kinds of requests have in common; null is the default of every field."""

    model: str
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Text | list[Text] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    temperature: float | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the strings that end the answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def limit(self) -> int | None:
        """Return the most tokens of one choice; None: what is left of the budget."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_usage(self) -> bool:
        """Return whether a stream ends with the usage."""
        return bool((self.stream_options or {}).get("include_usage"))


class TextPart(Struct):
    """Hold a part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(Struct):
    """Hold what a call says."""

    name: str
    arguments: str  # JSON


class ToolCallMessage(Struct):
    """Hold a call in a message of the assistant."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(Struct, omit_defaults=True):
    """Hold one message. Fields of other names are for other clients."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallMessage] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(SamplingRequest):
    """Hold a request to /chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    logprobs: bool | None = None


class CompletionRequest(SamplingRequest):
    """Hold a request to /completions."""

    prompt: Text
    logprobs: Literal[0] | None = None


R = TypeVar("R", bound=SamplingRequest)


def read_request(body: bytes, kind: type[R], temperature: float) -> R:
    """Read the body of a request.

    Args:
        temperature: of the recipe, the only one that is served.

    Raises:
        RefusedRequest: it is malformed, or asks for what is not served.
    """
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
        for name in WITHOUT_EFFECT:
            given.pop(name, None)
        for name, neutral in NEUTRAL.items():
            _refuse_other(name, given.pop(name, None), neutral)
        request = msgspec.convert(given, kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RefusedRequest(f"{error}; leave out what is not served") from error
    if request.model != MODEL:
        reason = f"model {request.model!r}: this endpoint serves the policy in training alone; ask for {MODEL!r}"
        raise RefusedRequest(reason, 404, "model_not_found")
    _refuse_other("temperature", request.temperature, temperature)
    return request


def _refuse_other(name: str, value: Any, served: Any) -> None:
    """Refuse a parameter that has another value than the one that is served."""
    if value is not None and value != served:
        reason = f"{name} {value!r}: only {served!r} is served, because the trainer learns from the policy itself"
        raise RefusedRequest(f"{reason}; leave it out", code="unsupported_value")
