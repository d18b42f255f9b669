"""Stages end by their deadlines, and one that fails does not keep the others from running."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from arl import clock
from arl.clock import now
from arl.errors import EngineLost, ProcessDied
from arl.run.smoke.kept_open import KeptOpen
from arl.run.smoke.smoke_types import SmokeStage, StageOutcome, Verdict, worst
from arl.run.smoke.stage_runner import ENDING_SECONDS, USUAL_SECONDS, StageRunner


def make_runner(seconds: float = USUAL_SECONDS) -> StageRunner:
    def nothing(name: str) -> None:
        """Show no stage that begins."""

    def same(stage: SmokeStage) -> SmokeStage:
        return stage

    return StageRunner(seconds, nothing, lambda stage: None, same)


async def good() -> StageOutcome:
    return StageOutcome(said="done")


async def hang() -> StageOutcome:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_stage_that_hangs_ends_at_its_deadline_and_is_named() -> None:
    async def scenario() -> tuple[list[SmokeStage], float]:
        runner = make_runner()
        await runner.run("swap by pigeon", 7.0, hang)
        await runner.run("next", 5.0, good)
        return runner.stages, now()

    (hung, after), ended = clock.run(scenario, virtual=True)
    assert hung.verdict == "failed"
    assert "7 s for the stage 'swap by pigeon'" in hung.said
    assert hung.seconds == 7.0
    assert after.verdict == "ok"
    assert ended == 7.0


def test_stages_that_do_not_fit_are_skipped_and_those_that_end_processes_run_nevertheless() -> None:
    async def scenario() -> tuple[list[SmokeStage], float]:
        runner = make_runner()
        await runner.run("long", 10 * USUAL_SECONDS, hang)
        ended = now()
        await runner.run("next", 5.0, good)
        await runner.end("end", 5.0, good)
        return runner.stages, ended

    (long, after, end), ended = clock.run(scenario, virtual=True)
    assert ended == USUAL_SECONDS - ENDING_SECONDS
    assert long.verdict == "failed"
    assert "--seconds" in long.said
    assert after.verdict == "skipped"
    assert "--seconds" in after.said
    assert end.verdict == "ok"


@pytest.mark.parametrize(("seconds", "expected"), [(USUAL_SECONDS, 10.0), (2 * USUAL_SECONDS, 20.0), (90.0, 5.0)])
def test_deadlines_of_stages_stretch_with_the_time_for_all(seconds: float, expected: float) -> None:
    async def scenario() -> float:
        runner = make_runner(seconds)
        await runner.run("hangs", 10.0, hang)
        return now()

    assert clock.run(scenario, virtual=True) == expected


def test_an_error_that_is_not_ours_is_reported_with_its_type_and_place() -> None:
    async def broken() -> StageOutcome:
        raise ZeroDivisionError("by hand")

    async def scenario() -> SmokeStage:
        runner = make_runner()
        await runner.run("breaks", 5.0, broken)
        return runner.stages[0]

    stage = clock.run(scenario, virtual=True)
    assert stage.verdict == "failed"
    assert "ZeroDivisionError: by hand at " in stage.said


def test_cancellation_is_not_a_failed_stage() -> None:
    async def scenario() -> list[SmokeStage]:
        runner = make_runner()
        running = asyncio.create_task(runner.run("hangs", 50.0, hang))
        await asyncio.sleep(1.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return runner.stages

    assert not clock.run(scenario, virtual=True)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["ok", "skipped"], "ok"),
        (["slow", "ok"], "slow"),
        (["wrong", "slow"], "wrong"),
        (["wrong", "failed"], "failed"),
    ],
)
def test_the_worst_verdict_is_that_of_the_report(verdicts: list[Verdict], expected: Verdict) -> None:
    assert worst(verdicts) == expected


def test_what_ends_a_side_is_reported_by_the_stage_that_uses_it_and_not_what_it_broke() -> None:
    async def scenario() -> None:
        dies = asyncio.Event()

        @contextlib.asynccontextmanager
        async def opening() -> AsyncIterator[str]:
            async with asyncio.TaskGroup() as tasks:

                async def watch() -> None:
                    await dies.wait()
                    raise ProcessDied("engine-0 was killed")

                tasks.create_task(watch())
                yield "router"

        async def work(router: str) -> None:
            dies.set()
            raise EngineLost(f"{router}: connection broken")

        side = KeptOpen("engine", opening)
        with pytest.raises(ProcessDied, match="engine-0 was killed"):
            await side.use(work)
        with pytest.raises(ProcessDied):
            await side.use(work)  # at once, because nothing is left
        await side.close()

    clock.run(scenario, virtual=True)


def test_a_side_that_is_still_opening_can_be_closed() -> None:
    async def scenario() -> list[str]:
        said = []

        @contextlib.asynccontextmanager
        async def opening() -> AsyncIterator[str]:
            try:
                await asyncio.Event().wait()
                yield "never"
            finally:
                said.append("cleaned up")

        side = KeptOpen("engine", opening)
        await asyncio.sleep(1.0)
        await side.close()
        assert await side.opened() is None
        return said

    assert clock.run(scenario, virtual=True) == ["cleaned up"]
