"""A manifest notices every change of the files that it lists, and reads what grows once."""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import DataError
from arl.run.file_manifest import (
    MANIFEST,
    FileSum,
    GrowingSums,
    Manifest,
    check_files,
    read_manifest,
    sum_file,
    write_manifest,
)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "sealed" / "weights" / "v3").mkdir(parents=True)
    (tmp_path / "sealed" / "weights" / "v3" / "config.json").write_text("{}")
    (tmp_path / "sealed" / "model.safetensors").write_bytes(bytes(1000))
    write_manifest(tmp_path / "sealed", {"metrics.jsonl": FileSum(3, "abc")})
    return tmp_path / "sealed"


def test_what_was_sealed_is_whole(sealed: Path) -> None:
    manifest = read_manifest(sealed)
    check_files(sealed, manifest)
    assert sorted(manifest.files) == ["model.safetensors", "weights/v3/config.json"]
    assert manifest.counted_on == {"metrics.jsonl": FileSum(3, "abc")}


def test_no_other_bytes_pass_for_a_manifest(sealed: Path) -> None:
    written = (sealed / MANIFEST).read_bytes()

    @given(st.integers(0, len(written)), st.integers(0, 3), st.binary(max_size=3))
    def damaged(place: int, num_lost: int, put_in: bytes) -> None:
        data = written[:place] + put_in + written[place + num_lost :]
        (sealed / MANIFEST).write_bytes(data)
        if data == written:
            read_manifest(sealed)
        else:
            with pytest.raises(DataError, match=MANIFEST):
                read_manifest(sealed)

    damaged()


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a//b", "a/", "./a", "", ".", "a\0b"])
def test_a_manifest_names_only_files_below_its_directory(sealed: Path, name: str) -> None:
    forged = Manifest({name: FileSum(0, "")})
    (sealed / MANIFEST).write_bytes(forged.encode())
    with pytest.raises(DataError, match=r"which is no file below a directory"):
        read_manifest(sealed)


def test_a_size_below_zero_is_refused(sealed: Path) -> None:
    forged = msgspec.json.encode({"files": {"a": {"bytes": -1, "sha256": ""}}})
    (sealed / MANIFEST).write_bytes(forged)
    with pytest.raises(DataError, match=r"Expected `int` >= 0"):
        read_manifest(sealed)


def test_a_link_to_the_same_bytes_is_no_file_of_the_directory(sealed: Path, tmp_path: Path) -> None:
    (sealed / "model.safetensors").rename(tmp_path / "elsewhere")
    (sealed / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"model.safetensors is no regular file"):
        check_files(sealed, read_manifest(sealed))


@pytest.mark.parametrize("target", [MANIFEST, "nowhere", "n" * 300], ids=["itself", "nowhere", "a name too long"])
def test_a_link_that_leads_to_no_file_is_damage_for_which_an_older_checkpoint_may_do(sealed: Path, target: str) -> None:
    (sealed / MANIFEST).unlink()
    (sealed / MANIFEST).symlink_to(target)
    with pytest.raises(DataError, match=r"manifest.json cannot be read"):
        read_manifest(sealed)


@given(pieces=st.lists(st.binary(max_size=50), max_size=6), cuts=st.lists(st.integers(0, 50), max_size=6))
def test_the_sum_of_a_growing_file_is_that_of_its_beginning(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], cuts: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("growing")
    sums = GrowingSums(directory, {})
    (directory / "file").touch()
    counted = 0
    for piece, cut in zip(pieces, cuts, strict=False):
        with (directory / "file").open("ab") as file:
            file.write(piece)
        size = (directory / "file").stat().st_size
        counted = max(counted, min(cut, size))  # more may have been written since
        assert sums.beginning("file", counted) == sum_file(directory / "file", counted)


def test_bytes_that_were_summed_are_not_read_again(tmp_path: Path) -> None:
    sums = GrowingSums(tmp_path, {"complete": FileSum(7, "known")})
    (tmp_path / "growing").write_bytes(b"ab")
    before = sums.beginning("growing", 2)
    (tmp_path / "growing").write_bytes(b"XYc")  # the first two are others now, and nobody looks
    (tmp_path / "same").write_bytes(b"abc")
    assert before.bytes == 2
    assert sums.beginning("growing", 3) == sum_file(tmp_path / "same")
    assert sums.complete("complete") == FileSum(7, "known")
    with pytest.raises(OSError, match="has 3 bytes, and 4 were written"):
        sums.beginning("growing", 4)
    assert os.listdir(tmp_path)
