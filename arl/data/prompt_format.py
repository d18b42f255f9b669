"""Render problems into prompts, with a model's own tokenizer: all prompts are made here.

    problem.prompt ─► suffix ─► the tokenizer has a chat template, and chat_template is true?
                                 ├─► yes: [system], user ─► template, ready for the answer ─► token ids
                                 └─► no:  the text as it stands ─► what begins a text ─► token ids

A prompt is rendered once, when its group starts. An env that extends a session by text appends tokens to the record
(see arl.rollout.env). One that holds a conversation (arl.rollout.conversation) renders all messages before each turn.

A prompt depends on the recipe and the tokenizer alone. A template that asks for the time gets `data.template_time`.
"""

import contextlib
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Environment, Template, TemplateError, meta
from msgspec import Struct
from transformers import PreTrainedTokenizerBase

from arl.config.data_section import Data
from arl.errors import DataError
from arl.types import Problem

Messages = list[dict[str, Any]]
PROBE, REPLY, FOLLOW_UP = "Probe7", "Reply7", "Probe8"  # what no template contains
BATCH = 2048  # prompts that are encoded together
CLOCK = "strftime_now"  # the function by which a template asks for the time
OWN_ARGUMENTS = {"messages", "tools", "documents", "add_generation_prompt"}
# A template is code, and raises what its author did not think of.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError)


class PromptFormat(Struct, frozen=True):
    """Say how prompts are made, as the fields of these names in the section `data` of a recipe do."""

    system: str = ""
    suffix: str = ""
    chat_template: bool = True
    template_arguments: dict[str, Any] = {}
    template_time: datetime = Data.model_fields["template_time"].default


