"""Give engines new weights by one transport while their slots are busy, and compare the logprobs that follow.

    rank: step until its version is newer than the engine's ─► published
    engine: busy ─► update_weights, with checksums ─► answers of that version ─► the rank's next step ─► LogprobRow

In mode collocated the engine sleeps from the step until its swap, as in a run.
"""

import contextlib
from collections.abc import AsyncIterator

from msgspec import Struct
from msgspec.structs import replace

from arl.clock import now
from arl.engine.router import Router
from arl.run.smoke.busy_engines import Generated, SampledAnswer, generate, kept_busy
from arl.run.smoke.logprob_table import NOTHING_COMPARED, Compared, judge
from arl.run.smoke.repeated_batch import behavior, make_batch, step
from arl.run.smoke.smoke_sides import EngineSide, TrainerSide
from arl.run.smoke.smoke_types import LogprobRow, Precision
from arl.types import Batch, SwapReport

BUSY_SECONDS = 0.5  # of generation after a swap, at least


class Swapped(Struct, frozen=True):
    """Hold one swap, and the comparison of what was sampled after it."""

    report: SwapReport
    publish_seconds: float  # from the end of the step until the version could be loaded
    is_checked: bool  # every weight was compared, by checksum
    row: LogprobRow


@contextlib.asynccontextmanager
async def trainers_turn(router: Router, is_collocated: bool) -> AsyncIterator[None]:
    """Pause the engines while the trainer works, where both share their devices."""
    if not is_collocated:
        yield
        return
    await router.pause()
    try:
        yield
    except Exception:
        await router.resume()
        raise
    await router.resume()


async def swap(
    engines: EngineSide,
    ranks: TrainerSide,
    batch: Batch,
    *,
    transport: str,
    vocab_size: int,
    precision: Precision,
    on_gpus: bool,
) -> Swapped:
    """Swap once.

    Args:
        batch: what the ranks train on to get newer weights.
        transport: by which these ranks publish.
        vocab_size: prompts are of ids below it.
        precision: of both sides.
        on_gpus: both compute on GPUs.
    """
    trial = engines.trial
    is_collocated = trial.recipe.mode == "collocated"
    await ranks.ready()
    during = engines.demand(f"swap-{transport}", vocab_size)
    async with kept_busy(engines.router, during), trainers_turn(engines.router, is_collocated):
        version = await _train_beyond(ranks, batch, engines.router.loaded_version)
        stepped = now()
        update = await ranks.trainer.weights(version)
        publish_seconds = now() - stepped
        if not trial.recipe.sync.check:
            update = replace(update, checksums={})
        report = await engines.router.update_weights(update)
    after = await generate(engines.router, engines.demand(f"after-{transport}", vocab_size), BUSY_SECONDS)
    async with trainers_turn(engines.router, is_collocated):
        compared = await _compare(ranks, after, version)
    row = judge(compared, engine=trial.kind, precision=precision, weights=f"after {transport}", on_gpus=on_gpus)
    return Swapped(report, publish_seconds, bool(update.checksums), row)


async def _train_beyond(ranks: TrainerSide, batch: Batch, loaded: int) -> int:
    """Train at least one step, and until the version is newer than `loaded`; return it."""
    while True:
        stepped = await step(ranks, batch, ranks.version)
        ranks.version = stepped.result.version
        if ranks.version > loaded:
            return ranks.version


async def _compare(ranks: TrainerSide, after: Generated, version: int) -> Compared:
    """Train once more, on what the engines sampled with the new weights, which are those before this step.

    Nothing is compared if the engines labeled no answer with `version`, which the verdict then names.
    """
    assert ranks.version == version
    answers = [answer for answer in after.answers if _is_of(answer, version)]
    if not answers:
        return NOTHING_COMPARED
    batch = make_batch(answers, version)
    logprobs, versions, places = behavior(batch)
    stepped = await step(ranks, batch, version)
    ranks.version = stepped.result.version
    return Compared.of(logprobs, stepped.tokens.current_logprobs, places, versions == version)


def _is_of(answer: SampledAnswer, version: int) -> bool:
    return set(answer.versions) == {version}
