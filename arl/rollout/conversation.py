"""Hold a conversation with the policy: the messages so far in, its next message out. No token is ever re-tokenized.

    messages ─► replies that are known: as they were said ─► chat template ─► text
        does it begin with the text that an earlier turn had, or left?
            ├─► yes, and nothing came after that turn: what is new is tokenized alone, and appended to its branch
            └─► somebody went on there, or history has changed: a fork, with the tokens so far as context
    ─► session.generate ─► tool calls ─► Reply

A client sends the whole list of messages each time, as OpenAI's do. It may change the history, or ask twice. Templates
change it as well: those of thinking models drop earlier thoughts once the user speaks again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from arl.data.chat import THOUGHT_END, Message, ToolSpec, for_template, key_of
from arl.rollout.env import Session
from arl.rollout.record import Branch, TurnSpan
from arl.rollout.tool_calls import Said, parser_for
from arl.types import Completion

if TYPE_CHECKING:
    from arl.data.tokenizer import HuggingFaceCodec

PROBE = "Probe7"  # what no template contains
NOTHING = Completion((), (), (), "length")


class Reply(Struct, frozen=True):
    """Hold what the policy said in one turn."""

    message: Message  # role assistant, content, and, where it has them, tool_calls and reasoning_content
    finish_reason: Literal["stop", "length", "tool_calls"]
    completion: Completion  # its tokens; none: there was no room for any
    prompt_tokens: int
    malformed: str = ""  # what is wrong with a tool call, for the policy to read


@dataclass(eq=False)
class _Turn:
    """Hold a turn of the policy, and the text around it."""

    number: int
    prompt: str  # rendered before it
    branch: Branch
    start: int
    end: int | None = None  # None: it has not ended
    span: TurnSpan | None = None
    said: str = ""  # without what ended it
    known: Sequence[Message] = ()  # up to its reply, as the template takes them
    keys: Sequence[tuple[Any, ...]] = ()  # of `known`
    text: str = ""  # rendered of `known`; empty: the template does not show the reply as it was said
    closing: str = ""  # the end of that text, behind the reply

    @property
    def is_last(self) -> bool:
        """Return whether its branch ends with it."""
        last = self.branch.last_turn
        return last is not None and last.start == self.start and self.end == len(self.branch)


class Conversation:
    """Extend the record of an episode by messages. One for each session; calls may overlap."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._codec = cast("HuggingFaceCodec", session.codec)
        self._turns: list[_Turn] = []

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        limit: int | None = None,
        stop: Sequence[str] = (),
    ) -> Reply:
        """Let the policy answer.

        Args:
            messages: all of them, as an OpenAI client sends them.
            tools: what the policy may call.
            limit: tokens of this turn; None: the whole budget.
            stop: strings that end this turn, beside those of the recipe.

        Raises:
            DataError: the model has no chat template, or one that does not show earlier turns or does not take these
                messages; or it knows no tools.
        """
        prompts = self._codec.prompts
        prompts.check_turns()
        parse = parser_for(str(prompts.template), prompts.model) if tools else Said
        known = self._as_said([for_template(message) for message in messages])
        text = prompts.render(known, tools)
        branch = self._go_on(text, self._codec.encode)
        turn, completion = await self._speak(text, branch, limit, stop)
        said = parse(turn.said)
        if turn.span is not None:
            self._note_reply(turn, known, tools, said)
        has_calls = bool(said.calls) and completion.finish_reason == "stop"
        return Reply(
            message=_for_client(said, f"call-{turn.number}"),
            finish_reason="tool_calls" if has_calls else _reason(completion),
            completion=completion,
            prompt_tokens=turn.start,
            malformed=said.malformed,
        )

    async def go_on(self, text: str, *, limit: int | None = None, stop: Sequence[str] = ()) -> Reply:
        """Let the policy continue a text, without the chat template.

        What the text repeats of an earlier turn is that turn's tokens, but for the token that ended it.
        """
        branch = self._go_on(text, self._codec.encode_plain)
        turn, completion = await self._speak(text, branch, limit, stop)
        if turn.span is not None:
            kept = self._session.tokens_of(turn.span)
            turn.text = text + self._codec.decode(kept)
            turn.end = turn.start + len(kept)
        return Reply({"content": turn.said}, _reason(completion), completion, turn.start)

    async def _speak(
        self, prompt: str, branch: Branch, limit: int | None, stop: Sequence[str]
    ) -> tuple[_Turn, Completion]:
        """Let the policy take a turn, unless the episode is over."""
        turn = _Turn(len(self._turns) + 1, prompt, branch, start=len(branch))
        if self._session.is_over:
            return turn, NOTHING
        self._turns.append(turn)
        completion = await self._session.generate(limit, stop_strings=stop)
        turn.end = turn.start + len(completion.token_ids)
        turn.span = branch.last_turn
        assert turn.span is not None
        turn.said = self._session.text_of(turn.span)
        return turn, completion

    def _as_said(self, messages: list[Message]) -> list[Message]:
        """Put back what clients leave out of replies or write in another way, such as thoughts."""
        keys = [key_of(message) for message in messages]

        def agrees(turn: _Turn) -> bool:
            return turn.end is not None and turn.keys == keys[: len(turn.keys)]

        best = max(filter(agrees, self._turns), key=lambda turn: len(turn.known), default=None)
        if best is None:
            return messages
        return [*best.known, *messages[len(best.known) :]]

    def _go_on(self, text: str, encode_first: Callable[[str], tuple[int, ...]]) -> Branch:
        """Bring a branch to where it holds `text` as tokens: that of the turn whose text is the longest part of it.

        Args:
            encode_first: encodes it where there is none.
        """
        encode = self._codec.encode
        after = [turn for turn in self._turns if turn.text and text.startswith(turn.text)]
        before = [turn for turn in self._turns if text.startswith(turn.prompt)]
        last = max(after, key=lambda turn: (len(turn.text), turn.is_last), default=None)
        asked = max(before, key=lambda turn: len(turn.prompt), default=None)
        if last is not None and (asked is None or len(asked.prompt) < len(last.text)):
            assert last.end is not None
            branch = last.branch
            new = encode(last.closing + text[len(last.text) :])
            said_last = branch.token_ids[last.end - 1]
            if last.closing and new[:1] == (said_last,):  # the policy has said itself that its turn ends
                new = new[1:]
            if not last.is_last:
                return self._session.fork(branch, last.end, new)
            self._session.extend_tokens(branch, new)
            return branch
        if asked is not None:
            rest = text[len(asked.prompt) :]
            return self._session.fork(asked.branch, asked.start, encode(rest))
        return self._begin(encode_first(text))

    def _begin(self, token_ids: tuple[int, ...]) -> Branch:
        """Begin with the prompt of the group, as far as these tokens do."""
        first = self._session.branches[0]
        prompt = tuple(first.token_ids[: first.prompt_length])
        kept = len(prompt) if token_ids[: len(prompt)] == prompt else 0
        if not kept or first.last_turn is not None or len(first) > kept:
            return self._session.fork(first, kept, token_ids[kept:])
        self._session.extend_tokens(first, token_ids[kept:])
        return first

    def _note_reply(self, turn: _Turn, known: Sequence[Message], tools: Sequence[ToolSpec], said: Said) -> None:
        """Note how the template shows the reply now, so that later texts can be compared with it."""
        message: Message = {"role": "assistant", "content": said.content}
        if said.calls:
            message["tool_calls"] = [{"type": "function", "function": call} for call in said.calls]
        turn.known = [*known, message]
        turn.keys = [key_of(each) for each in turn.known]
        probe: Message = {"role": "assistant", "content": PROBE}
        prompts = self._codec.prompts
        text = prompts.render(turn.known, tools, for_answer=False)
        probed = prompts.render([*known, probe], tools, for_answer=False)
        closing = probed.rpartition(PROBE)[2]
        shown = _squeezed(text.removeprefix(turn.prompt))
        said_texts = [said.content, *(call["name"] for call in said.calls)]
        if text.endswith(closing) and all(_squeezed(each) in shown for each in said_texts):
            turn.text = text
            turn.closing = closing


def _reason(completion: Completion) -> Literal["stop", "length"]:
    return "stop" if completion.finish_reason == "stop" else "length"


def _squeezed(text: str) -> str:
    """Leave out all space, which templates add and strip."""
    return "".join(text.split())


def _for_client(said: Said, name: str) -> Message:
    """Write a reply as OpenAI's API does."""
    thoughts, mark, answer = said.content.rpartition(THOUGHT_END)
    message: Message = {"role": "assistant", "content": answer.lstrip("\n")}
    if mark:
        message["reasoning_content"] = thoughts.removeprefix("<think>").strip("\n")
    calls = []
    for i, call in enumerate(said.calls):
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        calls.append({"id": f"{name}-{i}", "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    return message
