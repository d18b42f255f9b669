"""Make tiny models: randomly initialized causal language models of Llama's shape, in Hugging Face's format.

Their tokenizer has one token a character, and one for each mark. Importing this module does not import torch.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
from tokenizers.decoders import Fuse
from transformers import PreTrainedTokenizerBase

from arl.config.recipe import TinyModel

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
INITIAL_STD = 0.06  # the usual 0.02 suits wide models; at width 128 it takes five times as long to learn


def character_tokenizer(
    characters: str, marks: Sequence[str] = (), chat_template: str | None = None
) -> PreTrainedTokenizerBase:
    """Make a tokenizer with ids in the order characters, pad, bos, eos, marks. It prepends bos to plain text."""
    from transformers import PreTrainedTokenizerFast  # some versions of transformers import torch with it

    ids = {name: i for i, name in enumerate([*characters, PAD, BOS, EOS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, ids[BOS])])
    made: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, clean_up_tokenization_spaces=False
    )
    made.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    made.chat_template = chat_template
    return made


def make_tiny_model(
    shape: TinyModel,
    characters: str,
    seed: int,
    directory: Path,
    marks: Sequence[str] = (),
    chat_template: str | None = None,
) -> None:
    """Write randomly initialized float32 weights, config and tokenizer to `directory`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = character_tokenizer(characters, marks, chat_template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
        initializer_range=INITIAL_STD,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    # transformers 4 reads this, and below the name that the tokenizer's class had then.
    config.rope_theta = config.rope_parameters["rope_theta"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    described = directory / "tokenizer_config.json"
    described.write_text(described.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
