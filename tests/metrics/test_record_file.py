"""A record of metrics.jsonl is read with the names it has, and without the numbers that JSON lacks."""

import pytest

from arl.metrics.record_file import decode_record


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e101", "null"])
def test_what_no_run_measures_is_absent_and_names_stay_as_they_are(number: str) -> None:
    line = f'{{"step": 3, "eval/NaNsuite/accuracy": 0.5, "eval/Infinity-Infinity": {number}, "by_age": [1, {number}]}}'
    assert decode_record(line.encode()) == {
        "step": 3.0,
        "eval/NaNsuite/accuracy": 0.5,
        "eval/Infinity-Infinity": None,
        "by_age": [1.0, None],
    }


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 3, "loss": NaNNaN}',
        b'{"step": NaN}',
        b'{"step": 1e16}',
        b'{"step": 1.5}',
        b'{"step": 3, "NaN": "NaN"}',
        b'{"step": 3, "NaN": true}',
        b'{"step": 3, "NaN": NaN, "\\ud800": 1}',
        b'{"step": 3, "NaN": NaN, "\xff": 1}',
        b'{"step": 3, "NaN": ' + b"[" * 5000,
        b'{"step": 3, "NaN": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"NaN",
    ],
)
def test_a_line_that_holds_no_record_is_damaged(line: bytes) -> None:
    assert decode_record(line) is None


def test_a_large_integer_beside_a_constant_is_read_as_a_number() -> None:
    line = b'{"step": 3, "loss": NaN, "large": ' + b"9" * 400 + b', "tokens": 123456}'
    assert decode_record(line) == {"step": 3.0, "loss": None, "large": None, "tokens": 123456.0}
