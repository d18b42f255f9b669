"""Turn text into token ids and back, with the model's own tokenizer. Prompts are rendered in arl.data.prompt_format."""

import functools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from arl.config.data_section import Data
from arl.data.hub import description_of
from arl.data.model_limits import end_token_ids, reading_model
from arl.data.prompt_format import PromptFormat, PromptRenderer, control_tokens, encode_texts, paired_marks
from arl.errors import DataError
from arl.types import Problem

PLAIN = PromptFormat()
SHOWN_CHARACTERS = 120  # of a prompt, in the plan
SHOWN_TOKENS = 4  # of each end of a prompt, in the plan
GENERAL_CLASS = "TokenizersBackend"  # of transformers 5, which PreTrainedTokenizerFast is another name of


class HuggingFaceCodec:
    """Implement TextCodec with a Hugging Face tokenizer.

    A response ends with any token that the chat template ends an answer with, that is the tokenizer's eos_token, or
    that the model's generation_config.json names. The first of `stop_token_ids` is the one that a finished answer has.

    A response as text is everything that the policy said, but for the tokens that end or frame turns: special tokens
    such as <think> are part of it.

    Args:
        tokenizer: the model's own.
        prompts: how problems become prompts.

    Raises:
        DataError: nothing would end a response, or the tokenizer cannot make prompts of this format, or
            generation_config.json is damaged.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompts: PromptFormat | Data = PLAIN) -> None:
        self._tokenizer = tokenizer
        self.prompts = PromptRenderer(tokenizer, prompts)
        self.vocab_size = len(tokenizer)
        path = tokenizer.name_or_path  # of the model; empty if the tokenizer was made on the spot
        self.stop_sources: dict[int, list[str]] = {}  # what names each stop token
        for token, source in (
            (self.prompts.end, "chat template"),
            (tokenizer.eos_token_id, "tokenizer"),
            *(end_token_ids(path).items() if path else ()),
        ):
            if token is not None:
                self.stop_sources.setdefault(token, []).append(source)
        self.stop_token_ids: tuple[int, ...] = tuple(self.stop_sources)
        if not self.stop_token_ids:
            raise DataError(f"the tokenizer of {path} has no eos_token, so nothing would end a response; set one")
        model = tokenizer.backend_tokenizer.model if tokenizer.is_fast else tokenizer
        unknown = tokenizer.unk_token or getattr(model, "unk_token", None)
        self._unknown = tokenizer.convert_tokens_to_ids(unknown) if unknown else None
        self._control_tokens = control_tokens(tokenizer)
        framing = {*self.stop_token_ids, *self.prompts.frames, tokenizer.eos_token_id, tokenizer.bos_token_id}
        # An end token that is a word or a line end is text as well.
        self._left_out = (framing | {tokenizer.pad_token_id}) & self._control_tokens.keys()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token."""
        return dict(self._tokenizer.get_vocab())

    def with_format(self, prompts: PromptFormat | Data) -> "HuggingFaceCodec":
        """Return a codec of the same tokenizer that makes prompts of another format, such as a suite's."""
        return HuggingFaceCodec(self._tokenizer, prompts)

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        """Return the ids of a whole prompt, ready for the answer; see arl.data.prompt_format.

        Raises:
            DataError: chat messages, and no chat template.
        """
        return tuple(next(self.prompts.encode([problem])))

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_plain(self, text: str) -> tuple[int, ...]:
        return tuple(self.prompts.encode_plain(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(self._said(token_ids)))

    def decode_all(self, sequences: Sequence[Sequence[int]], special_tokens: bool = False) -> list[str]:
        """See TextCodec. Most tokenizers do it without holding the interpreter's lock."""
        ids = [list(sequence) if special_tokens else self._said(sequence) for sequence in sequences]
        tokenizer: Any = self._tokenizer
        if tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
            texts: list[str] = tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=False)
        else:
            texts = tokenizer.batch_decode(ids)
        return texts

    def control_text(self, problem: Problem) -> str | None:
        """Return the first control token in what a problem says, as text; None: it has none.

        Such a token is one that ends or frames a turn, or another special token. Pairs of marks such as <think> and
        </think> are none, because a question may ask for them.
        """
        prompt = problem.prompt
        said = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
        found = self._control_pattern.search(said)
        return found and found[0]

    def lacking_characters(self, problem: Problem, token_ids: Sequence[int]) -> str:
        """Return the characters of a prompt that the tokenizer replaced by its token for whatever is unknown.

        Args:
            token_ids: of the prompt.
        """
        if self._unknown not in token_ids:
            return ""
        characters = sorted(set(self.prompts.text(problem)))
        encoded = encode_texts(self._tokenizer, characters)
        return "".join(text for text, ids in zip(characters, encoded, strict=True) if self._unknown in ids)

    def describe(self, problem: Problem) -> tuple[str, str]:
        """Say how prompts are made, with the text and the first and last tokens of one, and what ends a response."""
        ids = self.encode_problem(problem)
        shown = self._named(ids)
        if len(ids) > 2 * SHOWN_TOKENS:
            shown[SHOWN_TOKENS:-SHOWN_TOKENS] = ["…"]
        ends = zip(self._named(self.stop_sources), self.stop_sources.values(), strict=True)
        ended = " or ".join(f"{token} ({', '.join(sources)})" for token, sources in ends)
        return (
            f"{self.prompts.describe()}; one begins {self.prompts.text(problem)[:SHOWN_CHARACTERS]!r}",
            f"{len(ids)} tokens in it, {' '.join(shown)}; a response ends with {ended}",
        )

    def _named(self, token_ids: Iterable[int]) -> list[str]:
        return [f"{token} {self._tokenizer.decode([token])!r}" for token in token_ids]

    def _said(self, token_ids: Sequence[int]) -> list[int]:
        return [token for token in token_ids if token not in self._left_out]

    @functools.cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        special = {token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special}
        texts = special - paired_marks(special) | {self._control_tokens[token] for token in self._left_out}
        longest_first = sorted(texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def load_codec(path: str, prompts: PromptFormat | Data = PLAIN) -> HuggingFaceCodec:
    """Load the tokenizer of a model.

    Raises:
        DataError: none can be loaded from there, or it cannot make prompts of this format.
    """
    return HuggingFaceCodec(_load(path), prompts)


def _load(path: str, field: str = "model.path") -> PreTrainedTokenizerBase:
    with reading_model(path, "tokenizer", field):
        directory = description_of(path)
        tokenizer: PreTrainedTokenizerBase = _tokenizer_class(directory).from_pretrained(
            directory, trust_remote_code=False
        )
    return tokenizer


def refuse_other_vocabulary(path: str, field: str, codec: HuggingFaceCodec) -> None:
    """Compare the token ids of another model with the policy's: a token must mean the same to both.

    Args:
        path, field: of the other model.
        codec: the policy's.

    Raises:
        DataError: they differ; says where first, by id.
    """
    own = codec.vocabulary
    other = _load(path, field).get_vocab()
    if own == other:
        return
    ids = {token: (own.get(token), other.get(token)) for token in own.keys() | other.keys()}
    differing = sorted((pair[0] or pair[1] or 0, token, pair) for token, pair in ids.items() if pair[0] != pair[1])
    _, token, (here, there) = differing[0]
    raise DataError(
        f"{field} {path}: its vocabulary is not the policy's; {len(differing)} of {len(ids)} tokens have another id, "
        f"the first is {token!r}, {here} in the policy and {there} there; choose a model of the same family"
    )


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
