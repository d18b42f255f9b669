"""Directories that look like published models: their real config.json, and weights whose content is a hole on disk."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from arl.models.tiny import character_tokenizer

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "tie_word_embeddings",
)


def _qwen2(*sizes: Any) -> Qwen2Config:
    return Qwen2Config(architectures=["Qwen2ForCausalLM"], rms_norm_eps=1e-6, **dict(zip(SIZES, sizes, strict=True)))


def _qwen3(*sizes: Any) -> Qwen3Config:
    return Qwen3Config(architectures=["Qwen3ForCausalLM"], head_dim=128, **dict(zip(SIZES, sizes, strict=True)))


def _llama(*sizes: Any) -> LlamaConfig:
    return LlamaConfig(architectures=["LlamaForCausalLM"], rms_norm_eps=1e-5, **dict(zip(SIZES, sizes, strict=True)))


# The SIZES in the config.json that each model was published with.
PUBLISHED: dict[str, PretrainedConfig] = {
    "Qwen2.5-1.5B-Instruct": _qwen2(151_936, 1536, 8960, 28, 12, 2, 32_768, True),
    "Qwen2.5-7B-Instruct": _qwen2(152_064, 3584, 18_944, 28, 28, 4, 32_768, False),
    "DeepSeek-R1-Distill-Qwen-1.5B": _qwen2(151_936, 1536, 8960, 28, 12, 2, 131_072, False),
    "DeepSeek-R1-Distill-Qwen-14B": _qwen2(152_064, 5120, 13_824, 48, 40, 8, 131_072, False),
    "DeepSeek-R1-Distill-Qwen-32B": _qwen2(152_064, 5120, 27_648, 64, 40, 8, 131_072, False),
    "DeepSeek-R1-Distill-Llama-8B": _llama(128_256, 4096, 14_336, 32, 32, 8, 131_072, False),
    "Qwen3-0.6B": _qwen3(151_936, 1024, 3072, 28, 16, 8, 40_960, True),
}
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Every character that a prompt of the tests has.
CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"


def make_published(name: str, directory: Path) -> Path:
    """Write the model to `directory`, and return it. Its weights take no room: the file ends in a hole."""
    config = PUBLISHED[name]
    directory.mkdir(parents=True)
    config.save_pretrained(directory)
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _write_hole(dict(model.named_parameters()), directory / "model.safetensors")
    return directory


def _write_hole(parameters: dict[str, torch.nn.Parameter], file: Path) -> None:
    """Write a safetensors file with a real header and no content: 8 bytes of length, the header, a hole."""
    header: dict[str, Any] = {}
    end = 0
    for name, parameter in parameters.items():
        start = end
        end += 2 * math.prod(parameter.shape)
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
