"""Make models, or describe some, with the version of transformers of the Python that runs this: it imports no arl.

make DIRECTORY              a tiny random model of bfloat16 of each family, whose rotary base is no default
describe DIRECTORY...       JSON of what each computes in float32, and of its tokenizer
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {}),
    "llama": (
        "LlamaConfig",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "gemma": ("GemmaConfig", {}),
}
ENDS = ["<|im_end|>", "<|endoftext|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(family: str, directory: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", *ENDS)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built, eos_token=ENDS[0], pad_token=ENDS[1])
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    name, more = CONFIGS[family]
    config = getattr(transformers, name)(
        vocab_size=len(tokenizer) + 5,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rope_theta=300_000.0,
        **more,
    )
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=[built.token_to_id(text) for text in ENDS])
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def describe(directory: Path) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        logits = model(torch.arange(200)[None]).logits[0, ::40]
    return {
        "logits": logits.tolist(),
        "rotary": model.model.rotary_emb.inv_freq.tolist(),
        "tied": model.config.tie_word_embeddings,
        "ends": model.generation_config.eos_token_id,
        "ids": tokenizer("3 + 4 = é<|im_end|>")["input_ids"],
        "chat": tokenizer.apply_chat_template(
            [{"role": "user", "content": "3 + 4?"}], add_generation_prompt=True, tokenize=False
        ),
    }


if __name__ == "__main__":
    if sys.argv[1] == "make":
        for each in CONFIGS:
            make(each, Path(sys.argv[2], each))
    else:
        print(json.dumps([describe(Path(each)) for each in sys.argv[2:]]))
