"""Give the policy tools: `python`, an interpreter in the sandbox, and functions of the user.

    rollout.tools ─► describe: signature and docstring ─► JSON schema ─► the chat template shows it to the policy
    the policy calls ─► arguments are checked ─► the function, in a thread or awaited ─► clipped text ─► its next turn

What a tool returns is context: it is not sampled, and never trained. A call that cannot be read, has other arguments,
raises or takes too long is no fault of the run: the policy reads what was wrong, and the episode goes on.
"""

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from arl.clock import in_thread
from arl.config.imports import import_function
from arl.data.chat import Message, ToolSpec
from arl.data.text_codec import TextCodec
from arl.errors import ArlError, RecipeError
from arl.rollout.conversation import Conversation
from arl.rollout.env import Session
from arl.rollout.tool_calls import parser_for
from arl.sandbox.base import Result, Shell
from arl.sandbox.current import sandbox
from arl.types import Problem

if TYPE_CHECKING:
    from arl.data.tokenizer import HuggingFaceCodec

PYTHON = "python"
MEMORY_MB = 512  # of the interpreter
AS_JSON = TypeAdapter[Any](Any)


class Tool(Struct, frozen=True):
    """Hold a function, and what the policy is told of it."""

    spec: ToolSpec
    arguments: type[BaseModel]
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return str(self.spec["function"]["name"])


class ToolError(Exception):
    """Report a call that failed. Its text is for the policy."""


def python(code: str) -> str:
    """Run Python code, and return what it prints. Variables live from one call to the next."""
    raise AssertionError("a Toolbox runs it in the shell of its episode")


python.uses_sandbox = True  # type: ignore[attr-defined]  # so that a run opens it before anything starts


@functools.cache
def find_tools(names: tuple[str, ...]) -> tuple[Tool, ...]:
    """Import and describe the tools of a recipe.

    Raises:
        RecipeError: one is not there or cannot be described, or two have the same name.
    """
    functions = [python if name == PYTHON else import_function(name, "rollout.tools") for name in names]
    tools = tuple(map(describe, functions))
    called = [tool.name for tool in tools]
    if len(set(called)) < len(called):
        raise RecipeError(f"rollout.tools {', '.join(names)}: two have the same name; rename one")
    return tools


def describe(function: Callable[..., Any]) -> Tool:
    """Describe a function by its signature and docstring.

    Raises:
        RecipeError: an argument has no type or one that JSON does not have, or there is no docstring.
    """
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = f"rollout.tools {name}" + ("" if code is None else f" ({code.co_filename}:{code.co_firstlineno})")
    text = inspect.getdoc(function) if inspect.isroutine(function) else None
    if not text:
        raise RecipeError(f"{place}: is no function with a docstring, by which the policy would know when to call it")
    fields: dict[str, Any] = {}
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise RecipeError(f"{place}: takes {parameter}, and a call names each argument; write them out")
            if parameter.name not in hints:
                raise RecipeError(f"{place}: argument {parameter.name} has no type; write {parameter.name}: str, say")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = arguments.model_json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise RecipeError(f"{place}: cannot be described as JSON ({reason}); give its arguments other types") from error
    del schema["title"]
    described = {"name": name, "description": text, "parameters": schema}
    return Tool({"type": "function", "function": described}, arguments, function)


def specs_of(names: tuple[str, ...]) -> list[ToolSpec]:
    """Return what the policy is told of the tools of these names."""
    return [tool.spec for tool in find_tools(names)]


