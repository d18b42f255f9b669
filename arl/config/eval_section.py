"""Define the recipe's section `eval`: what is measured on problems that are never trained."""

from arl.config.section import NonNegative, PositiveFloat, Section


class Eval(Section):
    """Measure sampled accuracy on held-out problems, before and after training."""

    problems: NonNegative = 512
    """Held-out problems to use, at most; 0: no evaluation."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
