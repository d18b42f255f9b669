"""Put PEFT's LoRA adapters into a model: W x becomes W x + (alpha / rank) · B A x, where A and B alone are trained.

    empty model ─► inject ─► shard ─► fill_model ─► draw_adapters ─► training ─► merged: W + (alpha / rank) · B A

PEFT names the parameters NAME.base_layer.weight, NAME.lora_A.default.weight and NAME.lora_B.default.weight.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from arl.config.train_section import Lora
from arl.data.hub import SOURCE
from arl.errors import DataError, InputError
from arl.files import remove_any, writing
from arl.models.model_files import base_of
from arl.models.weights import BASE, LORA, own_rows, plain_name
from arl.train.sharding import local_part
from arl.train.training_copy import OPTIMIZER

A = ".lora_A.default.weight"
B = ".lora_B.default.weight"


def inject(model: PreTrainedModel, lora: Lora) -> Lora:
    """Give the layers that `lora` names an adapter each, and let nothing else be trained.

    Returns:
        `lora` with its targets named.

    Raises:
        InputError: a target is the name of no linear layer in the model's blocks.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes a second

    known = sorted({name.rpartition(".")[2] for name, module in model.named_modules() if _is_linear(name, module)})
    for target in lora.targets or ():
        if target not in known:
            raise InputError(f"train.lora.targets {target}: no linear layer of the model; choose among {known}")
    targets = lora.targets or tuple(known)
    inject_adapter_in_model(LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(targets)), model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(LORA in name)
    return lora.model_copy(update={"targets": targets})


def _is_linear(name: str, module: torch.nn.Module) -> bool:
    return name.startswith("model.layers.") and isinstance(module, torch.nn.Linear)


def draw_adapters(model: PreTrainedModel, seed: int) -> None:
    """Set A as PEFT does, and B to 0, so that the model is still its base; the same on any number of ranks."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(A):
            whole = torch.empty(parameter.shape)
            torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
            first, end = own_rows(parameter)
            local_part(parameter.detach()).copy_(whole[first:end])
        elif name.endswith(B):
            local_part(parameter.detach()).zero_()


def merged(shards: Mapping[str, Tensor], parameters: Mapping[str, Tensor], scaling: float) -> dict[str, Tensor]:
    """Return this rank's rows of W + scaling · B A, float32, by the names of the base model. Collective.

    Args:
        shards: name -> this rank's rows of each parameter of `parameters`.
    """
    found = {}
    for name, shard in shards.items():
        if LORA in name:
            continue
        layer, is_adapted, _ = name.partition(BASE)
        weight = shard.float()
        if is_adapted and name.endswith(".weight"):
            whole = parameters[layer + A].detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            weight = weight + scaling * (shards[layer + B] @ whole)
        found[plain_name(name)] = weight
    return found


def export_adapter(checkpoint: Path, output: Path) -> None:
    """Write the adapters of a checkpoint as PEFT's `PeftModel.from_pretrained` reads them, all or nothing.

    Raises:
        InputError: `output` exists.
        DataError: the run of the checkpoint had no adapters, or a file cannot be read.
        DiskError: the output cannot be written.
    """
    from peft import LoraConfig

    base = base_of(checkpoint)
    lora = Lora.model_validate(json.loads((checkpoint / SOURCE).read_bytes())["lora"])
    if output.exists():
        raise InputError(f"--output {output}: exists already; remove it, or choose another one")
    rows: dict[str, list[Tensor]] = {}
    for file in sorted(checkpoint.glob(f"{OPTIMIZER}*.safetensors")):  # in the order of the ranks
        for name, tensor in load_file(file).items():
            if name.startswith("model.") and LORA in name:
                rows.setdefault(f"base_model.model.{name.replace('.default.', '.')}", []).append(tensor)
    if not rows:
        raise DataError(f"{checkpoint}: has no adapters; give a checkpoint of a run with train.lora")
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets or ()),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    partial = output.with_name(f".{output.name}.partial")
    with writing(output):
        remove_any(partial)  # of an export that was killed
        config.save_pretrained(str(partial))
        weights = {name: torch.cat(parts) for name, parts in rows.items()}
        save_file(weights, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        partial.rename(output)
