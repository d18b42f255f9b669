"""An environment of several turns, written with verifiers alone: it answers the agent's guesses."""

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

from tests.endpoint.verifiers_environments.count_letters import ChatHarness

__all__ = ["GuessEnv", "GuessHarness", "GuessTaskset"]


class GuessHarness(ChatHarness):
    """Answer in this process."""


class GuessTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    """Be rewarded by the environment."""


class GuessTaskset(vf.Taskset[GuessTask, vf.TasksetConfig]):
    """Ask for twenty numbers."""

    def load(self) -> Iterable[GuessTask]:
        """See Taskset."""
        return [GuessTask(vf.TaskData(prompt=f"guess {number}"), self.config.task) for number in range(20)]


class GuessConfig(vf.EnvConfig):
    """Name the one agent."""

    guesser: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    """Refuse two guesses."""

    async def run(self, task: Any, agents: Any) -> None:
        """See Env."""
        async with agents.guesser.interaction(task) as interaction:
            await interaction.turn()
            await interaction.turn("no")
            await interaction.turn("no, again")
        interaction.trace.record_reward("turns", float(interaction.trace.num_turns), 0.25)
