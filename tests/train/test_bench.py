"""What `arl bench trainer` reports, on a shape that costs nothing."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from arl.bench import trainer_bench as trainer


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    yield
    dist.destroy_process_group()


def test_the_bench_counts_every_token_of_a_full_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(trainer.SHAPES, "tiny", trainer._qwen2(64, 32, 64, 1, 2))
    monkeypatch.setattr(trainer, "ON_CPU", [("tiny", 2048)])
    report = trainer.bench_trainer(steps=2, threads=1, checkpointing="full", compiled=False)
    (row,) = report["rows"]
    assert report["train"]["checkpointing"] == "full"
    assert 1024 < row["scored_tokens"] < row["packed_tokens"] <= 2048
    assert len(row["repeats"]) == 2
    assert row["tokens_per_s"] > 0
    assert row["mfu"] is None  # of a CPU nobody knows the peak
