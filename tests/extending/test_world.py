"""A world that a user adds by name runs like a built-in one; what is no world is refused before anything starts."""

import contextlib
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from arl.config.worlds import VIRTUAL
from arl.errors import RecipeError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.summary import Summary, render
from arl.run.replay.replay_world import replay
from arl.run.virtual import VirtualWorld
from arl.run.world import Parts, Start, make_world
from tests.extending.short_run import VARIED_REWARDS, ShortRun


def short(directory: Path, *overrides: str) -> ShortRun:
    """Three steps in the user's world, with a checkpoint on the way."""
    return ShortRun(
        directory,
        "world=tests.extending.my_world:JitteryWorld",
        VARIED_REWARDS,
        "train.steps=3",
        "output.checkpoint_every=2",
        *overrides,
    )


def silent() -> ConsoleDisplay:
    return ConsoleDisplay(Console(file=io.StringIO()))


def step_seconds(summary: Summary) -> list[float]:
    events = json.loads(Path(summary.directory, "trace.json").read_text())
    return [event["dur"] / 1e6 for event in events if event["name"].startswith("step ")]


def test_a_users_world_decides_what_steps_cost_and_repeats_to_the_last_bit(tmp_path: Path) -> None:
    jittery = short(tmp_path)
    one = jittery.train()
    two = jittery.train()
    assert one.weights_sha256 == two.weights_sha256
    assert step_seconds(one) == step_seconds(two)
    assert all(1.0 < seconds < 2.5 for seconds in step_seconds(one))
    assert len(set(step_seconds(one))) == 3
    assert "virtual s of RL" in render(one, jittery.recipe)


def test_a_run_in_a_users_world_is_replayed_at_its_own_pace(tmp_path: Path) -> None:
    recorded = short(tmp_path).train()
    replayed, _ = replay(Path(recorded.directory), (), silent())
    assert replayed.weights_sha256 == recorded.weights_sha256
    assert step_seconds(replayed) == pytest.approx(step_seconds(recorded), abs=0.01)
    with pytest.raises(RecipeError, match=r"virtual\.train_step = 9\.0"):
        replay(Path(recorded.directory), ["virtual.train_step=9"], silent())


class Untraited:
    """It does not say what kind of world it is."""


class Unopened:
    traits = VIRTUAL

    def process_settings(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def known_accuracy(self, start: Start) -> None:
        return None


class Closed(Unopened):
    def open(self) -> None:
        """Takes no start."""


class Demanding(VirtualWorld):
    def __init__(self, nodes: int) -> None:
        self.nodes = nodes


class Undecorated(Unopened):
    async def open(self, start: Start) -> AsyncIterator[Parts]:
        yield  # type: ignore[misc]


class Partless(Unopened):
    @contextlib.asynccontextmanager
    async def open(self, start: Start) -> AsyncIterator[object]:
        yield object()


INSTANCE = VirtualWorld()


@pytest.mark.parametrize(
    ("world", "complaint"),
    [
        ("virtua", "did you mean virtual"),
        (f"{__name__}:Nowhere", "has no attribute Nowhere"),
        ("no.such.module:World", "cannot import no.such.module"),
        (f"{__name__}:Untraited", "lacks the attribute `traits`, a WorldTraits.*see arl.run.virtual:VirtualWorld"),
        (f"{__name__}:Unopened", r"lacks the method open\(start\).*see arl.run.virtual:VirtualWorld"),
        (f"{__name__}:Closed", r"cannot be called as open\(start\).*see arl.run.virtual:VirtualWorld"),
        (f"{__name__}:Demanding", "must be made without arguments.*nodes"),
        (f"{__name__}:INSTANCE", "is VirtualWorld, and must be a class"),
        (f"{__name__}:Undecorated", "decorate it with contextlib.asynccontextmanager"),
        (f"{__name__}:Partless", "open yielded object, and must yield Parts"),
    ],
)
def test_what_is_no_world_is_refused_with_its_name_and_an_example(tmp_path: Path, world: str, complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        short(tmp_path, f"world={world}").train()


@pytest.mark.parametrize("world", ["Untraited", "Unopened", "Closed", "Demanding", "INSTANCE"])
def test_what_can_be_seen_without_opening_it_is_refused_before_a_run_directory_is_made(
    tmp_path: Path, world: str
) -> None:
    with pytest.raises(RecipeError):
        short(tmp_path, f"world={__name__}:{world}").train()
    assert not (tmp_path / "runs").exists()


class Engineless(VirtualWorld):
    @contextlib.asynccontextmanager
    async def open(self, start: Start) -> AsyncIterator[Parts]:
        async with super().open(start) as parts:
            object.__setattr__(parts, "engine", object())
            yield parts


def test_a_part_that_lacks_a_part_of_its_own_is_refused(tmp_path: Path) -> None:
    complaint = "world Engineless: its engine: lacks the attribute loaded_version; see arl.engine.router:Router"
    with pytest.raises(RecipeError, match=complaint):
        short(tmp_path, f"world={__name__}:Engineless").train()


def test_the_built_in_worlds_have_every_part() -> None:
    assert [make_world(name).traits.virtual_time for name in ("wall", "virtual", "arl.bench.null:NullWorld")] == [
        False,
        True,
        False,
    ]


@pytest.fixture(autouse=True)
def _no_process_group_left() -> Iterator[None]:
    import torch.distributed as dist

    had_group = dist.is_initialized()  # another test's
    yield
    assert dist.is_initialized() == had_group
