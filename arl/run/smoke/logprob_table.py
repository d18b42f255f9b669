"""Judge how far the logprobs of an engine are from the trainer's for the same sampled tokens and version.

    δ = trainer − engine, nats ─► RMS, KL = mean(exp δ − 1 − δ), largest |δ| ─► rounding of the dtype, or more

The limits come from measurements on a CPU with the model of arl.run.smoke.small_model, whose logits have a standard
deviation of 4, before and after updates. The largest of 3,000 tokens each were

    dtype       embedded engine            SGLang 0.5.20
    float32     RMS 3.2e-6, KL 5.1e-12     RMS 3.3e-6, KL 5.5e-12
    bfloat16    RMS 4.8e-3, KL 1.1e-5      RMS 5.3e-2, KL 1.4e-3

The embedded engine rounds at the same places as the trainer; SGLang rounds logits elsewhere. A temperature that differs
by 5 % makes an RMS of 0.06, which bfloat16 alone may make as well; but it scales all logprobs, and rounding does not.
So such a factor is wrong at any size. A wider model adds up more products in float32, hence the larger room there.
float16, which has 3 bits more than bfloat16, and every limit on a GPU are derived from these, not measured.
"""

import numpy as np
from msgspec import Struct

from arl.run.smoke.smoke_types import LogprobRow, Precision

# The largest RMS that is rounding, nats, and the largest KL.
LIMITS = {
    "float32": (1e-4, 1e-7),
    "float16": (1.25e-2, 8e-5),
    "bfloat16": (1e-1, 5e-3),
}
# Triton multiplies float32 matrices with the 10 bits of TF32's mantissa, which are those of float16.
GPU_FLOAT32 = LIMITS["float16"]
SCALED = 0.02  # from 1, of a slope that says another temperature
EXPLAINED = 0.5  # of the variance of δ, by that slope
UNRELATED = 0.5  # correlation, below which the two are of other weights
FIRST_TOKENS = 2  # of each answer; they follow the prefill
TINY = 1e-30  # instead of 0 in a division
LATER = 3.0  # × the RMS of the first tokens


class Compared(Struct, frozen=True):
    """Hold logprobs of the same tokens by both sides, each (T,) float64, and each token's place in its answer."""

    engine: np.ndarray
    trainer: np.ndarray
    places: np.ndarray

    @classmethod
    def of(
        cls, engine: np.ndarray, trainer: np.ndarray | None, places: np.ndarray, is_compared: np.ndarray
    ) -> "Compared":
        """Keep the tokens that are marked and that the trainer has computed."""
        if trainer is None:
            trainer = np.full(len(engine), np.nan)
        kept = is_compared & ~np.isnan(trainer)
        return cls(engine[kept].astype(np.float64), trainer[kept].astype(np.float64), places[kept])

    @property
    def difference(self) -> np.ndarray:
        """Return trainer − engine, (T,)."""
        return np.asarray(self.trainer - self.engine)


NOTHING_COMPARED = Compared(np.empty(0), np.empty(0), np.empty(0))


def judge(compared: Compared, *, engine: str, precision: Precision, weights: str, on_gpus: bool) -> LogprobRow:
    """Compare and explain.

    Args:
        engine: its kind, for the table.
        weights: which ones both sides had, for the table.
        on_gpus: both sides compute on GPUs.
    """
    difference = compared.difference
    limit, limit_kl = limits(precision, on_gpus)
    if not len(difference):
        return _row(engine, precision, weights, compared, limit, "no token of this version was sampled")
    is_rounding = _rms(difference) <= limit and _kl(difference) <= limit_kl  # False where one is NaN
    reason = _other_temperature(compared) if is_rounding else explain(compared)
    return _row(engine, precision, weights, compared, limit, reason)


def limits(precision: Precision, on_gpus: bool) -> tuple[float, float]:
    """Return the largest RMS and KL that are rounding, nats."""
    if on_gpus and precision.coarser == "float32":
        return GPU_FLOAT32
    return LIMITS[precision.coarser]


def explain(compared: Compared) -> str:
    """Say what a difference beyond rounding looks like."""
    engine = compared.engine
    trainer = compared.trainer
    if not (np.isfinite(engine).all() and np.isfinite(trainer).all()):
        return "a logprob is not finite: look at overflow in the compute type, or at damaged weights"
    if engine.std() == 0 or trainer.std() == 0:
        return "one side gives every token the same logprob: it does not compute the model"
    correlation = float(np.corrcoef(engine, trainer)[0, 1])
    if correlation < UNRELATED:
        return f"the two are unrelated (correlation {correlation:.2f}): the sides have other weights"
    temperature = _other_temperature(compared)
    if temperature:
        return temperature
    first = compared.difference[compared.places < FIRST_TOKENS]
    later = compared.difference[compared.places >= FIRST_TOKENS]
    if len(first) and len(later) and _rms(later) > LATER * _rms(first):
        return (
            f"the first tokens agree better (RMS {_rms(first):.2g}) than later ones ({_rms(later):.2g}): look at the "
            "decode's attention, its positions and its cache"
        )
    return (
        "they differ from the first token on: look at the dtype of the head, at the attention, and at whether both "
        "sides have the same weights"
    )


def _other_temperature(compared: Compared) -> str:
    """Describe a difference that is a factor, which rounding never is; empty if there is none."""
    if compared.trainer.std() == 0:
        return ""
    line = np.polyfit(compared.trainer, compared.engine, 1)
    slope = float(line[0])
    left = compared.engine - np.polyval(line, compared.trainer)
    explained = 1.0 - float(left.var()) / max(float(compared.difference.var()), TINY)
    if abs(slope - 1) < SCALED or explained < EXPLAINED:
        return ""
    return (
        f"the engine's are those of the trainer times {slope:.2f}: another temperature, about {1 / slope:.2f} "
        "times the trainer's, or logits scaled otherwise"
    )


def _row(engine: str, precision: Precision, weights: str, compared: Compared, limit: float, reason: str) -> LogprobRow:
    difference = compared.difference
    is_empty = not len(difference)
    return LogprobRow(
        engine=engine,
        precision=str(precision),
        weights=weights,
        tokens=len(difference),
        rms=0.0 if is_empty else _rms(difference),
        kl=0.0 if is_empty else _kl(difference),
        largest=0.0 if is_empty else float(np.abs(difference).max()),
        limit=limit,
        verdict="wrong" if reason else "ok",
        reason=reason or f"rounding of {precision.coarser}",
    )


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(difference**2)))


def _kl(difference: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # not finite, and so beyond every limit
        return float(np.mean(np.expm1(difference) - difference))
