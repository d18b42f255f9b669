"""Make tiny models: randomly initialized causal language models of Llama's shape, in Hugging Face's format."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from arl.config.recipe import TinyModel
from arl.models.characters import character_tokenizer

INITIAL_STD = 0.06  # the usual 0.02 suits wide models; at width 128 it takes five times as long to learn


def make_tiny_model(shape: TinyModel, characters: str, seed: int, directory: Path) -> None:
    """Write randomly initialized float32 weights, config and tokenizer to `directory`."""
    tokenizer = character_tokenizer(characters)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=False,
        initializer_range=INITIAL_STD,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
