"""Turn problems into prompts, in one place: chat template or plain text, system prompt, suffix.

    problem.prompt ─► suffix ─► the tokenizer has a chat template, and chat_template is true?
                                 ├─► yes: [system], user ─► template, ready for the answer ─► token ids
                                 └─► no:  the text as it stands                            ─► token ids

A prompt is rendered once, when its group starts. Later turns of an episode append tokens to the record (see
arl.rollout.env), so a template that would render earlier turns in another way, such as without their reasoning, has no
say in what the policy sees and trains on.
"""

from typing import Any

from jinja2 import TemplateError
from msgspec import Struct
from transformers import PreTrainedTokenizerBase

from arl.config.data_section import Data
from arl.errors import DataError
from arl.types import Problem

Messages = list[dict[str, str]]
PROBE = "Probe7"  # a question that no template contains
# A template is code, and raises what its author did not think of.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError)


class PromptFormat(Struct, frozen=True):
    """Say how prompts are made, as the section `data` of a recipe does."""

    system: str = ""
    suffix: str = ""
    chat_template: bool = True


def recipe_format(data: Data) -> PromptFormat:
    """Return the format of the recipe's own problems."""
    return PromptFormat(data.system, data.suffix, data.chat_template)


class PromptRenderer:
    """Render prompts with a model's tokenizer.

    Args:
        tokenizer: the model's own.
        wanted: what the recipe asks for.

    Raises:
        DataError: the template cannot be used, or a system prompt is asked for where there is none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, wanted: PromptFormat) -> None:
        self._tokenizer = tokenizer
        self._format = wanted
        self.uses_template = wanted.chat_template and tokenizer.chat_template is not None
        if self.uses_template:
            self._check_template()
        elif wanted.system:
            raise DataError(
                f"data.system {wanted.system!r}: needs a chat template, and {self._why_none()}; leave it out, or put "
                "the text into data.template"
            )

    def token_ids(self, problem: Problem) -> tuple[int, ...]:
        """Return the ids of a whole prompt, ready for the answer.

        Raises:
            DataError: the problem is chat messages that cannot be rendered.
        """
        if not self.uses_template:
            return tuple(self._tokenizer(self._text(problem))["input_ids"])
        return tuple(self._rendered(self._messages(problem), tokenize=True))

    def text(self, problem: Problem) -> str:
        """Return the prompt as text, for people to look at.

        Raises:
            DataError: as `token_ids`.
        """
        if not self.uses_template:
            return self._text(problem)
        return str(self._rendered(self._messages(problem), tokenize=False))

    def describe(self) -> str:
        """Say which template is used, or why none is."""
        settings = [
            f"system prompt {self._format.system!r}" if self._format.system else "no system prompt",
            f"suffix {self._format.suffix!r}" if self._format.suffix else "no suffix",
        ]
        if self.uses_template:
            template = f"chat template of the model ({len(str(self._tokenizer.chat_template)):,} characters)"
        else:
            template = f"plain text: {self._why_none()}"
        return "; ".join([template, *settings])

    def _why_none(self) -> str:
        if self._tokenizer.chat_template is None:
            return "the tokenizer has no chat template"
        return "data.chat_template is false"

    def _text(self, problem: Problem) -> str:
        if not isinstance(problem.prompt, str):
            raise DataError(
                f"problem {problem.id} is chat messages, and {self._why_none()}: give text, or a model with a template"
            )
        return problem.prompt + self._format.suffix

    def _messages(self, problem: Problem) -> Messages:
        if isinstance(problem.prompt, str):
            messages = [_message("user", problem.prompt + self._format.suffix)]
        else:
            messages = self._with_suffix(problem.prompt)
        if not self._format.system:
            return messages
        if messages[0]["role"] == "system":
            raise DataError(
                f"data.system {self._format.system!r}: problem {problem.id} brings a system prompt of its own; leave "
                "one of the two out"
            )
        return [_message("system", self._format.system), *messages]

    def _with_suffix(self, messages: Messages) -> Messages:
        last = messages[-1]
        return [*messages[:-1], last | {"content": last["content"] + self._format.suffix}]

    def _rendered(self, messages: Messages, tokenize: bool, for_answer: bool = True) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=for_answer,
                tokenize=tokenize,
                return_dict=False,
            )
        except TEMPLATE_ERRORS as error:
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                f"the chat template of {self._tokenizer.name_or_path} does not take messages of {roles} ({error}); "
                "leave out data.system, or set data.chat_template to false"
            ) from error

    def _check_template(self) -> None:
        """Compare a rendered question with and without the beginning of an answer.

        Raises:
            DataError: the template does not hand the turn to the model.
        """
        messages = self._messages(Problem(PROBE))
        closed = self._rendered(messages, tokenize=False, for_answer=False)
        prompt = self._rendered(messages, tokenize=False)
        complaint = turn_complaint(closed, prompt, PROBE + self._format.suffix)
        if complaint:
            raise DataError(
                f"the chat template of {self._tokenizer.name_or_path} {complaint}, so an answer would not be told from "
                "the question: mend tokenizer.chat_template, or set data.chat_template to false"
            )


def turn_complaint(closed: str, prompt: str, question: str) -> str:
    """Say why a template does not close the user's turn; empty where it does.

    Args:
        closed: the conversation as it is rendered without a generation prompt.
        prompt: the same with it.
        question: the content of the last message.
    """
    if not prompt.startswith(closed):
        return "renders a conversation in another way when an answer is to follow"
    _, found, after = prompt.rpartition(question.strip())
    if not found:
        return "leaves out the question"
    if not after.strip():
        return "does not close the user's turn: nothing follows the question, with and without add_generation_prompt"
    return ""


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
