"""Let a rank compute the same bits from the same weights and the same batch: `train.deterministic`.

On a GPU, shared prompts are why it would not otherwise. Keys and values of a token that several trajectories see are
gathered once for each of them, and the backward adds their gradients up in the order in which threads arrive. In the
deterministic mode of torch

    gathered rows         are sorted before their gradients are added up
    flash attention       versions 2 and 3 accumulate in a fixed order
    fused attention       of float32 does not split its keys
    products              repeat, because cuBLAS has a workspace of a fixed layout
    sums of a row         have the block size of arl.kernels.triton_rows' first choice, not of the one measured fastest
    any other operation   that cannot repeat itself raises
"""

import os

import torch

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
EIGHT_BUFFERS = ":4096:8"  # of 4 MiB; with this or :16:8 cuBLAS repeats itself, says NVIDIA


def compute_deterministically() -> None:
    """Turn on torch's deterministic mode in this process; comes before CUDA starts, because cuBLAS then looks once."""
    os.environ.setdefault(CUBLAS_WORKSPACE, EIGHT_BUFFERS)
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory that nobody has written, so filling it would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
