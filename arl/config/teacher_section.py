"""Define the section `teacher` of every objective: another model, whose distribution the policy learns."""

from typing import Literal, Self

from pydantic import model_validator

from arl.config.section import FilePath, NonNegative, PositiveFloat, Section

TEACHER = "teacher_logprobs"
TOP_IDS = "teacher_top_ids"
TOP_LOGPROBS = "teacher_top_logprobs"
TEACHERS = (TEACHER, TOP_IDS, TOP_LOGPROBS)


class Teacher(Section):
    """Learn the distribution of a frozen model at each loss token, on-policy distillation (docs/algorithms.md)."""

    path: FilePath | dict[str, FilePath]
    """A directory, such as a checkpoint's, or a Hugging Face name, with the policy's vocabulary. With place engine also
    one for each data source, as in {math: A, code: B}."""
    place: Literal["trainer", "engine"] = "trainer"
    """trainer: frozen beside the policy, sharded as it is. engine: a server of its own, as `engine` describes it, which
    scores finished episodes while others generate; on GPUs it has its own."""
    coefficient: PositiveFloat = 1.0
    """β, by which the divergence is multiplied."""
    kl: Literal["reverse", "forward"] = "reverse"
    """reverse: KL(π_θ ‖ π_T). forward: KL(π_T ‖ π_θ), which needs top_k."""
    top_k: NonNegative = 0
    """How many of the teacher's likeliest tokens the divergence is computed over, all others counting as one. 0: it is
    estimated by the sampled token, whose advantage grows by β (log π_T − log π_θ)."""
    alone: bool = False
    """true: the advantages of rewards are not used."""

    @model_validator(mode="after")
    def _forward_sees_more_than_the_sample(self) -> Self:
        if self.kl == "forward" and not self.top_k:
            raise ValueError(
                "objective.teacher.top_k 0: kl forward is a mean over what the teacher would say, and not over what "
                "the policy sampled; give top_k, such as 16"
            )
        if self.place == "trainer" and isinstance(self.path, dict):
            raise ValueError(
                f"objective.teacher.path {self.path}: several teachers have place engine; give one path, or that place"
            )
        return self

    @property
    def paths(self) -> list[str]:
        """Return the path of each teacher once."""
        return list(dict.fromkeys(self.path.values())) if isinstance(self.path, dict) else [self.path]

    def path_of(self, source: str) -> str:
        """Return the path of the teacher of a data source."""
        return self.path[source] if isinstance(self.path, dict) else self.path

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the divergence needs."""
        return (TOP_IDS, TOP_LOGPROBS) if self.top_k else (TEACHER,)
