"""What a running run keeps of its metrics."""

from hypothesis import given
from hypothesis import strategies as st

from arl.metrics.names import Record, number
from arl.metrics.run_records import KEPT, RunRecords

STEPS = st.builds(lambda tokens: {"tokens/trained": tokens}, st.integers(0, 1000))
EVALUATIONS = st.builds(
    lambda suite, version, accuracy: {f"eval/{suite}/accuracy": accuracy, "policy_version": version},
    st.sampled_from(("held_out", "aime")),
    st.integers(0, 20),
    st.floats(0, 1),
)


@given(st.lists(STEPS | EVALUATIONS, max_size=300))
def test_however_long_a_run_is_a_bounded_number_of_records_is_kept_and_the_sums_are_those_of_all(
    all_records: list[Record],
) -> None:
    half = len(all_records) // 2
    records = RunRecords(all_records[:half])
    for record in all_records[half:]:
        records.add(record)
    assert list(records.newest) == all_records[-KEPT:]
    assert records.tokens_trained == sum(
        number(record, "tokens/trained") for record in all_records if "tokens/trained" in record
    )


def test_the_newest_evaluation_is_that_of_the_newest_version_in_whatever_order_they_come() -> None:
    records = RunRecords()
    for version, accuracy in ((0, 0.25), (20, 0.75), (10, 0.5)):
        records.add({"policy_version": version, "eval/held_out/accuracy": accuracy})
    assert records.evaluations == {"held_out": (20, 0.75)}
    assert records.has_evaluated("held_out", 10)
    assert not records.has_evaluated("held_out", 30)
    assert not records.has_evaluated("aime", 10)
