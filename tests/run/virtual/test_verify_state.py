"""A checkpoint with the right sums and a state that no run has is refused by name, and the one before is used."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from arl.data import msgpack_arrays
from arl.errors import DataError
from arl.rollout.controller_state import RunningGroup
from arl.rollout.problem_queue import Attempt
from arl.run.checkpoint_state import STATE, RunState, load_state
from arl.run.file_manifest import MANIFEST, read_manifest, write_manifest
from arl.run.intact import newest_intact
from arl.run.verify_state import verify_state
from arl.types import Increment, Trajectory, TrajectoryGroup, Turn
from tests.run.small_run import RUN, make_run

Edit = Callable[[RunState], RunState]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints 2, 4 and 6 of a run; the engines are behind at 4, and groups wait for their step."""
    folder = tmp_path_factory.mktemp("killed")
    make_run(folder)
    checkpoints = folder / RUN / "checkpoints"
    (checkpoints / "step_6").rename(folder / "step_6")
    return checkpoints


@pytest.fixture
def checkpoint(directory: Path) -> Any:
    """Checkpoint 4, which is as it was after the test."""
    path = directory / "step_4"
    kept = {name: (path / name).read_bytes() for name in (STATE, MANIFEST)}
    yield path
    for name, content in kept.items():
        (path / name).write_bytes(content)


def forge(checkpoint: Path, state: RunState) -> None:
    """Write another state, and the sums that belong to it."""
    counted_on = read_manifest(checkpoint).counted_on
    (checkpoint / STATE).write_bytes(msgpack_arrays.encoder().encode(state))
    (checkpoint / MANIFEST).unlink()
    write_manifest(checkpoint, counted_on)


def controller(**fields: Any) -> Edit:
    return lambda state: replace(state, controller=replace(state.controller, **fields))


def recorder(**fields: Any) -> Edit:
    return lambda state: replace(state, recorder=replace(state.recorder, **fields))


def recipe(**sections: Any) -> Edit:
    return lambda state: replace(state, recipe=state.recipe | sections)


def train(**fields: Any) -> Edit:
    return lambda state: replace(state, recipe=state.recipe | {"train": state.recipe["train"] | fields})


def group(**fields: Any) -> Edit:
    """Change the first buffered group."""

    def edit(state: RunState) -> RunState:
        (deadline, first), *others = state.controller.buffered
        return controller(buffered=((deadline, replace(first, **fields)), *others))(state)

    return edit


def due(deadline: int) -> Edit:
    def edit(state: RunState) -> RunState:
        (_, first), *others = state.controller.buffered
        return controller(buffered=((deadline, first), *others))(state)

    return edit


def trajectory(change: Callable[[Trajectory], dict[str, Any]]) -> Edit:
    """Change the first trajectory of the first buffered group."""

    def edit(state: RunState) -> RunState:
        first, *others = state.controller.buffered[0][1].trajectories
        return group(trajectories=(replace(first, **change(first)), *others))(state)

    return edit


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    return trajectory(lambda first: {name: change(getattr(first, name))})


