"""Sort the metrics by when they are logged."""

from arl.metrics.names import METRICS, OF_EVALUATION

EVALUATION = frozenset(name for name in METRICS if name.startswith(OF_EVALUATION))
ONCE_LOST = frozenset(  # each is logged from the first such group on
    f"audit/{quantity}_{loss}" for quantity in ("length", "reward") for loss in ("rejected", "failed", "dropped")
)
ON_DEMAND = frozenset(  # of settings that are off by default, or of devices whose peak is known
    {
        "ratio/dual_clip_fraction",
        "grad_cosine/stale_fresh",
        "time/halves_s",
        "train/loss_scale",
        "hardware/mfu",
        "curriculum/skipped",
        "time/critic_s",
        *(name for name in METRICS if name.startswith("critic/")),
        "kl/reference",
        "by_age/kl_reference",
        "kl/teacher",
        "by_age/kl_teacher",
        *(f"by_age/{kind}_{part}" for kind in ("log", "k3") for part in ("mismatch", "staleness", "update")),
    }
)
EVERY_STEP = frozenset(METRICS) - EVALUATION - ONCE_LOST - ON_DEMAND