def encode_prompt(codec: TextCodec, problem: Problem, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of a problem's prompt, which shows the tools of these names.

    Raises:
        DataError: the template does not take the problem.
    """
    if not names:
        return codec.encode_problem(problem)
    return tuple(next(cast("HuggingFaceCodec", codec).prompts.encode([problem], specs_of(names))))


def check_tools(codec: "HuggingFaceCodec", names: tuple[str, ...]) -> None:
    """Check that tools can be described, and that the model knows how to call some.

    Raises:
        RecipeError: see find_tools.
        DataError: its chat template shows no tools, or has calls of a form that arl does not read.
    """
    if find_tools(names):
        parser_for(codec.prompts.template or "", codec.prompts.model)


class Toolbox:
    """Run the tools of one episode. Use it as an async context manager, which ends the interpreter.

    Measures of the episode, for metrics: `tool_calls`, and `tool_errors` of them.
    """

    def __init__(self, session: Session) -> None:
        self._rollout = session.rollout
        self._measures = session.measures
        self._measures |= {"tool_calls": 0, "tool_errors": 0}
        self._tools = {tool.name: tool for tool in find_tools(session.rollout.tools)}
        self._shell: Shell | None = None
        self._shell_thread = ThreadPoolExecutor(1, "shell")  # which keeps the calls of the interpreter in their order

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Behind a call that still runs because its episode was cancelled; a second cancellation changes nothing.
        ended = asyncio.get_running_loop().run_in_executor(self._shell_thread, self._end_shell)
        self._shell_thread.shutdown(wait=False)
        await asyncio.shield(ended)

    async def answer(self, calls: Sequence[Message]) -> list[Message]:
        """Make calls at the same time, and return their answers in order.

        Raises (in an ExceptionGroup):
            SandboxError: the sandbox itself failed.
        """
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._answer_one(call)) for call in calls]
        return [task.result() for task in running]

    def refuse(self, what: str) -> Message:
        """Answer a call that could not be read."""
        self._measures["tool_calls"] += 1
        self._measures["tool_errors"] += 1
        return {"role": "tool", "content": f"Error: {what}"}

    async def _answer_one(self, call: Message) -> Message:
        self._measures["tool_calls"] += 1
        name = call["function"]["name"]
        try:
            text = await self._run(name, call["function"]["arguments"])
        except ToolError as error:
            self._measures["tool_errors"] += 1
            text = f"Error: {error}"
        limit = self._rollout.tool_output
        if len(text) > limit:
            text = f"{text[:limit]}… ({len(text) - limit} more characters)"
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": text}

    async def _run(self, name: str, arguments: str) -> str:
        """Make one call.

        Raises:
            ToolError: it failed.
            ArlError: the sandbox did.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name}; there is {', '.join(self._tools)}")
        try:
            given = tool.arguments.model_validate_json(arguments)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ToolError(f"arguments of {name}: {wrong}") from error
        if tool.function is python:
            return await self._run_python(str(given.code))  # type: ignore[attr-defined]
        values = {field: getattr(given, field) for field in type(given).model_fields}
        limit = asyncio.timeout(self._rollout.tool_seconds)
        try:
            async with limit:
                if inspect.iscoroutinefunction(tool.function):
                    result = await tool.function(**values)
                else:
                    result = await in_thread(tool.function, **values)
            return result if isinstance(result, str) else AS_JSON.dump_json(result).decode()
        except ArlError:
            raise
        except Exception as error:
            if limit.expired():
                raise ToolError(f"{name} has not answered within {self._rollout.tool_seconds:g} s") from error
            raise ToolError(f"{name} raised {type(error).__name__}: {error}") from error

    async def _run_python(self, code: str) -> str:
        result = await asyncio.get_running_loop().run_in_executor(self._shell_thread, self._run_in_shell, code)
        if result.outcome == "done":
            return result.stdout.strip()
        if result.outcome == "error":
            raise ToolError(f"{result.stdout}{result.stderr}".strip())
        limits = {"time": f"{self._rollout.tool_seconds:g} s", "memory": f"{MEMORY_MB} MB", "output": "of output"}
        raise ToolError(f"beyond the limit {limits[result.outcome]}; the interpreter was started anew")

    def _run_in_shell(self, code: str) -> Result:
        if self._shell is None:
            self._shell = sandbox().shell(seconds=self._rollout.tool_seconds, memory_mb=MEMORY_MB)
        return self._shell.run(code)

    def _end_shell(self) -> None:
        if self._shell is not None:
            self._shell.close()


async def use_tools(problem: Problem, session: Session) -> None:
    """Let the policy call tools, until it answers without one, or has taken `rollout.max_turns` turns."""
    conversation = Conversation(session)
    specs = specs_of(session.rollout.tools)
    messages: list[Message] = cast("HuggingFaceCodec", session.codec).prompts.messages(problem)
    async with Toolbox(session) as toolbox:
        for turn in range(1, session.rollout.max_turns + 1):
            reply = await conversation.reply(messages, specs)
            if not reply.completion.token_ids:
                return  # there was no room for a turn
            session.measures["turns"] = turn
            if turn == session.rollout.max_turns:
                return
            if reply.malformed:
                answers = [toolbox.refuse(reply.malformed)]
            elif reply.finish_reason == "tool_calls":
                answers = await toolbox.answer(reply.message["tool_calls"])
            else:
                return
            messages = [*messages, reply.message, *answers]
