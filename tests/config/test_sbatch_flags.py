"""Flags of sbatch are checked before a job is written."""

import pytest

from arl.config.sbatch_flags import check_sbatch_flags


@pytest.mark.parametrize(
    "flags", [{"x": "a\n#SBATCH --y"}, {"x": "a\u2028b"}, {"x\n#SBATCH --y": "a"}, {"x y": "a"}, {"x=y": "a"}]
)
def test_a_flag_that_would_begin_another_line_or_flag_is_refused(flags: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a flag is one word, and its value one line of text"):
        check_sbatch_flags("cluster.flags", flags)


def test_ordinary_flags_pass() -> None:
    check_sbatch_flags("cluster.flags", {"time": "08:00:00", "comment": "two words", "nice": "5"})
