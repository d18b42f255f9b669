"""The ratio taken apart, by the versions that sampled, at every age."""

from pathlib import Path

import numpy as np

from arl.metrics.names import AGE_BUCKETS, FIRST_AGES
from tests.run.virtual.test_virtual import Start

PARTS = ("mismatch", "staleness", "update")


def test_the_parts_multiply_to_the_ratio_at_ages_0_to_16_and_the_engine_adds_nothing(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "lags.json").write_text('{"0": 0.2, "2": 0.2, "4": 0.2, "8": 0.2, "16": 0.2}')
    ran = start(
        "rollout.staleness=null",
        f"rollout.lag.dist={tmp_path / 'lags.json'}",
        "objective.proximal=sampled",
        "train.ratio_parts_every=1",
        "train.learning_rate=1e-3",
        "train.steps=20",
        "output.checkpoint_every=7",  # the run is built anew from its files, with what they hold of older versions
        "eval.problems=0",
    )
    seen = set()
    for step, record in enumerate(ran.records()):
        ages, ratios = [], []
        for row in ran.rows():
            if row["trained_at"] == step and row["current_logprobs"] is not None:
                at = np.flatnonzero(row["loss_mask"])
                ages.append(step - np.array(row["policy_versions"])[at])
                of_token = np.array(row["current_logprobs"], np.float64)
                behavior = np.array(row["behavior_logprobs"], np.float64)
                ratios.append((of_token - behavior)[at])
        age, ratio = np.concatenate(ages), np.concatenate(ratios)
        for bucket in range(len(AGE_BUCKETS)):
            ends = (*FIRST_AGES[1:], 10**6)
            own = ratio[(age >= FIRST_AGES[bucket]) & (age < ends[bucket]) & np.isfinite(ratio)]
            if not len(own):
                continue
            seen.add(bucket)
            parts = {part: record[f"by_age/log_{part}"][bucket] for part in PARTS}
            assert abs(sum(parts.values()) - own.mean()) < 1e-6
            assert abs(parts["mismatch"]) < 1e-6  # the very version that sampled, in fp32
            assert record["by_age/k3_mismatch"][bucket] < 1e-10
            if bucket:
                assert record["by_age/k3_staleness"][bucket] > 1e-7
    assert seen == {0, 1, 2, 3, 4, 5}
