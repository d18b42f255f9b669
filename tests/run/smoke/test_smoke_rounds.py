"""The processes of a round end, whatever one of them does."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from arl import clock
from arl.errors import EngineError
from arl.launch.trust import RunTrust
from arl.run.smoke.kept_open import KeptOpen
from arl.run.smoke.smoke_rounds import Round
from arl.run.smoke.smoke_sides import Place
from arl.run.smoke.smoke_types import Precision, SmokeStage
from arl.run.smoke.stage_runner import USUAL_SECONDS, StageRunner


def test_an_engine_that_fails_to_end_keeps_no_other_process_from_ending() -> None:
    ended: list[str] = []

    @contextlib.asynccontextmanager
    async def side(name: str, fails: bool = False) -> AsyncIterator[str]:
        yield name
        ended.append(name)
        if fails:
            raise EngineError(f"{name} did not answer")

    async def scenario() -> list[SmokeStage]:
        runner = StageRunner(USUAL_SECONDS, lambda name: None, lambda stage: None, lambda stage: stage)
        sides: dict[str, KeptOpen[Any]] = {
            "one": KeptOpen("one", lambda: side("one", fails=True)),
            "other": KeptOpen("other", lambda: side("other")),
            "ranks": KeptOpen("ranks", lambda: side("ranks")),
        }
        for kept in sides.values():
            await kept.opened()
        whole = Round(
            runner=runner,
            where=Place(Path(), Path(), RunTrust("key"), note=lambda line: None),
            precision=Precision("float32", "float32"),
            trials={},
            vocab_size=1,
            on_gpus=False,
            swaps=True,
            engines={"one": sides["one"], "other": sides["other"]},
            ranks={"file": sides["ranks"]},
        )
        await whole.close()
        return runner.stages

    (end,) = clock.run(scenario, virtual=True)
    assert ended == ["one", "other", "ranks"]
    assert end.verdict == "failed"
    assert "one did not answer" in end.said
