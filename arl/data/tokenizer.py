"""Turn text into token ids and back, with the model's own tokenizer, and problems into prompts: all in one place.

    problem.prompt ─► suffix ─► the tokenizer has a chat template, and chat_template is true?
                                 ├─► yes: [system], user ─► template, ready for the answer ─► token ids
                                 └─► no:  the text as it stands                            ─► token ids

A prompt is rendered once, when its group starts. Later turns of an episode append tokens to the record (see
arl.rollout.env), so a template that would render earlier turns in another way, such as without their reasoning, has no
say in what the policy sees and trains on.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from msgspec import Struct
from transformers import PreTrainedTokenizerBase

from arl.config.data_section import Data
from arl.data.hub import description_of
from arl.data.model_limits import end_token_ids, reading_model
from arl.errors import DataError
from arl.types import Problem

Messages = list[dict[str, str]]
PROBE = "Probe7"  # a question that no template contains
ANSWER = "Answer8"  # an answer that none contains
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

    def after_answer(self) -> str:
        """Return the text that the template puts behind an answer; empty: nothing, or no template."""
        if not self.uses_template:
            return ""
        messages = [*self._messages(Problem(PROBE)), {"role": "assistant", "content": ANSWER}]
        return str(self._rendered(messages, tokenize=False, for_answer=False)).rpartition(ANSWER)[2]

    def describe(self) -> str:
        """Say which template is used, or why none is."""
        parts = ["chat template of the model" if self.uses_template else f"plain text: {self._why_none()}"]
        added = {"system prompt": self._format.system, "suffix": self._format.suffix}
        parts += [f"{name} {text!r}" for name, text in added.items() if text]
        return "; ".join(parts)

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
        messages = problem.prompt
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        last = messages[-1]
        messages = [*messages[:-1], last | {"content": last["content"] + self._format.suffix}]
        if not self._format.system:
            return messages
        if messages[0]["role"] == "system":
            raise DataError(
                f"data.system {self._format.system!r}: problem {problem.id} brings a system prompt of its own; leave "
                "one of the two out"
            )
        return [{"role": "system", "content": self._format.system}, *messages]

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
        _, question, after = prompt.rpartition((PROBE + self._format.suffix).strip())
        if not prompt.startswith(closed):
            complaint = "renders a conversation in another way when an answer is to follow"
        elif not question:
            complaint = "leaves out the question"
        elif not after.strip():
            complaint = "does not close the user's turn: nothing follows the question"
        else:
            return
        raise DataError(
            f"the chat template of {self._tokenizer.name_or_path} {complaint}, so an answer would not be told from "
            "the question: mend tokenizer.chat_template, or set data.chat_template to false"
        )


PLAIN = PromptFormat()
GENERAL_CLASS = "TokenizersBackend"  # of transformers 5, which PreTrainedTokenizerFast is another name of


class HuggingFaceCodec:
    """Implement TextCodec with a Hugging Face tokenizer.

    A response ends with the tokenizer's eos_token, or an end token that the model's generation_config.json names.

    Args:
        tokenizer: the model's own.
        prompts: how problems become prompts.

    Raises:
        DataError: the tokenizer has no eos_token, or cannot make prompts of this format, or generation_config.json is
            damaged.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompts: PromptFormat = PLAIN) -> None:
        self._tokenizer = tokenizer
        eos = tokenizer.eos_token_id
        if eos is None:
            raise DataError(
                f"the tokenizer of {tokenizer.name_or_path} has no eos_token, so nothing would end a response; set one"
            )
        path = tokenizer.name_or_path  # of the model; empty if the tokenizer was made on the spot
        more = end_token_ids(path) if path else ()
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys((eos, *more)))
        self.vocab_size = len(tokenizer)
        self.prompts = PromptRenderer(tokenizer, prompts)

    def with_format(self, prompts: PromptFormat) -> "HuggingFaceCodec":
        """Return a codec of the same tokenizer that makes prompts of another format, such as a suite's."""
        return HuggingFaceCodec(self._tokenizer, prompts)

    @property
    def chat_template(self) -> str | None:
        """Return the template of chat messages; None: the model has none."""
        template = self._tokenizer.chat_template
        return template if template is None or isinstance(template, str) else str(template)

    @functools.cached_property
    def end_of_turn(self) -> int:
        """Return the token that ends an answer: the first special one behind it in the template, or eos_token."""
        special = {*self.stop_token_ids, *self._tokenizer.all_special_ids}
        behind = self.encode(self.prompts.after_answer())
        return next((token for token in behind if token in special), self.stop_token_ids[0])

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        """Return the ids of a whole prompt, ready for the answer; see arl.data.tokenizer.

        Raises:
            DataError: chat messages, and no chat template.
        """
        return self.prompts.token_ids(problem)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def decode_all(self, sequences: Sequence[Sequence[int]], special_tokens: bool = False) -> list[str]:
        """See TextCodec. Most tokenizers do it without holding the interpreter's lock."""
        ids = [list(sequence) for sequence in sequences]
        tokenizer: Any = self._tokenizer
        if tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
            texts: list[str] = tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=not special_tokens)
        else:
            texts = tokenizer.batch_decode(ids, skip_special_tokens=not special_tokens)
        return texts


def load_codec(path: str, prompts: PromptFormat = PLAIN) -> HuggingFaceCodec:
    """Load the tokenizer of a model.

    Raises:
        DataError: none can be loaded from there, or it cannot make prompts of this format.
    """
    with reading_model(path, "tokenizer"):
        directory = description_of(path)
        tokenizer = _tokenizer_class(directory).from_pretrained(directory, trust_remote_code=False)
    return HuggingFaceCodec(tokenizer, prompts)


def _tokenizer_class(directory: str) -> Any:
    """Return the class that reads a tokenizer.

    Looking it up imports torch, which takes seconds. So the class of all tokenizers without code of their own, as
    transformers 5 saves them, is taken directly.
    """
    file = Path(directory) / "tokenizer_config.json"
    if file.exists() and json.loads(file.read_text()).get("tokenizer_class") == GENERAL_CLASS:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer
