"""Compute a policy loss from given logits, for models whose head is not a plain linear layer."""

from collections.abc import Callable

from torch import Tensor

from arl.kernels.logprob import packed_logprob, packed_logprob_ref

Kept = tuple[Tensor, ...]
# row_loss(logprob (m,), entropy (m,), rows) -> (loss summed over these rows (), tensors to keep, each with one axis).
# The loss must be a sum over rows; it is differentiated by logprob and, if it reads it, by entropy. `rows` says which
# rows of all M these are.
RowLoss = Callable[[Tensor, Tensor, slice], tuple[Tensor, Kept]]
# loss, logprob, entropy, and what row_loss kept
LossAndStats = tuple[Tensor, Tensor, Tensor, Kept]


def policy_loss(
    logits: Tensor,
    targets: Tensor,
    row_loss: RowLoss,
    temperature: float = 1.0,
) -> LossAndStats:
    """Compute the loss of one token per row, under softmax(logits / temperature).

    Args:
        logits: (M, V), any floating type, the elements of a row adjacent; −inf rules a token out.
        targets: (M,) int64.
        row_loss: called once, with all rows; see RowLoss.
        temperature: > 0.

    Returns:
        loss (), which carries the gradient to the logits; logprob (M,) ≤ 0 and entropy (M,) ≥ 0, float32, without
        gradient; and the tensors that row_loss returned.
    """
    logprob, entropy = packed_logprob(logits, targets, temperature)
    all_rows = slice(0, len(logits))
    loss, kept = row_loss(logprob, entropy, all_rows)
    return loss, logprob.detach(), entropy.detach(), kept


def policy_loss_ref(
    logits: Tensor,
    targets: Tensor,
    row_loss: RowLoss,
    temperature: float = 1.0,
) -> LossAndStats:
    """Compute the same by PyTorch's log_softmax."""
    logprob, entropy = packed_logprob_ref(logits, targets, temperature)
    all_rows = slice(0, len(logits))
    loss, kept = row_loss(logprob, entropy, all_rows)
    return loss, logprob.detach(), entropy.detach(), kept
