"""Compare what the trainer will publish with what the engines began with."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from arl.errors import TrainerError
from arl.sync.buckets import TensorSpec
from arl.sync.verify import refuse_other_tensors

OURS = [TensorSpec("embed", "bfloat16", (4, 2)), TensorSpec("norm", "bfloat16", (2,))]


def stored(directory: Path, change: dict[str, torch.Tensor | None], tied: bool = False) -> Path:
    """OURS in two files, with some tensors changed, added, or (None) taken away."""
    state = {spec.name: torch.zeros(spec.shape) for spec in OURS}
    state = {name: tensor for name, tensor in (state | change).items() if tensor is not None}
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    for number, (name, tensor) in enumerate(state.items()):
        save_file({name: tensor}, directory / f"model-{number}.safetensors")
    return directory


def test_the_same_tensors_in_another_float_dtype_pass(tmp_path: Path) -> None:
    refuse_other_tensors(OURS, stored(tmp_path, {}))


def test_what_a_file_may_hold_beyond_that_passes(tmp_path: Path) -> None:
    """A tied weight under its other name, and a buffer of old files."""
    extra: dict[str, torch.Tensor | None] = {"lm_head.weight": torch.zeros(4, 2)}
    extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(3)
    refuse_other_tensors(OURS, stored(tmp_path, extra, tied=True))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"norm": None}, "norm is the trainer's alone"),
        ({"lm_head.weight": torch.zeros(4, 2)}, "lm_head.weight is in the files alone"),
        ({"norm": torch.zeros(3)}, r"the trainer's is bfloat16 \(2,\), the files' is F32 \(3,\)"),
        (
            {"norm": torch.zeros(2, dtype=torch.int8)},
            r"the trainer's is bfloat16 \(2,\), the files' is I8 \(2,\)",
        ),
    ],
)
def test_another_name_shape_or_kind_of_dtype_is_refused_by_name(
    tmp_path: Path, change: dict[str, torch.Tensor | None], rule: str
) -> None:
    with pytest.raises(TrainerError, match=f"other weights than the engines began with.*{rule}; give model.path"):
        refuse_other_tensors(OURS, stored(tmp_path, change))
