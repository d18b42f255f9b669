"""Damage the files of a model, and load it as a run does: its description, its tokenizer, its weights."""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch

from arl.config.recipe import TinyModel
from arl.data.model_limits import model_flops, model_limits
from arl.data.model_source import check_model_source
from arl.data.tokenizer import load_codec
from arl.models.load import check_weights, empty_model, load_model
from arl.models.tiny import make_tiny_model
from tests.fuzz.damage import damage_bytes, damage_value, hostile_value
from tests.fuzz.irregular import put_irregular
from tests.fuzz.trials import Draw, Edge, Trial

MOST_DAMAGES = 2
ADDED = (
    *("generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", "adapter_config.json", "model.safetensors.index.json"),
    *("tokenizer.model", "processor_config.json", "additional_chat_templates"),
)
FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "head_dim"),
    *("intermediate_size", "max_position_embeddings", "rope_theta", "rope_parameters", "hidden_act", "eos_token_id"),
    *("tie_word_embeddings", "model_type", "architectures", "rms_norm_eps", "auto_map", "dtype", "text_config"),
    *("attention_bias", "quantization_config", "transformers_version", "pad_token_id", "initializer_range"),
)


@contextlib.contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Make a model in one file, and one in two with an index; every trial damages a copy of one."""
    shape = TinyModel(hidden_size=8, layers=2, heads=2, intermediate_size=8, context=32)
    make_tiny_model(shape, "abcdefgh", 0, folder / "whole")
    shutil.copytree(folder / "whole", folder / "sharded")
    (folder / "sharded" / "model.safetensors").unlink()
    load_model(folder / "whole", "float32").save_pretrained(folder / "sharded", max_shard_size="4KB")
    assert (folder / "sharded" / "model.safetensors.index.json").exists()
    numbers = itertools.count()

    def draw(random: Random) -> Trial:
        copy = folder / f"trial-{next(numbers)}"
        shutil.copytree(folder / random.choice(("whole", "sharded")), copy)
        done = [_damage(random, copy) for _ in range(random.randint(1, MOST_DAMAGES))]
        return Trial(f"{copy.name}: {', '.join(done)}", lambda: _load_and_remove(copy))

    yield draw


def _load_and_remove(model: Path) -> None:
    try:
        _load(model)
    finally:
        shutil.rmtree(model)


def _load(model: Path) -> None:
    """Load all that preflight, trainer and engine load of a model."""
    path = str(model)
    check_model_source(path)
    codec = load_codec(path)
    limits = model_limits(path)
    model_flops(path)
    check_weights(empty_model(path), path)
    loaded = load_model(path, "float32")
    tokens = [min(token, limits.vocab_size - 1) for token in codec.encode("abc")] or [0]
    with torch.no_grad():
        loaded.model.embed_tokens(torch.tensor([tokens]))


def _damage(random: Random, model: Path) -> str:
    do = random.choice(DAMAGES)
    try:
        return f"{do.__name__[1:]} {do(random, model)}"
    except (OSError, LookupError, ValueError, TypeError):  # an earlier damage may have left anything in its place
        return f"{do.__name__[1:]} (impossible)"


def _change_bytes(random: Random, model: Path) -> str:
    file = _file(random, model)
    file.write_bytes(damage_bytes(random, file.read_bytes()))
    return file.name


def _change_value(random: Random, model: Path) -> str:
    file = _file(random, model, ".json")
    file.write_text(json.dumps(damage_value(random, json.loads(file.read_bytes()))))
    return file.name


def _set_field(random: Random, model: Path) -> str:
    """Set a field of config.json that readers use."""
    file = _file(random, model, "/config.json")
    content = json.loads(file.read_bytes())
    field = random.choice(FIELDS)
    content[field] = hostile_value(random)
    file.write_text(json.dumps(content))
    return f"{field} = {ascii(content[field])[:80]}"


def _change_header(random: Random, model: Path) -> str:
    """Change what a safetensors file says of its tensors."""
    file = _file(random, model, ".safetensors")
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header: Any = damage_value(random, json.loads(data[8 : 8 + size]))
    text = json.dumps(header).encode()
    stated = random.choice((len(text), len(text), len(text), 2**63, len(text) + 1, 0))
    file.write_bytes(stated.to_bytes(8, "little") + text + data[8 + size :])
    return file.name


def _remove(random: Random, model: Path) -> str:
    file = _file(random, model)
    file.unlink()
    return file.name


def _replace(random: Random, model: Path) -> str:
    file = _file(random, model)
    file.unlink()
    put_irregular(random, file)
    return file.name


def _swap(random: Random, model: Path) -> str:
    one = _file(random, model)
    other = _file(random, model)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    return f"{one.name} and {other.name}"


def _add(random: Random, model: Path) -> str:
    file = model / random.choice(ADDED)
    if os.path.lexists(file):
        raise FileExistsError(file)
    if random.random() < 0.4:
        put_irregular(random, file)
    else:
        file.write_text(json.dumps(random.choice((hostile_value(random), {"a": hostile_value(random)}))))
    return file.name


def _name_elsewhere(random: Random, model: Path) -> str:
    """Let the index name another file."""
    file = _file(random, model, ".index.json")
    index = json.loads(file.read_bytes())
    name = random.choice(sorted(index["weight_map"]))
    elsewhere = random.choice(
        ("../whole/model.safetensors", "/dev/zero", "config.json", "", ".", "a\0b", "model-9.safetensors", "é", "/etc")
    )
    index["weight_map"][name] = elsewhere
    file.write_text(json.dumps(index))
    return ascii(elsewhere)


DAMAGES: tuple[Callable[[Random, Path], str], ...] = (
    *(_change_bytes, _change_bytes, _change_value, _change_value, _set_field, _set_field, _change_header),
    *(_remove, _replace, _swap, _add, _name_elsewhere),
)


def _file(random: Random, model: Path, end: str = "") -> Path:
    """Choose one of the files whose paths have this end. A FIFO that an earlier damage has put there is none."""
    return random.choice(sorted(path for path in model.iterdir() if path.is_file() and str(path).endswith(end)))


EDGE = Edge(prepare)
