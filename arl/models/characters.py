"""The tokenizer of tiny models: one token a character. Torch-free until it makes one."""

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from tokenizers.decoders import Fuse
from transformers import PreTrainedTokenizerBase

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def character_tokenizer(characters: str) -> PreTrainedTokenizerBase:
    """Ids in the order characters, pad, bos, eos; bos is prepended to prompts."""
    from transformers import PreTrainedTokenizerFast  # with which some transformers import torch

    ids = {name: i for i, name in enumerate([*characters, PAD, BOS, EOS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, ids[BOS])])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )
