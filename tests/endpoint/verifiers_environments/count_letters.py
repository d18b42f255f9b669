"""An environment of one turn, written with verifiers alone: its taskset, and the agent that plays it."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["ChatHarness", "LettersTaskset"]


class LettersConfig(vf.TasksetConfig):
    """Say which letter is counted."""

    letter: str = "a"


class LettersData(vf.TaskData):
    """Hold what the reward reads."""

    letter: str


class LettersTask(vf.Task[LettersData, vf.State, vf.TaskConfig]):
    """Reward each letter."""

    @vf.reward(weight=2.0)
    async def letters(self, trace: vf.Trace) -> float:
        """Count."""
        if not self.data.letter:
            raise ValueError("there is no letter to count")
        return float(trace.last_reply.count(self.data.letter))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        """Count all characters."""
        return float(len(trace.last_reply))


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
    """Ask without end."""

    INFINITE = True

    def load(self) -> Iterator[LettersTask]:
        """See Taskset."""
        number = 0
        while True:
            data = LettersData(prompt=f"letters {number}", system_prompt="Write.", letter=self.config.letter)
            yield LettersTask(data, self.config.task)
            number += 1


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """Answer in this process, by the openai package."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> vf.ProgramResult:
        """See Harness."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []
        if not isinstance(prompt, str):
            messages = [message_to_wire(message) for message in prompt or []]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages, max_tokens=12)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
