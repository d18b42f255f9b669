"""What a model costs is read from its config, and is what torch counts."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3Config

from arl.data.model_limits import model_flops


def test_flops_of_a_forward_are_those_that_torch_counts(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
    )
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 20, dtype=torch.long))
    everyone_sees_all = 20 * 20  # eager attention computes what it masks
    ours = model_flops(str(tmp_path)).of(20, everyone_sees_all, 20)
    assert counter.get_total_flops() == pytest.approx(ours, rel=1e-3)  # some versions count the rotary angles, too
