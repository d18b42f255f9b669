"""The packing benchmark fills every column, and its rivals are what they are called."""

import numpy as np
import pytest

from arl.bench import packing_bench as packing
from arl.bench.packing_bench import CAPACITY, areal, bench_packing, karmarkar_karp


def test_every_case_is_one_row_and_only_differencing_may_overfill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SIZES", (40, 80))
    report = bench_packing(draws=2)
    assert len(report["rows"]) == 4 * 2 * 3
    for values in report["rows"]:
        row = dict(zip(report["columns"], values, strict=True))
        for packer in ("arl", "areal"):
            assert row["least_micro_batches"] <= row[f"{packer}.micro_batches"]
            assert row[f"{packer}.micro_batches"] * 2 % row["ranks"] == 0
            assert row[f"{packer}.fullest_to_capacity"] <= 1.0
            assert row[f"{packer}.time_to_ideal"] >= 1.0
        assert row["karmarkar_karp.fullest_to_capacity"] > 0


def test_rivals_pack_hand_worked_examples() -> None:
    def packed(packer: packing.Packer, shares: list[int]) -> list[list[int]]:
        lengths = np.array(shares) * CAPACITY // 16
        (bins,) = packer(lengths, lengths.astype(float), 1)
        return sorted(sorted(shares[i] for i in members) for members in bins)

    assert packed(areal, [12, 5, 5, 2]) == [[2, 12], [5, 5]], "2 goes where fewer are, not where most room is"
    assert packed(karmarkar_karp, [8, 7, 6, 5, 4]) == [[4, 5, 7], [6, 8]], "the textbook's example"
