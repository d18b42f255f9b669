"""Turn text into token ids and back, with the model's own tokenizer and chat template."""

from transformers import PreTrainedTokenizerBase

from arl.errors import DataError
from arl.types import Problem


class HuggingFaceCodec:
    """Implement TextCodec with a Hugging Face tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        eos = tokenizer.eos_token_id
        if eos is None:
            raise DataError(
                f"the tokenizer of {tokenizer.name_or_path} has no eos_token, so nothing would end a response; set one"
            )
        self.stop_token_ids: tuple[int, ...] = (eos,)
        self.vocab_size = len(tokenizer)

    @property
    def chat_template(self) -> str | None:
        """Return the template of chat messages; None: the model has none."""
        template = self._tokenizer.chat_template
        return template if template is None or isinstance(template, str) else str(template)

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        """Encode text as it stands, and chat messages with the model's template, ready for the answer.

        Raises:
            DataError: chat messages, and a tokenizer without a template.
        """
        if isinstance(problem.prompt, str):
            return tuple(self._tokenizer(problem.prompt)["input_ids"])
        if self._tokenizer.chat_template is None:
            raise DataError(f"problem {problem.id} is chat messages, but the tokenizer has no chat template: use text")
        ids = self._tokenizer.apply_chat_template(
            problem.prompt,
            add_generation_prompt=True,
            return_dict=False,
        )
        return tuple(ids)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))


def load_codec(path: str) -> HuggingFaceCodec:
    """Load the tokenizer of a model.

    Raises:
        DataError: none can be loaded from there.
    """
    from transformers import AutoTokenizer  # importing it takes seconds, so only this path does

    try:
        return HuggingFaceCodec(AutoTokenizer.from_pretrained(path))
    except (OSError, ValueError) as error:
        raise DataError(f"model.path {path}: no tokenizer can be loaded from there ({error})") from error
