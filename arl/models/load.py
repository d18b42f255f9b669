"""Hugging Face causal language models, built on arl's attention and with everything it cannot do refused by name."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from arl.errors import DataError
from arl.models.attention import ATTENTION

# Families whose decoder is model.layers, whose attention is pluggable, and which tests or users have tried.
ARCHITECTURES = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "GemmaForCausalLM"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(path: str | Path, dtype: str, device: torch.device | str = "cpu") -> PreTrainedModel:
    """Weights of `path` in `dtype` on `device`, in evaluation mode.

    Raises:
        DataError: no model there, or an attention that arl does not implement (sliding window, soft cap).
    """
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise DataError(f"model.path {path}: no model can be loaded from there ({error})") from error
    _refuse_unsupported(config, path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype], attn_implementation=ATTENTION)
    return model.to(device).eval()


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, state: dict[str, torch.Tensor], path: Path
) -> None:
    """Write `state` with the model's config, and the tokenizer, as `from_pretrained` reads them."""
    model.save_pretrained(path, state_dict=state)
    tokenizer.save_pretrained(path)


def _refuse_unsupported(config: object, path: str | Path) -> None:
    if not any(name in ARCHITECTURES for name in getattr(config, "architectures", None) or ()):
        raise DataError(
            f"model.path {path}: {getattr(config, 'architectures', None)} is not supported; "
            f"choose one of {', '.join(sorted(ARCHITECTURES))}"
        )
    windows = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if windows or window:
        raise DataError(f"model.path {path}: sliding-window attention is not supported; choose a full-attention model")
    if getattr(config, "attn_logit_softcapping", None):
        raise DataError(f"model.path {path}: attention soft caps are not supported; choose another model")
