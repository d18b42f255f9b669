"""The benchmark of transports runs, with all that an embedded engine can be given weights by."""

import pytest

from arl.bench import sync_bench as sync


@pytest.mark.slow
def test_each_transport_is_measured_beside_a_plain_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARL_SGLANG_PYTHON", "/nowhere/python")
    report = sync.bench_sync(repeats=1, sizes=["0.4M"], note=lambda _: None)
    assert report["sglang"] == "absent"
    for policy in ("recompute", "keep"):
        found = report["0.4M parameters"][f"embedded, {policy}"]
        assert found.keys() == {"file", "broadcast"}
        for measured in found.values():
            assert measured["swap_ms"] > 0  # of so few bytes the rate itself rounds to 0 on a busy machine
            assert measured["pause_under_load_ms"] > 0
