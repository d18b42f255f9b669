"""The benchmark of transports runs, with all that an embedded engine can be given weights by."""

import pytest

from arl.bench import sync_bench as sync
from arl.config.recipe import TinyModel


@pytest.mark.slow
def test_each_transport_is_measured_beside_a_plain_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARL_SGLANG_PYTHON", "/nowhere/python")
    monkeypatch.setattr(sync, "SHAPES", {"small": TinyModel()})
    report = sync.bench_sync(repeats=1)
    assert report["sglang"] == "absent"
    policies = ("recompute", "keep")
    assert report["small"].keys() == {
        "megabytes",
        *(f"{k}, {p}" for k in ("one process", "embedded") for p in policies),
    }
    for policy in policies:
        assert report["small"][f"one process, {policy}"].keys() == {"memory"}
        assert report["small"][f"embedded, {policy}"].keys() == {"file", "broadcast"}
        for measured in report["small"][f"embedded, {policy}"].values():
            assert measured["swap_ms"] > 0  # of so few bytes the rate itself rounds to 0 on a busy machine
            assert measured["pause_under_load_ms"] > 0
