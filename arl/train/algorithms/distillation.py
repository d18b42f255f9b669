"""Compute what a teacher adds to an objective, of N tokens: pure functions of columns.

    one token  A += β (teacher − current), a constant, so that the objective's own ratio, clip and weight see it
    top k      loss += β Σ p (log p − log q) over k + 1 events: the teacher's k likeliest tokens, and all others as one

With the others as one event it is a divergence of two distributions: ≥ 0, at most that over the whole vocabulary, and 0
only where they agree about these events. Without it, the policy could lower a reverse sum by leaving the k tokens.
"""

from typing import TYPE_CHECKING

from arl.config.teacher_section import Teacher

if TYPE_CHECKING:
    from torch import Tensor

LEAST_REST = 1e-6  # probability of all other tokens; float32 does not know less of 1 − Σ p
NO_TOKEN = -1e4  # log-probability in the place of a token that the policy does not have


def taught(advantages: "Tensor", current: "Tensor", teacher: "Tensor | None", section: Teacher) -> "Tensor":
    """Return the advantages of tokens, (N,), with what the teacher says about the sampled token if it does so."""
    if section.top_k:
        return advantages
    assert teacher is not None, "the column teacher_logprobs is missing, and the advantage needs it"
    return advantages + section.coefficient * (teacher - current).detach()


def divergence(kl: str, current: "Tensor", teacher: "Tensor") -> "Tensor":
    """Compute KL(current ‖ teacher) if `kl` is reverse, or KL(teacher ‖ current), with gradient to `current`: (N,).

    Args:
        current, teacher: (N, k) log-probabilities of the same k tokens; NO_TOKEN in `teacher` counts as no event.
    """
    current = current.masked_fill(teacher == NO_TOKEN, NO_TOKEN)
    p, q = (_with_rest(x) for x in ((current, teacher) if kl == "reverse" else (teacher, current)))
    return (p.exp() * (p - q)).sum(-1)


def _with_rest(logprobs: "Tensor") -> "Tensor":
    """Add the log-probability of all other tokens together, (N, k + 1)."""
    import torch

    rest = (1 - logprobs.exp().sum(-1, keepdim=True)).clamp(min=LEAST_REST).log()
    return torch.cat([logprobs, rest], -1)
