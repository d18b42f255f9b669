"""GPUs are named for planning by kind or by size; a kind that is not known is refused."""

import pytest

from arl.errors import InputError
from arl.launch.base import Node
from arl.run.named_gpus import describe_gpus, named_node


@pytest.mark.parametrize("text", ["8xH100", "8 x h100", "8X80GB"])
def test_a_kind_and_its_size_name_the_same_memory(text: str) -> None:
    node = named_node(text)
    assert len(node.devices) == 8
    assert node.device_bytes == 80 * 10**9


@pytest.mark.parametrize("text", ["H100", "8", "x80GB", "0xH100"])
def test_what_is_no_number_of_gpus_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=f"--gpus {text}: give a number and a kind, as in 8xH100"):
        named_node(text)


def test_messages_name_gpus_by_kind_size_and_option() -> None:
    assert describe_gpus(named_node("8x24GB")) == "8 GPUs of 24 GB (--gpus 8x24GB)"
    assert describe_gpus(named_node("1x24GB")) == "1 GPU of 24 GB (--gpus 1x24GB)"
    assert describe_gpus(named_node("8xH800")) == "8 H800 of 80 GB (--gpus 8xH800)"
    assert describe_gpus(Node("box", 8, ("0",), "NVIDIA L4")) == "1 NVIDIA L4 of box"
