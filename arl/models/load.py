"""Load Hugging Face causal language models with arl's attention, and refuse by name what that cannot do."""

import contextlib
import functools
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from arl.data.model_limits import end_token_ids, reading_model
from arl.errors import DataError
from arl.kernels.head import wide_product
from arl.models.attention import ATTENTION
from arl.models.model_files import stored_tensors
from arl.models.weights import rows_of

# Families whose decoder is model.layers, whose attention can be replaced, and which tests or users have tried.
ARCHITECTURES = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "GemmaForCausalLM"}
FLOATS = ("F64", "F32", "F16", "BF16")  # safetensors' names of the dtypes that are cast
NOT_READ = "rotary_emb.inv_freq"  # a buffer in old files
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(path: str | Path, dtype: str, device: torch.device | str = "cpu", head: str = "auto") -> PreTrainedModel:
    """Load the weights of `path` in `dtype` on `device`, in evaluation mode.

    Args:
        head: as train.head; float32: the model returns logits of a float32 product.

    Raises:
        DataError: there is no model, or one with a part that arl does not implement, which the message names; or its
            weights are incomplete, where transformers would draw the missing ones at random.
    """
    check_weights(empty_model(path), path)
    with reading_model(path, "model"):
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=DTYPES[dtype], attn_implementation=ATTENTION, use_safetensors=True, trust_remote_code=False
        )
    if head == "float32":
        model.lm_head.forward = functools.partial(_wide_logits, model.lm_head)
    return model.to(device).eval()


def _wide_logits(lm_head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Compute logits (…, V) float32 from hidden (…, D)."""
    weight: torch.Tensor = lm_head.weight  # type: ignore[assignment]
    logits = wide_product(hidden.flatten(0, -2), weight)
    return logits.view(*hidden.shape[:-1], len(weight))


def empty_model(path: str | Path) -> PreTrainedModel:
    """Build the model of `path` without its weights: float32 parameters on the meta device, in evaluation mode.

    Raises:
        DataError: as for load_model.
    """
    with reading_model(path, "model"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    _refuse_unsupported(config, path)
    with torch.device("meta"), reading_model(path, "model"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION)
    end_token_ids(path)  # refuses a damaged generation_config.json, which the next line would take for none
    with reading_model(path, "generation_config.json"), contextlib.suppress(OSError):  # without it: the config's values
        model.generation_config = GenerationConfig.from_pretrained(path)
    if getattr(model.lm_head, "bias", None) is not None:
        raise DataError(f"model.path {path}: an output head with a bias is not supported; choose another model")
    return model.eval()


def check_weights(model: PreTrainedModel, path: str | Path) -> None:
    """Compare the headers of the safetensors of `path` with a model that its config.json describes.

    Raises:
        DataError: a weight is missing, has another shape, belongs to no part of the model, or is stored twice with
            different values where config.json ties both uses of it.
    """
    stored = stored_tensors(path)
    expected = {name: tuple(weight.shape) for name, weight in model.named_parameters(remove_duplicate=False)}
    own = {name for name, _ in model.named_parameters()}  # a tied weight once
    if missing := sorted(own - stored.keys()):
        raise DataError(f"model.path {path}: its weights lack {missing[0]}, and {len(missing) - 1} others")
    for name, tensor in stored.items():
        what = f"model.path {path}: {tensor.file.name}: {name}"
        if name.endswith(NOT_READ):
            continue
        if name not in expected:
            raise DataError(f"{what} is no part of the model that its config.json describes")
        if tensor.shape != expected[name]:
            raise DataError(f"{what} has shape {tensor.shape}, and its config.json asks for {expected[name]}")
        if tensor.dtype not in FLOATS:
            raise DataError(f"{what} is of type {tensor.dtype}; {', '.join(FLOATS)} are supported")
    first_names: dict[int, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(weight), name)
        if name == first or name not in stored or first not in stored:
            continue
        one, other = (rows_of(stored[each].file, each, 0, len(weight)) for each in (first, name))
        if not torch.equal(one, other):  # transformers would load both, and the trainer would train one
            raise DataError(
                f"model.path {path}: its config.json ties {name} to {first}, and they are stored with different "
                "values; set tie_word_embeddings to false, or remove one of them"
            )


def _refuse_unsupported(config: PretrainedConfig, path: str | Path) -> None:
    # Soft caps are checked first, because their message helps more than that of an unsupported family.
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        value = getattr(config, cap, None)
        if value:
            raise DataError(
                f"model.path {path}: {cap} {value} ({config.model_type}) is not supported; "
                "choose a model without soft caps"
            )
    if ARCHITECTURES.isdisjoint(config.architectures or ()):
        raise DataError(
            f"model.path {path}: {config.architectures} is not supported; "
            f"choose one of {', '.join(sorted(ARCHITECTURES))}"
        )
    layer_types = getattr(config, "layer_types", None) or []
    window = getattr(config, "sliding_window", None)
    is_used = getattr(config, "use_sliding_window", True)
    if "sliding_attention" in layer_types or (window and is_used):
        raise DataError(f"model.path {path}: sliding-window attention is not supported; choose a full-attention model")
