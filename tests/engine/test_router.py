"""A router finds its requests, swaps and pauses another engine when one is lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from arl import clock
from arl.errors import DeadlineError, EngineError, EngineLost, TrainerError
from arl.types import Completion, GenerateRequest, Increment, WeightUpdate
from tests.engine.conftest import ask, complete
from tests.engine.mortal import Mortal, filled, member, opened


@pytest.mark.parametrize("dies", [True, False])
def test_a_strange_answer_is_a_loss_only_if_the_process_behind_it_turns_out_to_die(dies: bool) -> None:
    async def main() -> None:
        engine, other = Mortal(), Mortal()
        router, (replica, _) = await filled(engine, other)
        (task,) = await opened(router, member("a", 0))
        engine.die(EngineError("garbled"))
        await asyncio.sleep(2)
        if dies:
            router.lose(replica, EngineLost("its process died"))
            assert len((await task).token_ids) == 20
        else:
            with pytest.raises(EngineError, match="garbled"):
                await task

    clock.run(main, virtual=True)


def test_a_swap_that_the_trainer_fails_raises_its_failure_with_the_deadline_behind_it() -> None:
    """What it says of a trainer that hangs depends on that; see arl.run.failures."""

    async def main() -> None:
        engine = Mortal()
        router, _ = await filled(engine, Mortal())
        failed = TrainerError("rank 0 opens no group")
        failed.__cause__ = DeadlineError("controller waited 15 s for rank 0")
        engine.die(failed)
        with pytest.raises(TrainerError) as raised:
            await router.update_weights(WeightUpdate(1))
        assert isinstance(raised.value.__cause__, DeadlineError)

    clock.run(main, virtual=True)


def test_what_is_over_but_for_its_reason_is_not_asked_for_again() -> None:
    """The last token was said, and the engine died before it could say that it was the last."""

    class Forgetful(Mortal):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
            yield Increment((5, 6), (-1.0, -1.0), (0, 0))
            raise EngineLost("gone")

    async def main() -> None:
        for sampling, reason in [({"tokens": 2}, "length"), ({"tokens": 9, "stop_token_ids": (6,)}, "stop")]:
            router, _ = await filled(Forgetful())
            answer = await complete(router, ask("r", **sampling))  # type: ignore[arg-type]
            assert answer == Completion((5, 6), (-1.0, -1.0), (0, 0), reason)  # type: ignore[arg-type]

    clock.run(main, virtual=True)
