"""Make the tokenizer of tiny models: one token a character. Importing this module does not import torch."""

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from tokenizers.decoders import Fuse
from transformers import PreTrainedTokenizerBase

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"


def character_tokenizer(characters: str) -> PreTrainedTokenizerBase:
    """Make a tokenizer with ids in the order characters, pad, bos, eos. It prepends bos to a prompt."""
    from transformers import PreTrainedTokenizerFast  # some versions of transformers import torch with it

    names = [*characters, PAD, BOS, EOS]
    ids = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        special_tokens=[(BOS, ids[BOS])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )
