"""Check, before anything starts, that model and trainer can hold the longest prompts, and that stops can occur."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.data.row_problems import Candidate
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError, InputError
from arl.types import Problem


@dataclass
class PromptCheck:
    """Measure prompts in tokens, every one of them and once.

    Args:
        max_new_tokens: of an answer.
        suite: whose problems they are; None: those of training.
        max_prompt_tokens: longer prompts are left out.
    """

    codec: HuggingFaceCodec
    limits: Limits
    max_new_tokens: int
    suite: str | None = None
    max_prompt_tokens: int | None = None
    longest: int = 0  # prompt with a full answer, tokens: the result

    def fitting(self, candidates: Sequence[Candidate], notes: list[str]) -> list[Candidate]:
        """Check that the model can hold each prompt with a full answer; return those that are not left out.

        Args:
            notes: gets a line about what is left out, and one about prompts with control tokens.

        Raises:
            DataError: a problem cannot become a prompt of this model.
            InputError: the longest prompt with its answer is too long, or a token is none of the model.
        """
        self._check_ids(self.codec.stop_token_ids)
        kept = []
        controlled = []
        lengths = []
        for candidate, ids in self._encoded(candidates):
            if self.max_prompt_tokens is not None and len(ids) > self.max_prompt_tokens:
                continue
            if not ids:
                raise DataError(
                    f"{self._name}{candidate}: its prompt has no token of this model's tokenizer; remove it"
                )
            self._check_ids(ids)
            kept.append(candidate)
            lengths.append(len(ids))
            if text := self.codec.control_text(candidate.problem):
                controlled.append((candidate, text))
        if left_out := len(candidates) - len(kept):
            notes.append(f"{left_out:,} prompts longer than data.max_prompt_tokens {self.max_prompt_tokens:,} left out")
        if controlled:
            candidate, text = controlled[0]
            notes.append(
                f"{self._name}{len(controlled):,} of {len(kept):,} prompts hold control tokens, which the model takes "
                f"for the end or the beginning of a turn: {text!r} in {candidate}. Take them out of the rows; if "
                "these are rendered prompts, set data.chat_template to false"
            )
        if kept:
            length = max(lengths)
            self._check_length(length, kept[lengths.index(length)])
        return kept

    @property
    def _name(self) -> str:
        return "" if self.suite is None else f"suite {self.suite}: "

    def _encoded(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, list[int]]]:
        taken: Candidate | None = None

        def problems() -> Iterator[Problem]:
            nonlocal taken
            for taken in candidates:
                yield taken.problem

        try:
            yield from zip(candidates, self.codec.prompts.encode(problems()), strict=True)
        except DataError as error:  # the one that was taken last cannot be rendered
            raise DataError(f"{self._name}{taken}: {error}") from error

    def _check_ids(self, ids: Sequence[int]) -> None:
        """Raise where a token is none of the model."""
        largest = max(ids)
        if largest < self.limits.vocab_size:
            return
        rule = f"the model's ids run from 0 to {self.limits.vocab_size - 1}"
        for source in self.codec.stop_sources.get(largest, ()):
            if source.endswith(".json"):
                raise InputError(f"{source} of the model: eos_token_id {largest}, and {rule}: correct it")
        raise InputError(
            f"{self._name or 'model.path: '}the tokenizer makes id {largest}, and {rule}: give the tokenizer that "
            "belongs to the model"
        )

    def _check_length(self, length: int, candidate: Candidate) -> None:
        """Raise where the longest prompt does not fit."""
        self.longest = total = length + self.max_new_tokens
        context = self.limits.context
        if total > context:
            field = "rollout.max_new_tokens" if self.suite is None else "eval.max_new_tokens (--max-new-tokens)"
            raise InputError(
                f"{self._name}a prompt of {length} tokens and {field} {self.max_new_tokens}, {total} in all, exceed "
                f"the model's context of {context}: lower {field} to {max(context - length, 0)}, or leave out long "
                f"prompts of training with data.max_prompt_tokens {max(context - self.max_new_tokens, 0)}, or use a "
                f"model with a longer context. The longest is {candidate}"
            )


def check_lengths(recipe: Recipe, longest: int, codec: HuggingFaceCodec, limits: Limits) -> None:
    """Check that the trainer can hold the longest trajectory that is known before the start.

    The prompts and rollout.max_new_tokens, which bounds what the policy samples in all turns together, are known before
    the start. Text that an env adds is not; a session leaves out what does not fit, and the episode ends as truncated.

    Args:
        longest: prompt with a full answer, tokens.

    Raises:
        InputError: a micro-batch cannot hold it, or a stop cannot occur.
    """
    sampled = recipe.rollout.max_new_tokens
    lacking = [token for token in recipe.rollout.stop_token_ids if token >= limits.vocab_size]
    if lacking:
        raise InputError(
            f"rollout.stop_token_ids {lacking[0]}: the model has ids 0 to {limits.vocab_size - 1}; give ids of its "
            "tokenizer"
        )
    for string in recipe.rollout.stop:
        written = codec.decode(codec.encode(string))
        if string.strip() not in written:
            raise InputError(
                f"rollout.stop {string!r}: its tokens decode to {written!r}, so no text contains it, as for special "
                "tokens; give their ids in rollout.stop_token_ids instead"
            )
    train = recipe.train
    held = train.packing_count if train.packing == "fixed" else 1  # trajectories of a micro-batch
    if held * longest > train.capacity:
        fewer = "" if held == 1 else f", or lower train.packing_count from {held}"
        raise InputError(
            f"train.capacity {train.capacity}: a micro-batch must hold {held} of the longest trajectory, a prompt of "
            f"{longest - sampled} tokens and rollout.max_new_tokens {sampled}, {longest} in all: raise train.capacity "
            f"to {held * longest} or more, or lower rollout.max_new_tokens{fewer}"
        )
