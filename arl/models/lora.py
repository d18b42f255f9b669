"""Put PEFT's LoRA adapters into a model: W x becomes W x + (alpha / rank) · B A x, where A and B alone are trained.

    trainer: empty model ─► inject ─► arl.train.sharded_adapters
    engine:  load_adapted: the base, with the adapters of its first version or none yet ─► versions of A and B alone
    export_adapter: a checkpoint ─► PEFT's files

PEFT names the parameters NAME.base_layer.weight, NAME.lora_A.default.weight and NAME.lora_B.default.weight.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from arl.config.train_section import Lora
from arl.data.hub import SOURCE
from arl.errors import DataError, InputError
from arl.files import remove_any, writing
from arl.models.load import load_model
from arl.models.model_files import OPTIMIZER, base_of
from arl.models.weights import LORA

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


def load_adapted(
    base: str | Path,
    path: str | Path,
    lora: Lora,
    dtype: str,
    device: torch.device | str = "cpu",
    head: str = "auto",
) -> PreTrainedModel:
    """Load the model `base` with the adapters of `path`, all in `dtype`; with none, if `path` has no adapters.

    Raises:
        DataError: see load_model.
    """
    adapters = stored_adapters(path)
    model = load_model(base, dtype, device, head)
    inject(model, lora)
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(device, model.lm_head.weight.dtype)
        if name in adapters:
            parameter.data.copy_(adapters[name])
        elif name.endswith(B):
            parameter.data.zero_()
    return model.eval()


def stored_adapters(path: str | Path) -> dict[str, Tensor]:
    """Read the adapters of a checkpoint, or of what was published, by name; none, if it is a model without."""
    rows: dict[str, list[Tensor]] = {}
    files = sorted(Path(path).glob(f"{OPTIMIZER}*.safetensors"))  # in the order of the ranks
    for file in files or sorted(Path(path).glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if name.startswith("model.") and LORA in name:
                rows.setdefault(name, []).append(tensor)
    return {name: torch.cat(parts) for name, parts in rows.items()}


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
    adapters = stored_adapters(checkpoint)
    if not adapters:
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
        named = {f"base_model.model.{name.replace('.default.', '.')}": tensor for name, tensor in adapters.items()}
        save_file(named, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        partial.rename(output)
