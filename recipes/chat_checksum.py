"""The running checksum as a chat, in which "?" asks to try again: the task of recipes/agent.yaml."""

import random

from arl.tasks.base import Demonstration
from arl.tasks.running_checksum import CHARACTERS, RunningChecksum
from arl.types import Problem


class ChatChecksum(RunningChecksum):
    """Pose the running checksum to a model with a chat template; the warm-up shows second tries too."""

    characters = f"{CHARACTERS}?"
    marks = ("<user>", "<assistant>")
    chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
        "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )

    def _demonstrate(self, rng: random.Random, count: int, blurt: float, slip: float) -> list[Demonstration]:
        shown = super()._demonstrate(rng, count, blurt, slip)
        return [self._second_try(rng, *one) if rng.random() < 0.5 else one for one in shown]

    @staticmethod
    def _second_try(rng: random.Random, problem: Problem, response: str) -> Demonstration:
        """Let a blurted answer and "?" come before the response."""
        messages = [
            {"role": "user", "content": problem.prompt},
            {"role": "assistant", "content": f"#{rng.randrange(6)}"},
            {"role": "user", "content": "?"},
        ]
        return Demonstration(Problem(messages, problem.answer), response)
