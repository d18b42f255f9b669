"""What a running run keeps of its metrics."""

from arl.metrics.run_records import RunRecords


def test_the_newest_evaluation_is_that_of_the_newest_version_in_whatever_order_they_come() -> None:
    records = RunRecords()
    for version, accuracy in ((0, 0.25), (20, 0.75), (10, 0.5)):
        records.add({"policy_version": version, "eval/held_out/accuracy": accuracy})
    assert records.evaluations == {"held_out": (20, 0.75)}
    assert records.has_evaluated("held_out", 10)
    assert not records.has_evaluated("held_out", 30)
    assert not records.has_evaluated("aime", 10)