class PromptRenderer:
    """Render prompts with a model's tokenizer.

    Args:
        tokenizer: the model's own.
        wanted: what the recipe asks for.

    Raises:
        DataError: the template cannot be used, or the recipe asks for what needs one where there is none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, wanted: PromptFormat | Data) -> None:
        self._tokenizer = tokenizer
        self.model = str(tokenizer.name_or_path)
        self._format = wanted
        self._dates: set[str] = set()  # that the template wrote
        self.end: int | None = None  # token behind an answer, by the template
        self.frames: set[int] = set()  # tokens around turns, by the template
        self._drops_system = False
        self._unmarked_end = ""  # text behind an answer, if no token marks its end
        self.uses_template = wanted.chat_template and tokenizer.chat_template is not None
        self._opening = [] if self.uses_template else _opening(tokenizer)
        if self.uses_template:
            self._check_template()
            self._check_arguments()
            return
        for name in ("system", "template_arguments"):
            if value := getattr(wanted, name):
                raise DataError(
                    f"data.{name} {value!r}: needs a chat template, and {self._why_none()}; leave it out, or put "
                    "the text into data.template"
                )

    @property
    def template(self) -> str | None:
        """Return the source of the template that is used."""
        return self._tokenizer.get_chat_template() if self.uses_template else None

    def encode(self, problems: Iterable[Problem], tools: Sequence[Any] = ()) -> Iterator[list[int]]:
        """Yield the ids of each prompt, which shows these tools.

        Many are encoded at once, which is several times as fast as one by one.

        Raises:
            DataError: as `text`; no problem behind the one at fault has been taken.
        """
        waiting = iter(problems)
        while texts := [self.text(problem, tools) for problem in itertools.islice(waiting, BATCH)]:
            for ids in encode_texts(self._tokenizer, texts):
                # A text that was rendered before it came here begins with the token already.
                yield ids if ids[:1] == self._opening[:1] else [*self._opening, *ids]

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text that begins a context, without the chat template."""
        (ids,) = encode_texts(self._tokenizer, [text])
        opening = _opening(self._tokenizer)
        return ids if ids[:1] == opening[:1] else [*opening, *ids]

    def text(self, problem: Problem, tools: Sequence[Any] = ()) -> str:
        """Return the prompt as text, without what the tokenizer puts before plain text.

        Raises:
            DataError: the problem is chat messages that cannot be rendered.
        """
        if self.uses_template:
            messages = self.messages(problem)
            prompt = self.render(messages, tools)
            for message in messages:  # others a template may take for switches, or write in another form
                if message["role"] not in ("system", "assistant", "tool") and message["content"].strip() not in prompt:
                    raise DataError(
                        f"the chat template of {self.model} leaves out what role "
                        f"{message['role']!r} says; a question is of role 'user'"
                    )
            return prompt
        if not isinstance(problem.prompt, str):
            raise DataError(
                f"problem {problem.id} is chat messages, and {self._why_none()}: give text, or a model with a template"
            )
        return problem.prompt + self._format.suffix

    def describe(self) -> str:
        """Say which template is used, or why none is."""
        parts = ["chat template of the model" if self.uses_template else f"plain text: {self._why_none()}"]
        added = {name: getattr(self._format, name) for name in ("system", "suffix", "template_arguments")}
        parts += [f"data.{name} {value!r}" for name, value in added.items() if value]
        return "; ".join(parts)

    def notes(self) -> list[str]:
        """Return what a user should know of the template; of dates, those that were written so far."""
        said = "the chat template writes the date {}, by data.template_time, on every day"
        notes = [said.format(date) for date in sorted(self._dates)]
        if self._unmarked_end:
            notes.append(
                f"behind an answer the chat template writes {self._unmarked_end!r}, which is no token of this "
                "tokenizer, so nothing stops there: name it in rollout.stop"
            )
        return notes

    def _why_none(self) -> str:
        if self._tokenizer.chat_template is None:
            return "the tokenizer has no chat template"
        return "data.chat_template is false"

    def messages(self, problem: Problem) -> Messages:
        """Return the messages of a problem's prompt, with the system prompt and the suffix.

        Raises:
            DataError: the template leaves out system prompts, or there are two.
        """
        messages = problem.prompt
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        last = messages[-1]
        messages = [*messages[:-1], last | {"content": last["content"] + self._format.suffix}]
        brings_system = messages[0]["role"] == "system"
        if self._format.system and brings_system:
            raise DataError(
                f"data.system {self._format.system!r}: problem {problem.id} brings a system prompt of its own; leave "
                "one of the two out"
            )
        if self._drops_system and (self._format.system or brings_system):
            raise DataError(
                f"the chat template of {self.model} leaves out system prompts: put the text of "
                "data.system, or of the rows, into data.suffix"
            )
        return [{"role": "system", "content": self._format.system}, *messages] if self._format.system else messages

    @functools.cached_property
    def _compiled(self) -> Template:
        """Compile the template with all that transformers lends it but the clock, which stands still here.

        transformers' public functions take no other clock: they turn a function among the arguments into text.
        """
        from transformers.utils.chat_template_utils import _compile_jinja_template

        def frozen_clock(layout: str) -> str:
            date = self._format.template_time.strftime(layout)
            self._dates.add(date)
            return date

        environment: Environment = _compile_jinja_template(self.template).environment
        given = {**self._tokenizer.special_tokens_map, CLOCK: frozen_clock, **self._format.template_arguments}
        template = environment.from_string(str(self.template), globals=given)
        template.globals = dict(template.globals)  # a chain of dicts takes as long as all else of a rendering
        return template

    def _check_arguments(self) -> None:
        """Raise where an argument is not one that the template reads, or is arl's own."""
        read = meta.find_undeclared_variables(self._compiled.environment.parse(str(self.template)))
        names = sorted(read - self._tokenizer.special_tokens_map.keys() - OWN_ARGUMENTS)
        for name in self._format.template_arguments.keys() - names:
            raise DataError(
                f"data.template_arguments.{name}: is none that the chat template of {self.model} "
                f"takes; it takes {', '.join(names) or 'none'}. arl itself gives messages, and data.template_time"
            )

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] = (), for_answer: bool = True) -> str:
        """Return the text of a conversation; `for_answer`: ready for the policy's turn.

        Raises:
            DataError: the template does not take it.
        """
        own = {"messages": messages, "tools": tools or None, "documents": None, "add_generation_prompt": for_answer}
        try:
            return str(self._compiled.render(own))
        except TEMPLATE_ERRORS as error:
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                f"the chat template of {self.model} does not take messages of {roles} ({error}); "
                "leave out data.system, or set data.chat_template to false"
            ) from error

    @functools.cached_property
    def _shows_turns(self) -> bool:
        """Return whether the template shows earlier turns, each once and in order, when the user speaks again."""
        said = [("user", PROBE), ("assistant", REPLY), ("user", FOLLOW_UP)]
        text = self.render([{"role": role, "content": content} for role, content in said])
        places = [text.find(content) for _, content in said]
        return places == sorted(places) and all(text.count(content) == 1 for _, content in said)

    def check_turns(self) -> None:
        """Check that a conversation can be held.

        Raises:
            DataError: there is no chat template, or it does not show earlier turns.
        """
        if not self.uses_template:
            raise DataError(f"a conversation needs a chat template, and {self._why_none()} ({self.model})")
        if not self._shows_turns:
            raise DataError(
                f"the chat template of {self.model} does not show earlier turns in their order, so no conversation can "
                "be held: mend tokenizer.chat_template, or use an env of one turn"
            )

    def _check_template(self) -> None:
        """Compare a rendered question with and without the beginning of an answer, and look how turns end.

        Raises:
            DataError: the template does not hand the turn to the model.
        """
        asked = [{"role": "user", "content": PROBE}]
        with contextlib.suppress(DataError):  # others refuse it
            told = [{"role": "system", "content": REPLY}, *asked]
            self._drops_system = self.render(told) == self.render(asked)
        messages = self.messages(Problem(PROBE))
        closed = self.render(messages, for_answer=False)
        prompt = self.render(messages)
        _, question, after = prompt.rpartition((PROBE + self._format.suffix).strip())
        if not prompt.startswith(closed):  # some end a conversation with the end of a text
            closed = closed.removesuffix(self._tokenizer.eos_token or "")
        if not prompt.startswith(closed):
            complaint = "renders a conversation in another way when an answer is to follow"
        elif not question:
            complaint = "leaves out the question"
        elif not after.strip():
            complaint = "does not close the user's turn: nothing follows the question"
        else:
            self._find_turns(messages, beginning=prompt[len(closed) :])
            return
        raise DataError(
            f"the chat template of {self.model} {complaint}, so an answer would not be told from "
            "the question: mend tokenizer.chat_template, or set data.chat_template to false"
        )

    def _find_turns(self, messages: Messages, beginning: str) -> None:
        """Find the tokens around turns, by a conversation that goes on behind an answer.

        What stands before the first question is not looked at: a system prompt may show marks of thinking.

        Args:
            beginning: of an answer's turn.
        """
        control = control_tokens(self._tokenizer)

        def found(text: str) -> list[int]:
            return [token for token in encode_texts(self._tokenizer, [text])[0] if token in control]

        answered = [*messages, {"role": "assistant", "content": REPLY}]
        end = asked_again = ""
        with contextlib.suppress(DataError):  # some templates take one question only
            end = self.render(answered, for_answer=False).partition(REPLY)[2]
            answered.append({"role": "user", "content": FOLLOW_UP})
            asked_again = self.render(answered, for_answer=False).partition(REPLY)[2]
        between, _, behind = asked_again.partition(FOLLOW_UP)
        # The last assistant turn of some templates ends with nothing, and the next question ends it.
        self.end = next(iter([*found(end), *found(between)]), None)
        self.frames = {*found(between), *found(behind)}
        # An answer may begin with <think>, which the policy says as well.
        self.frames |= {token for token in found(beginning)[:1] if control[token] not in paired_marks(control.values())}
        if self.end is None:
            self._unmarked_end = end.strip() or between.strip()


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return the id and text of every token that the tokenizer finds as a whole, but for runs of spaces."""
    return {token: found.content for token, found in tokenizer.added_tokens_decoder.items() if found.content.strip()}


def paired_marks(texts: Collection[str]) -> set[str]:
    """Return those that come in pairs, such as <think> and </think>."""
    pairs = [(text, f"{text[:1]}/{text[1:]}") for text in texts]
    return {mark for pair in pairs if pair[1] in texts for mark in pair}


def encode_texts(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text, with nothing added."""
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()  # a file may ask for both
        backend.no_padding()
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return ids


def _opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what the tokenizer puts before plain text by itself. What it puts behind it would end an answer."""
    (bare,) = encode_texts(tokenizer, [PROBE])
    whole = tokenizer(PROBE)["input_ids"]
    # From the right: where the tokenizer knows no character of the text, everything counts as before it.
    starts = range(len(whole) - len(bare), -1, -1)
    start = next(start for start in starts if whole[start : start + len(bare)] == bare)
    return list(whole[:start])
