"""train.head: float32 gives an engine's model the logits of a float32 product, and leaves its weights as they are."""

from pathlib import Path

import torch

from arl.models.load import load_model
from arl.models.packed import PackedContext
from arl.models.prefix_tree import prefix_tree
from arl.models.tiny import make_tiny_model
from arl.tasks.running_checksum import CHARACTERS
from tests.engine.conftest import SHAPE


@torch.inference_mode()
def test_a_float32_head_multiplies_bfloat16_weights_without_rounding_the_logits(tmp_path: Path) -> None:
    make_tiny_model(SHAPE, CHARACTERS, 2, tmp_path)
    tree = prefix_tree([torch.arange(12, dtype=torch.int32).numpy()])
    logits = {}
    for head in ("auto", "float32"):
        model = load_model(tmp_path, "bfloat16", head=head)
        assert model.lm_head.weight.dtype == torch.bfloat16
        inputs = {
            "input_ids": torch.from_numpy(tree.token_ids)[None].long(),
            "position_ids": torch.from_numpy(tree.position_ids)[None],
            "use_cache": False,
        }
        context = PackedContext(tree.query_offsets, tree.key_offsets, tree.key_indices)
        logits[head] = model(**inputs, context=context).logits
        hidden = model.model(**inputs, context=context).last_hidden_state
    exact = hidden.double() @ model.lm_head.weight.double().T
    assert logits["auto"].dtype == torch.bfloat16
    assert logits["float32"].dtype == torch.float32
    torch.testing.assert_close(logits["float32"].double(), exact, rtol=0, atol=1e-5)
    assert (logits["auto"].double() - exact).abs().max() > 1e-4
