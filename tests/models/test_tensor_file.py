"""Files of tensors are read as safetensors reads them, and one that is cut short meanwhile is an error, not a death."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from arl.models.tensor_file import MOST_HEADER, TORCH_DTYPES, open_tensors

DTYPES = [getattr(torch, name) for name in TORCH_DTYPES.values()]
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def states(draw: st.DrawFn) -> dict[str, Tensor]:
    """Draw tensors of every type and shape, without values and without axes among them."""
    state = {}
    for name in draw(st.sets(st.text(max_size=3), max_size=4)):
        shape = draw(SHAPES)
        state[name] = torch.randint(0, 2, shape).to(draw(st.sampled_from(DTYPES)))
    return state


def read_all(path: Path) -> dict[str, Tensor]:
    with open_tensors(path) as file:
        return {name: file.read(name) for name in file.tensors}


@given(states())
def test_a_file_is_read_as_safetensors_reads_it(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Tensor]
) -> None:
    path = tmp_path_factory.getbasetemp() / "read.safetensors"
    save_file(state, path, metadata={"format": "pt"})
    expected = load_file(path)
    found = read_all(path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@given(st.data())
def test_rows_are_those_of_the_whole_tensor(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.safetensors"
    values = torch.randn(data.draw(st.integers(1, 9)), *data.draw(SHAPES))
    save_file({"other": torch.randn(3), "values": values}, path)
    end = data.draw(st.integers(0, len(values)))
    first = data.draw(st.integers(0, end))
    with open_tensors(path) as file:
        assert torch.equal(file.read("values", first, end), values[first:end])


@given(st.data())
def test_a_file_that_is_cut_short_anywhere_while_it_is_read_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A process that had mapped it would be killed by SIGBUS."""
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    save_file({name: torch.randn(4096) for name in "abc"}, path)
    size = path.stat().st_size
    left = data.draw(st.integers(0, size - 1))
    with open_tensors(path) as file:
        os.truncate(path, left)
        with pytest.raises(OSError, match="it was cut short"):
            [file.read(name) for name in "abc"]
    with pytest.raises(SafetensorError, match=r"too few for a header|damaged or cut short"):
        read_all(path)


def headed(header: bytes, num_bytes: int = 0) -> bytes:
    return len(header).to_bytes(8, "little") + header + b"\0" * num_bytes


def entry(shape: object = (1,), begin: object = 0, end: object = 4, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WRONG: list[tuple[bytes, str]] = [
    (b"", "too few for a header"),
    (b"\xff" * 8, "its header would have"),
    ((MOST_HEADER + 1).to_bytes(8, "little") + b" " * (MOST_HEADER + 1), "its header would have"),
    (headed(b"{"), "its header cannot be read"),
    (headed(b"[]"), "its header cannot be read"),
    (headed(b"\xff"), "its header cannot be read"),
    (headed(b'{"a":' * 50_000), "its header cannot be read"),
    (headed(json.dumps({"a": entry(end=8)}).encode(), 8), "has shape"),
    (headed(json.dumps({"a": entry(begin=-1)}).encode(), 4), "its header cannot be read"),
    (headed(json.dumps({"a": entry(begin=4, end=0)}).encode(), 4), "its header places a"),
    (headed(json.dumps({"a": entry(shape=[-1])}).encode(), 4), "its header cannot be read"),
    (headed(json.dumps({"a": entry(shape=[2**60, 2**60])}).encode(), 4), "its header cannot be read"),
    (headed(json.dumps({"a": entry(shape=[2**50] * 65)}).encode(), 4), "its header cannot be read"),
    (headed(json.dumps({"a": entry(shape=[2**50, 2**50, 0], end=0)}).encode()), "which is too large"),
    (headed(json.dumps({"a": entry(begin=4, end=8)}).encode(), 8), "its header places a"),
    (headed(json.dumps({"__metadata__": {"step": 1}}).encode()), "its header cannot be read"),
    (headed(json.dumps({"__metadata__": []}).encode()), "its header cannot be read"),
    (headed(json.dumps({"a": entry(), "b": entry()}).encode(), 4), "its header places b"),
    (headed(json.dumps({"a": entry()}).encode(), 5), "describes 4 bytes, and 5 follow"),
    (headed(json.dumps({"a": entry()}).encode(), 3), "describes 4 bytes, and 3 follow"),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=range(len(WRONG)))
def test_a_header_that_is_wrong_is_refused_before_any_tensor_is_read(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(content)
    with pytest.raises(SafetensorError, match=message):
        read_all(path)


@pytest.mark.parametrize(("name", "message"), [("missing", "no tensor missing"), ("a", "F8_E4M3")])
def test_what_the_file_does_not_hold_or_torch_does_not_have_is_refused(tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / "strange.safetensors"
    path.write_bytes(headed(json.dumps({"a": entry(dtype="F8_E4M3")}).encode(), 4))
    with open_tensors(path) as file, pytest.raises(SafetensorError, match=message):
        file.read(name)
