"""Define the recipe's section `eval`: what is measured on problems that are never trained."""

from arl.config.section import NonNegative, PositiveFloat, Section

HELD_OUT = "held_out"  # the suite of a recipe's own evaluation problems


class Eval(Section):
    """Measure sampled accuracy on held-out problems, before and after training, and with `every` during it."""

    suites: tuple[str, ...] = (HELD_OUT,)
    """What is measured during training: names of tasks, whose evaluation problems are used, or held_out for the
    recipe's own. Before and after training the recipe's own are measured."""
    every: NonNegative = 0
    """Steps between evaluations during training, each on the weights of exactly that step; 0: none. Processes on the
    wall clock evaluate checkpoints on one more engine replica, at the lowest priority or on GPUs of its own; a world in
    one process evaluates between two steps, in no virtual time."""
    best: str | None = None
    """The suite by which the best checkpoint is chosen and kept, as checkpoints/best; null: the first of `suites`."""
    problems: NonNegative = 512
    """Held-out problems to use, at most; 0: no evaluation."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""

    @property
    def decides(self) -> str:
        """Return the suite that chooses the best checkpoint: `best`, or the first of `suites`."""
        return self.best or self.suites[0]

    @property
    def only_held_out(self) -> bool:
        """Return whether nothing is measured during training but what is also measured before and after it."""
        return self.suites == (HELD_OUT,)

    def refuse_impossible(self) -> None:
        """Check that evaluation during training has something to measure.

        Raises:
            ValueError: it has not, or `best` is not among it.
        """
        if self.every and not (self.suites and self.problems):
            raise ValueError(
                f"eval.every {self.every}: eval.suites {list(self.suites)} with eval.problems {self.problems} leaves "
                "nothing to measure; name a suite and give problems, or leave out eval.every"
            )
        if self.best is not None and self.best not in self.suites:
            raise ValueError(f"eval.best {self.best!r}: must be one of eval.suites, {', '.join(self.suites)}")
