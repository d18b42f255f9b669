"""Define the recipe's section `eval`: what is measured on problems that are never trained."""

from arl.config.section import NonNegative, PositiveFloat, Section

HELD_OUT = "held_out"  # the suite of a recipe's own evaluation problems


class Eval(Section):
    """Measure sampled accuracy on held-out problems, before and after training."""

    suites: tuple[str, ...] = (HELD_OUT,)
    """What is measured during training: names of tasks, whose evaluation problems are used, or held_out for the
    recipe's own. Before and after training the recipe's own are measured."""
    problems: NonNegative = 512
    """Held-out problems to use, at most; 0: no evaluation."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
