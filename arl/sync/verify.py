"""What the trainer will publish beside what the engines began with, compared before the first group. Torch-free."""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from arl.errors import TrainerError
from arl.sync.buckets import TensorSpec

FLOATS = ("F64", "F32", "F16", "BF16")  # what a float may be cast to
NOT_PUBLISHED = "rotary_emb.inv_freq"  # a buffer that old files have and no model reads


def refuse_other_tensors(tensors: Sequence[TensorSpec], directory: Path) -> None:
    """Compare names, shapes and kinds of dtype with the safetensors headers in `directory`.

    A tied weight appears once in `tensors` and may appear twice in files.

    Raises:
        TrainerError: names the first tensor that only one side has, or that differs.
    """
    stored: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in directory.glob("model*.safetensors"):
        with safe_open(file, "np") as headers:
            for name in headers.keys():  # noqa: SIM118
                header = headers.get_slice(name)
                stored[name] = tuple(header.get_shape()), header.get_dtype()
    ours = {spec.name: spec for spec in tensors}
    tied = json.loads((directory / "config.json").read_text()).get("tie_word_embeddings", False)
    aliases = {"lm_head.weight"} if tied else set()
    rule = f"the trainer publishes other weights than the engines began with, which are in {directory}"
    remedy = "give model.path a checkpoint of an architecture that arl supports, as transformers writes it"
    for name in sorted(ours.keys() | stored.keys() if stored else ()):
        if name not in ours and name not in aliases and not name.endswith(NOT_PUBLISHED):
            raise TrainerError(f"{rule}: {name} is in their files alone; {remedy}")
        if name not in stored:
            raise TrainerError(f"{rule}: {name} is the trainer's alone; {remedy}")
        shape, dtype = stored[name]
        if name in ours and (shape != ours[name].shape or dtype not in FLOATS):
            of_ours = f"{ours[name].dtype} {ours[name].shape}"
            raise TrainerError(f"{rule}: {name} is {of_ours} of the trainer's, {dtype} {shape} of theirs; {remedy}")
