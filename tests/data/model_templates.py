"""Tokenizers of the families that people train, made here: their marks, and templates of their structure."""

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"


class Family(NamedTuple):
    """Say what a family's tokenizer holds. Its eos is that of a base model, which no turn ends with but Mistral's."""

    special: tuple[str, ...]  # the first begins plain text, if `has_bos`
    eos: str
    turn_end: str
    hand_over: str  # what follows a question
    has_bos: bool = True


FAMILIES = {
    "qwen2_5": Family(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "<|endoftext|>",
        "<|im_end|>",
        "<|im_end|>\n<|im_start|>assistant\n",
        has_bos=False,
    ),
    "qwen3": Family(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "<|endoftext|>",
        "<|im_end|>",
        "<|im_end|>\n<|im_start|>assistant\n",
        has_bos=False,
    ),
    "llama3_1": Family(
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma": Family(
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        "<end_of_turn>",
        "<end_of_turn>\n<start_of_turn>model\n",
    ),
    "mistral": Family(("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "</s>", "[/INST]"),
}


def family_tokenizer(name: str, extra: tuple[str, ...] = (), adds_eos: bool = False, **more: Any) -> Any:
    """Make the tokenizer of a family, one token a byte.

    Args:
        extra: more special tokens, such as <think>.
        adds_eos: whether it puts eos behind plain text, beside bos before it.
        more: what the tokenizer holds besides.
    """
    family = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (*family.special, *extra)])
    bos = family.special[0] if family.has_bos else None
    around = f"{bos or ''} $A {family.eos if adds_eos else ''}".split()
    added = [(text, tokenizer.token_to_id(text)) for text in around if text != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=added)
    made: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=family.eos, **more
    )
    made.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    return made
