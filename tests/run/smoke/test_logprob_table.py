"""The verdict on logprobs: rounding passes, and a real difference is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.run.smoke.logprob_table import LIMITS, Compared, explain, judge
from arl.run.smoke.smoke_types import LogprobRow, Precision

TOKENS = 2000
VOCABULARY = 64
FLOAT32 = Precision("float32", "float32")


def sampled(temperature: float = 1.0, seed: int = 0, rounding: float = 0.0) -> np.ndarray:
    """Return logprobs at `temperature` of tokens that were sampled at 1 from logits of a standard deviation of 4."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 4, (TOKENS, VOCABULARY))
    tokens = (logits + random.gumbel(size=logits.shape)).argmax(1)
    scaled = logits / temperature
    every = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
    own = every[np.arange(TOKENS), tokens]
    return np.asarray(own + np.random.default_rng(seed + 1).normal(0, rounding, TOKENS) if rounding else own)


def compare(engine: np.ndarray, trainer: np.ndarray, places: np.ndarray | None = None) -> LogprobRow:
    where = np.arange(TOKENS) % 48 if places is None else places
    everything = np.ones(TOKENS, bool)
    compared = Compared.of(engine, trainer, where, everything)
    return judge(compared, engine="some", precision=FLOAT32, weights="of the start", on_gpus=False)


def test_equal_logprobs_are_ok_with_no_difference() -> None:
    row = compare(sampled(), sampled())
    assert row.verdict == "ok"
    assert (row.rms, row.kl, row.largest, row.tokens) == (0.0, 0.0, 0.0, TOKENS)


@pytest.mark.parametrize("dtype", LIMITS)
def test_noise_below_the_limit_is_rounding_and_noise_above_it_is_not(dtype: str) -> None:
    limit, _ = LIMITS[dtype]
    everything = np.ones(TOKENS, bool)
    verdicts = []
    for noise in (0.5 * limit, 2.0 * limit):
        compared = Compared.of(sampled(rounding=noise), sampled(), np.arange(TOKENS) % 48, everything)
        row = judge(compared, engine="some", precision=Precision(dtype, dtype), weights="", on_gpus=False)
        verdicts.append(row.verdict)
    assert verdicts == ["ok", "wrong"]


@pytest.mark.parametrize("temperature", [0.7, 0.9, 1.1, 1.4])
def test_another_temperature_is_named_with_its_size(temperature: float) -> None:
    engine = sampled(temperature)
    trainer = sampled()
    row = compare(engine, trainer)
    assert row.verdict == "wrong"
    assert "another temperature" in row.reason


@pytest.mark.parametrize("temperature", [0.95, 1.05])
def test_another_temperature_is_found_within_the_rounding_of_bfloat16(temperature: float) -> None:
    everything = np.ones(TOKENS, bool)
    places = np.arange(TOKENS) % 48
    engine = sampled(temperature, rounding=0.03)
    precision = Precision("bfloat16", "bfloat16")
    row = judge(
        Compared.of(engine, sampled(), places, everything), engine="", precision=precision, weights="", on_gpus=False
    )
    assert row.rms < row.limit
    assert row.verdict == "wrong"
    assert "another temperature" in row.reason


def test_other_weights_are_named() -> None:
    row = compare(sampled(seed=0), sampled(seed=7))
    assert row.verdict == "wrong"
    assert "unrelated" in row.reason


def test_a_decode_that_differs_behind_a_right_prefill_is_named() -> None:
    places = np.arange(TOKENS) % 48
    noise = np.random.default_rng(3).normal(0, 0.3, TOKENS) * (places >= 2)
    row = compare(sampled() + noise, sampled(), places)
    assert row.verdict == "wrong"
    assert "look at the decode's attention" in row.reason


def test_a_logprob_that_is_not_finite_is_wrong() -> None:
    engine = sampled()
    engine[5] = -np.inf
    row = compare(engine, sampled())
    assert row.verdict == "wrong"
    assert "not finite" in row.reason


def test_an_engine_with_one_logprob_for_every_token_is_named() -> None:
    assert "does not compute the model" in explain(Compared(np.full(9, -4.0), sampled()[:9], np.arange(9)))


def test_tokens_that_the_trainer_left_out_are_not_compared() -> None:
    trainer = sampled()
    trainer[: TOKENS // 2] = np.nan
    assert compare(sampled(), trainer).tokens == TOKENS // 2


def test_no_token_to_compare_is_wrong() -> None:
    row = compare(sampled(), np.full(TOKENS, np.nan))
    assert row.verdict == "wrong"
    assert "no token" in row.reason


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50), st.integers(0, 5))
def test_the_estimate_of_kl_is_never_negative_and_bounded_by_the_largest_difference(
    differences: list[float], seed: int
) -> None:
    engine = sampled(seed=seed)[: len(differences)]
    trainer = engine + np.array(differences)
    compared = Compared(engine, trainer, np.arange(len(engine)))
    row = judge(compared, engine="some", precision=FLOAT32, weights="", on_gpus=False)
    assert row.kl >= -1e-12
    assert row.rms <= row.largest * (1 + 1e-9)
    assert row.kl <= np.exp(row.largest) - 1 - row.largest + 1e-9


def test_mixed_dtypes_are_judged_by_the_coarser() -> None:
    assert Precision("bfloat16", "float32").coarser == "bfloat16"
    assert Precision("float32", "float16").coarser == "float16"
    assert str(Precision("bfloat16", "float32")) == "bfloat16 engine, float32 trainer"
