"""A rank that takes turns with engines on its GPU gives back what only loading needed, before it is ready."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch

from arl.train import channel
from arl.train.channel import RankRequest
from arl.train.link import Link
from arl.train.rank import Rank
from tests.train.workers import init

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("takes_turns", [True, False])
def test_memory_that_loading_took_is_free_when_a_rank_that_takes_turns_is_ready(
    takes_turns: bool, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Scripted:
        rank = 0

        def receive(self) -> RankRequest:
            return RankRequest(1, channel.MAIN, channel.Stop())

        def answer(self, request: RankRequest, body: Any = None) -> None:
            events.append(type(body).__name__)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("memory returned"))
    begin = msgspec.structs.replace(init(tiny, tmp_path), takes_turns=takes_turns)
    Rank(cast(Link, Scripted()), begin).serve(RankRequest(0, channel.MAIN, begin))
    assert events == ["memory returned"] * takes_turns + ["Ready", "NoneType"]
