"""What tools give the policy: the value, or what was wrong, and never the end of a run."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
import pytest
from pydantic import Field

from arl.config.recipe import Rollout
from arl.config.recipe_file import load_recipe
from arl.config.sandbox_section import SandboxSection
from arl.data.model_limits import Limits
from arl.data.problems import as_candidates
from arl.errors import RecipeError
from arl.rollout.env import UNGRADED
from arl.rollout.tools import Toolbox, describe, encode_prompt, find_tools, use_tools
from arl.run.checks import check_sandboxes
from arl.run.prompt_lengths import fitting_prompts
from arl.sandbox.current import configured
from arl.types import NOT_SAMPLED, Problem
from tests.rollout.test_conversation import family, opened

HERE = __name__
ROOT = Path(__file__).parents[2]
meeting = asyncio.Barrier(2)


def add(a: int, b: Annotated[int, Field(description="the other")] = 1, unit: Literal["m", "s"] = "m") -> dict[str, Any]:
    """Add two numbers."""
    return {"sum": a + b, "unit": unit}


async def meet(who: str) -> str:
    """Wait for another call."""
    await meeting.wait()
    return f"{who} met"


async def wait() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


def fail() -> str:
    """Fail."""
    raise KeyError("nobody")


def expire() -> None:
    """Give up by itself."""
    raise TimeoutError("too late")


def untyped(a) -> int:  # type: ignore[no-untyped-def]
    """Take anything."""
    return int(a)


def undocumented(a: int) -> int:
    return a


def starred(*a: int) -> int:
    """Take many."""
    return sum(a)


def strange(a: asyncio.Event) -> None:
    """Take what JSON does not have."""


@pytest.fixture(autouse=True)
def _plain_sandbox() -> Iterator[None]:
    with configured(SandboxSection(unsafe=True)):
        yield


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": name, "function": {"name": name, "arguments": json.dumps(arguments)}}


def answers(calls: list[dict[str, Any]], **settings: Any) -> tuple[list[str], dict[str, float]]:
    """Make calls at the same time; return what the policy sees, and the measures of the episode."""
    session, _ = opened(family("qwen2_5"), [])
    names = ("python", *(f"{HERE}:{name}" for name in ("add", "meet", "wait", "fail", "expire")))
    session.rollout = Rollout(tools=names, **settings)

    async def work() -> list[str]:
        async with Toolbox(session) as toolbox:
            return [answer["content"] for answer in await toolbox.answer(calls)]

    return asyncio.run(work()), session.measures


def test_calls_run_at_once_and_the_interpreter_keeps_its_variables_in_their_order() -> None:
    calls = [
        call("meet", who="a"),
        call("add", a=2),
        call("python", code="x = 20"),
        call("meet", who="b"),
        call("python", code="x + 1"),
    ]
    said, measures = answers(calls)
    assert said == ["a met", '{"sum":3,"unit":"m"}', "", "b met", "21"]
    assert measures == {"tool_calls": 5, "tool_errors": 0}


def test_the_policy_reads_what_was_wrong_with_a_call_and_the_episode_goes_on() -> None:
    calls = [
        call("add", a="many", c=1),
        call("sub", a=1),
        call("fail"),
        call("expire"),
        call("wait"),
        call("python", code="1/0"),
        call("python", code="print('a' * 900)"),
    ]
    said, measures = answers(calls, tool_seconds=0.3, tool_output=200)
    assert measures == {"tool_calls": 7, "tool_errors": 6}
    for text, expected in zip(
        said,
        [
            "a: Input should be a valid integer",
            "there is no tool sub; there is python, add",
            "fail raised KeyError: 'nobody'",
            "expire raised TimeoutError: too late",
            "wait has not answered within 0.3 s",
            "ZeroDivisionError",
            "… (700 more characters)",
        ],
        strict=True,
    ):
        assert expected in text


def test_an_episode_that_is_cancelled_within_a_call_leaves_no_interpreter() -> None:
    answers([call("python", code="1")])
    server = psutil.Process().children(recursive=True)
    session, _ = opened(family("qwen2_5"), [])
    session.rollout = Rollout(tools=("python",))

    async def work() -> None:
        async with Toolbox(session) as toolbox, asyncio.timeout(0.001):
            await toolbox.answer([call("python", code="import time; time.sleep(0.5)")])

    with pytest.raises(TimeoutError):
        asyncio.run(work())
    left = {*psutil.Process().children(recursive=True)} - {*server}
    assert psutil.wait_procs(left, timeout=5)[1] == []


def test_a_function_is_described_by_its_signature_or_refused_with_its_place() -> None:
    described = describe(add).spec["function"]
    assert described["description"] == "Add two numbers."
    assert described["parameters"]["required"] == ["a"]
    assert described["parameters"]["properties"]["b"]["description"] == "the other"
    for name, what in [
        ("untyped", "argument a has no type"),
        ("undocumented", "is no function with a docstring"),
        ("starred", "write them out"),
        ("strange", "cannot be described as JSON"),
    ]:
        with pytest.raises(RecipeError, match=rf"rollout.tools {name} \(.*test_tools.py:\d+\): .*{what}"):
            find_tools((f"{HERE}:{name}",))
    with pytest.raises(RecipeError, match="two have the same name"):
        find_tools(("python", "python"))


def test_an_episode_with_tools_is_one_record_in_which_the_policys_own_tokens_alone_are_trained() -> None:
    codec = family("qwen2_5")
    tool_call = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    session, engine = opened(codec, [tool_call, "<tool_call>{oops</tool_call>", "It is 3."])
    session.rollout = Rollout(tools=(f"{HERE}:add",))
    asyncio.run(use_tools(Problem("Hi"), session))
    session.end()
    (trajectory,) = session.trajectories(UNGRADED)
    assert trajectory.measures == {"tool_calls": 2, "tool_errors": 1, "turns": 3}
    assert not trajectory.truncated
    sampled = trajectory.token_ids[trajectory.loss_mask]
    assert sampled.tolist() == [token for said in engine.said for token in said]
    (context,) = codec.decode_all([trajectory.token_ids[~trajectory.loss_mask].tolist()])
    assert '{"sum":3,"unit":"m"}' in context
    assert "Error: the tool call cannot be read" in context
    assert (trajectory.policy_versions[~trajectory.loss_mask] == NOT_SAMPLED).all()


def test_a_call_in_the_last_turn_is_not_made_because_nobody_would_read_it() -> None:
    session, _ = opened(family("qwen2_5"), ['<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'])
    session.rollout = Rollout(tools=(f"{HERE}:add",), max_turns=1)
    asyncio.run(use_tools(Problem("Hi"), session))
    assert session.measures == {"tool_calls": 0, "tool_errors": 0, "turns": 1}


def test_python_needs_the_sandbox_and_functions_of_the_user_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # there is no bwrap
    recipe = ROOT / "recipes" / "tools.yaml"
    check_sandboxes([load_recipe(recipe, [f"rollout.tools=['{HERE}:add']"])])
    with pytest.raises(RecipeError, match="no bwrap on PATH"):
        check_sandboxes([load_recipe(recipe)])


def test_tools_count_in_the_length_of_a_prompt() -> None:
    names = (f"{HERE}:add",)
    codec = family("qwen2_5")
    recipe = load_recipe(ROOT / "recipes" / "tools.yaml", [f"rollout.tools={json.dumps(names)}"])
    problem = Problem("Hi")
    _, longest = fitting_prompts(recipe, codec, Limits(codec.vocab_size, 4096), as_candidates([problem], "here"), [])
    ids = encode_prompt(codec, problem, names)
    assert longest == len(ids) + recipe.rollout.max_new_tokens
    assert "Add two numbers." in codec.decode(ids)