def last(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Put a value in the place of the last token's."""
    return lambda old: np.append(old[:-1], old.dtype.type(value))


def doubled(state: RunState) -> RunState:
    return controller(buffered=state.controller.buffered * 2, admitted=10**6)(state)


def running(state: RunState, **fields: Any) -> RunState:
    """Let the first buffered group still run, after all that it had sampled."""
    (deadline, ended), *others = state.controller.buffered
    unended = RunningGroup(
        group_id=ended.group_id,
        attempt=Attempt(ended.problem, number=0),
        dispatch_version=ended.dispatch_version,
        dispatch_time=ended.dispatch_time,
        deadline=deadline,
        journals=tuple((Turn(b"", said(own)),) for own in ended.trajectories),
    )
    return controller(buffered=tuple(others), running=(replace(unended, **fields),))(state)


def said(own: Trajectory, **fields: Any) -> Increment:
    sampled = slice(own.prompt_length, None)
    whole = Increment(
        token_ids=tuple(own.token_ids[sampled].tolist()),
        logprobs=tuple(own.behavior_logprobs[sampled].tolist()),
        policy_versions=tuple(own.policy_versions[sampled].tolist()),
    )
    return replace(whole, **fields)


def turns(**fields: Any) -> Edit:
    """Change what an episode of a running group has said."""

    def edit(state: RunState) -> RunState:
        first, other = state.controller.buffered[0][1].trajectories
        journals = ((Turn(b"", said(first, **fields)),), (Turn(b"", said(other)),))
        return running(state, journals=journals)

    return edit


WRONG: dict[str, tuple[Edit, str]] = {
    "no recipe": (lambda state: replace(state, recipe={}), "recipe is none that a run records"),
    "a list for a section": (recipe(train=[]), r"recipe is none .*Expected `object`, got `array` - at `\$.train`"),
    "steps as text": (train(steps="6"), r"Expected `int`, got `str` - at `\$.train.steps`"),
    "tokens as text": (train(tokens="x"), r"at `\$.train.tokens`"),
    "nothing trained": (controller(trained=0), "controller.trained = 0: version 4 has trained 8 groups"),
    "fewer than nothing trained": (controller(trained=-1), r"Expected `int` >= 0 - at `\$.controller.trained`"),
    "a negative loss": (controller(lost={"x": -5}), r"Expected `int` >= 0 - at `\$.controller.lost"),
    "nothing admitted": (controller(admitted=0), "controller.admitted = 0: 8 groups have ended"),
    "engines ahead": (controller(loaded_version=99), "controller.loaded_version = 99: engines serve no version"),
    "a place far off": (controller(position=10**15), "controller.position = 1000000000000000"),
    "groups twice": (doubled, "controller.admitted = 1000000|groups are due by then"),
    "groups gone": (controller(buffered=()), "controller.admitted = "),
    "a deadline that is over": (due(0), "deadline = 0: version 4 is trained"),
    "a negative deadline": (due(-5), "Expected `int` >= 0"),
    "a deadline far off": (due(10**9), "deadline = 1000000000: a group of version"),
    "no trajectories": (group(trajectories=()), r"length of controller.buffered\[0\].trajectories = 0"),
    "a negative number": (group(group_id=-1), "Expected `int` >= 0"),
    "a number that none has": (group(group_id=10**9), "group_id = 1000000000: groups in flight"),
    "a group of the future": (group(dispatch_version=99), "deadline = .*: a group of version 99"),
    "an arrival in the future": (group(arrival_version=99), "arrival_version = 99: no version is newer"),
    "no time": (group(dispatch_time=NAN), "dispatch_time = nan: it must be a time in seconds"),
    "an id that the model lacks": (array("token_ids", last(10**6)), r"row 1: token_ids.* = 1000000: the model has"),
    "a negative id": (array("token_ids", last(-7)), "= -7: ids begin at 0"),
    "another prompt": (array("token_ids", lambda ids: ids * 0), "all rows of a group have the same prompt"),
    "ids that are no integers": (array("token_ids", lambda ids: ids.astype(np.float32)), "float32 of 1 dimensions"),
    "ids of two dimensions": (array("token_ids", lambda ids: ids[None]), "int32 of 2 dimensions"),
    "too few logprobs": (array("behavior_logprobs", lambda own: own[:1]), "length of behavior_logprobs = 1"),
    "a logprob of NaN": (array("behavior_logprobs", last(NAN)), "nan: a logprob is finite and at most 0"),
    "a logprob above 0": (array("behavior_logprobs", last(0.5)), "0.5: a logprob is finite and at most 0"),
    "tokens of the future": (array("policy_versions", last(99)), "99: no token is newer than the step"),
    "no loss": (array("loss_mask", lambda mask: mask & False), "False: what the policy sampled is trained"),
    "no tokens": (
        trajectory(lambda own: {name: getattr(own, name)[:0] for name in own.__struct_fields__[:4]}),
        "length of token_ids = 0: an episode has at least",
    ),
    "a negative prompt": (trajectory(lambda own: {"prompt_length": -1}), "Expected `int` >= 0"),
    "a reward of NaN": (trajectory(lambda own: {"reward": NAN}), "reward is, and only there|has a reward"),
    "an infinite reward": (trajectory(lambda own: {"reward": INF}), "reward = inf: it must be finite"),
    "too large a reward": (trajectory(lambda own: {"unshaped_reward": 1e308}), r"unshaped_reward = 1e\+308"),
    "a time of NaN": (lambda state: replace(state, time=NAN), "time = nan: it must be from 0 to 31622400 seconds"),
    "a time without end": (lambda state: replace(state, time=INF), "time = inf"),
    "a time after all": (lambda state: replace(state, time=1e18), r"time = 1e\+18"),
    "a time before all": (lambda state: replace(state, time=-1e18), r"time = -1e\+18"),
    "a start of NaN": (recorder(start=NAN), "recorder.start = nan"),
    "fewer files than none": (recorder(num_files=-1), "count on different files|recorder.num_files = -1"),
    "a pause of NaN": (recorder(paused=NAN), "recorder.paused = nan: it must be finite"),
    "negative ages": (recorder(token_ages={-5: 3}), r"Expected `int` >= 0"),
    "running: over": (lambda state: running(state, deadline=0), "deadline = 0: version 4 is trained"),
    "running: one journal": (lambda state: running(state, journals=((),)), "number of journals = 1"),
    "running: no time": (lambda state: running(state, dispatch_time=NAN), r"running\[0\].dispatch_time = nan"),
    "running: an id too large": (turns(token_ids=(10**6,), logprobs=(-1.0,), policy_versions=(0,)), "the model has"),
    "running: no int32": (turns(token_ids=(1 << 63,), logprobs=(-1.0,), policy_versions=(0,)), "the model has"),
    "running: no logprobs": (turns(logprobs=()), "a token has one of each"),
    "running: a huge logprob": (turns(token_ids=(1,), logprobs=(-1e300,), policy_versions=(0,)), "logprob is finite"),
    "running: the future": (turns(token_ids=(1,), logprobs=(-1.0,), policy_versions=(99,)), "no version is newer"),
    "running: too long": (
        turns(token_ids=(1,) * 65, logprobs=(-1.0,) * 65, policy_versions=(0,) * 65),
        "length of token_ids = 65: the model's context is 64 tokens",
    ),
}


@pytest.mark.parametrize("forgery", WRONG)
def test_a_state_that_no_run_has_is_named_and_the_checkpoint_before_is_used(checkpoint: Path, forgery: str) -> None:
    edit, complaint = WRONG[forgery]
    forge(checkpoint, edit(load_state(checkpoint)))
    notes: list[str] = []
    found, _ = newest_intact(checkpoint.parent, notes.append)
    assert found.name == "step_2"
    (note,) = notes
    assert str(checkpoint) in note
    assert re.search(complaint, note), note


@pytest.mark.parametrize("edit", [lambda state: state, running], ids=["buffered", "running"])
def test_a_state_that_a_run_has_is_used(checkpoint: Path, edit: Edit) -> None:
    assert load_state(checkpoint).controller.buffered, "the run has none, so nothing was tried"
    forge(checkpoint, edit(load_state(checkpoint)))
    notes: list[str] = []
    found, _ = newest_intact(checkpoint.parent, notes.append)
    assert found == checkpoint
    assert not notes


NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.floats(width=32) | st.integers(-2, 12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["token_ids", "behavior_logprobs", "policy_versions", "loss_mask"]), st.data())
def test_no_number_in_any_token_ends_in_anything_but_a_message(directory: Path, name: str, data: st.DataObject) -> None:
    checkpoint = directory / "step_4"
    state = load_state(checkpoint)

    def change(old: np.ndarray) -> np.ndarray:
        new = old.copy()
        place = data.draw(st.integers(0, len(old) - 1))
        value = data.draw(NUMBERS.filter(lambda number: old.dtype.kind != "i" or isinstance(number, int)))
        new[place] = value
        return new

    forged = array(name, change)(state)
    before: TrajectoryGroup = state.controller.buffered[0][1]
    after = forged.controller.buffered[0][1]
    try:
        verify_state(checkpoint, forged)
    except DataError:
        return
    own = after.trajectories[0]
    prompt = slice(own.prompt_length)
    assert np.array_equal(own.token_ids[prompt], before.trajectories[0].token_ids[prompt])
    assert np.isfinite(own.behavior_logprobs).all()
    assert (own.policy_versions <= state.controller.version).all()
    assert np.array_equal(own.loss_mask, own.policy_versions >= 0)
