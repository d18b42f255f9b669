"""Define the recipe's section `eval`: what is measured on problems that are never trained, and how it is sampled."""

from typing import Annotated

from pydantic import Field, model_validator

from arl.config.section import NonNegative, NonNegativeFloat, Positive, Section, Tokens

HELD_OUT = "held_out"  # the suite of a recipe's own evaluation problems

TopP = Annotated[float, Field(gt=0, le=1)]


class Eval(Section):
    """Measure accuracy on held-out problems before, during (`every`) and after training."""

    suites: tuple[str, ...] = (HELD_OUT,)
    """Measured during training: tasks by name, or held_out for the recipe's own problems, which are measured before and
    after. The first one chooses checkpoints/best."""
    every: NonNegative = 0
    """Steps between evaluations during training, each on exactly that step's weights; 0: none. They take one more
    engine replica, at the lowest priority or on its own GPUs; in one process, no virtual time."""
    problems: NonNegative = 512
    """Most problems of a suite to use, the first ones; 0: no evaluation."""
    samples: Positive = 1
    """Episodes of each problem, whose mean is its score."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; 0: greedy, with samples 1."""
    top_p: TopP = 1.0
    """Sample from the most probable tokens with together at least this probability; 1: all."""
    top_k: Positive | None = None
    """Sample from this many most probable tokens. null: all."""
    max_new_tokens: Tokens | None = None
    """Token budget of one episode. null: rollout.max_new_tokens."""

    @property
    def decides(self) -> str:
        """Return the suite that chooses the best checkpoint."""
        return self.suites[0]

    @property
    def only_held_out(self) -> bool:
        """Return whether nothing is measured during training but what is also measured before and after it."""
        return self.suites == (HELD_OUT,)

    @model_validator(mode="after")
    def _validate(self) -> "Eval":
        if self.every and not (self.suites and self.problems):
            raise ValueError(
                f"eval.every {self.every}: eval.suites {list(self.suites)} with eval.problems {self.problems} leaves "
                "nothing to measure; name a suite and give problems, or leave out eval.every"
            )
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"eval.samples {self.samples}: with temperature 0 every sample is the same; give samples 1, or a "
                "temperature above 0"
            )
        if self.temperature == 0 and (self.top_p < 1 or self.top_k is not None):
            raise ValueError("eval.temperature 0: greedy takes the most probable token; leave out top_p and top_k")
        return self
