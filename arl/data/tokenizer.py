"""Turn text into token ids and back, with the model's own tokenizer and chat template."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from arl.data.hub import description_of
from arl.data.model_limits import end_token_ids, reading_model
from arl.data.prompt_format import PromptFormat, PromptRenderer
from arl.errors import DataError
from arl.types import Problem

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

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        """Return the ids of a whole prompt, ready for the answer; see arl.data.prompt_format.

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
