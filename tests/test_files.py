"""What a directory of somebody else's holds is found, whatever lies beside it."""

import os
from pathlib import Path

import pytest

from arl.errors import InputError
from arl.files import find, find_below, require_directory

ENDS = {"too long": "n" * 300, "itself": "link", "nowhere": "missing", "up": "."}


def put(directory: Path, end: str) -> Path:
    """Make a folder with a file, and a link beside both; return the link."""
    (directory / "run").mkdir()
    (directory / "run" / "summary.json").touch()
    link = directory / "link"
    link.symlink_to(ENDS[end])
    return link


@pytest.mark.parametrize("end", ENDS)
def test_a_link_keeps_nobody_from_what_lies_beside_it(tmp_path: Path, end: str) -> None:
    put(tmp_path, end)
    assert find(tmp_path, "*/summary.json") == [tmp_path / "run" / "summary.json"]
    assert find_below(tmp_path, "*.json") == [tmp_path / "run" / "summary.json"]
    assert find_below(tmp_path) == [tmp_path / "link", tmp_path / "run", tmp_path / "run" / "summary.json"]


@pytest.mark.parametrize("end", sorted(ENDS.keys() - {"up"}))
def test_nothing_is_below_a_link_that_leads_to_no_directory(tmp_path: Path, end: str) -> None:
    link = put(tmp_path, end)
    assert find(link, "*") == find(tmp_path, "link/*") == find_below(link) == []
    with pytest.raises(InputError, match=r"link: (is no directory|cannot be looked at \(.+\)); give another"):
        require_directory(link, "give another")


def test_what_may_not_be_left_out_is_an_error_if_it_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(2)):
        find_below(tmp_path / "missing", strict=True)
