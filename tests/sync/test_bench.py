"""The benchmark of transports runs, with all that an embedded engine can be given weights by."""

import pytest

from arl.bench import sync_bench as sync
from arl.errors import InputError


@pytest.mark.slow
def test_each_transport_is_measured_beside_a_plain_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARL_SGLANG_PYTHON", "/nowhere/python")
    notes: list[str] = []
    report = sync.bench_sync(repeats=1, sizes=["0.4M"], engines=[2], note=notes.append)
    assert report["sglang"] == "absent"
    policies = ("recompute", "keep")
    assert report["0.4M parameters"].keys() == {
        "megabytes",
        *(f"{k}, {p}" for k in ("one process", "embedded") for p in policies),
        "embedded, 2 engines",
    }
    assert notes[-1] == "1.7 MB: a broadcast to 2 embedded servers"
    groups = report["0.4M parameters"]["embedded, 2 engines"]
    for way in sync.WAYS:
        assert groups[way]["pause_under_load_ms"] > 0
        assert groups[way]["parts_of_the_pause_ms"].keys() == {"drain", "flush", "transfer", "load", "resume"}
    for policy in policies:
        assert report["0.4M parameters"][f"one process, {policy}"].keys() == {"memory"}
        assert report["0.4M parameters"][f"embedded, {policy}"].keys() == {"file", "broadcast"}
        for measured in report["0.4M parameters"][f"embedded, {policy}"].values():
            assert measured["swap_ms"] > 0  # of so few bytes the rate itself rounds to 0 on a busy machine
            assert measured["pause_under_load_ms"] > 0


def test_a_size_that_is_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match=r"--size 7B: choose from 0\.4M, 25M, 135M"):
        sync.bench_sync(repeats=1, sizes=["7B"], engines=[], note=print)
