"""A tiny random model of every family that arl trains."""

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from arl.models.tiny import character_tokenizer
from arl.tasks import running_checksum

SHAPE = {
    "vocab_size": 17,  # that no world divides
    "hidden_size": 32,
    "intermediate_size": 46,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


def configs(shape: dict[str, int]) -> dict[str, PretrainedConfig]:
    """Return the config of a model of this shape in every family."""
    return {
        "llama": LlamaConfig(**shape),
        "qwen2-tied": Qwen2Config(**shape, tie_word_embeddings=True),
        "qwen3": Qwen3Config(**shape),
        "mistral": MistralConfig(**shape, sliding_window=None),
        "gemma-tied": GemmaConfig(**shape),
    }


FAMILIES = configs(SHAPE)


def make_family(name: str, directory: Path, **saved: object) -> Path:
    """Write random float32 weights, config and tokenizer of the family to `directory`; returns it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(directory, **saved)
    character_tokenizer(running_checksum.CHARACTERS).save_pretrained(directory)
    return directory
