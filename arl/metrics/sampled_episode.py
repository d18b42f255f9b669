"""Show single episodes to a person: what was asked and said, and what it earned.

Batch ─► choose_samples ─► SampledEpisode ─► trackers          trajectories/*.parquet ─► SampledEpisode ─► arl samples
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text
from tokenizers import Tokenizer

from arl.data.text_codec import TextCodec
from arl.errors import printable
from arl.metrics.batch import is_right
from arl.metrics.trajectory_files import episode_table, group_rows, split_tokens
from arl.types import NOT_SAMPLED, TRAINED, Batch, StepResult

TOKENIZER = "tokenizer.json"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what part of a character decodes to
BYTES_OF_A_CHARACTER = 4  # at most, in UTF-8; a token holds one byte or more
COLORS = {True: "green", False: "red", None: "yellow"}  # by is_right


class SampledEpisode(Struct, frozen=True, kw_only=True):
    """Hold one episode as text. Its `step` is that of metrics.jsonl: training steps finished with the one that used it.

    >>> sample = SampledEpisode(fate="trained", step=5, group_id=7, sample=0, problem_id="4c81b2de2c0b",
    ...     prompt="2 + 2 =", response="5", answer="4", reward=-5.0, unshaped_reward=0.0,
    ...     parts={"correct": 0.0, "format": 1.0}, advantage=-0.35, length=2,
    ...     oldest_version=3, newest_version=4, truncated=False)
    >>> sample.age, sample.is_right
    (1, False)
    """

    fate: str  # trained, or why it was lost
    step: int | None  # v + 1; None: it was lost
    group_id: int
    sample: int  # its place in the group
    problem_id: str
    prompt: str  # what the model saw, with special tokens
    response: str  # without the tokens of turns: what the reward function saw
    answer: str
    reward: float | None  # as it was trained, shaped; None: not scored
    unshaped_reward: float | None
    parts: Mapping[str, float]  # of the reward
    error: str = ""  # why it was graded 0
    advantage: float | None = None  # None: unknown, or one for each token
    length: int  # tokens that the policy sampled
    oldest_version: int | None  # that sampled one of its tokens; None: it has none
    newest_version: int | None
    truncated: bool
    spans: Sequence[tuple[str, bool]] = ()  # its response with special tokens, and whether each part is in the loss

    @property
    def age(self) -> int | None:
        """Return the age of its oldest token when it was trained, versions; None: lost, or without a token."""
        if self.step is None or self.oldest_version is None:
            return None
        return self.step - 1 - self.oldest_version

    @property
    def is_right(self) -> bool | None:
        """Return whether it counts as right (arl.metrics.names); None: not scored."""
        return None if self.unshaped_reward is None else is_right(self.unshaped_reward, self.parts)


def choose_samples(batch: Batch, result: StepResult, count: int, codec: TextCodec) -> list[SampledEpisode]:
    """Choose `count` episodes of a step, spread over its groups and over the places in a group."""
    tokens = split_tokens(batch, result.tokens)
    rows = []
    count = min(count, sum(len(group.episodes) for group in batch.groups))
    for i in range(count):
        place = i * len(batch.groups) // count
        rows_of_group = group_rows(batch.groups[place], TRAINED, batch.version, tokens[place])
        of_group = [row for row in rows_of_group if row.trajectory.branch == 0]
        rows.append(of_group[i % len(of_group)])
    return [sample_of(row) for row in episode_table(rows, codec).to_pylist()]


def load_tokenizer(run: Path, model: str | None = None) -> Tokenizer | None:
    """Load the tokenizer of a run's checkpoint, or of the model that its recipe names; None: there is none."""
    found = sorted((run / "checkpoints").glob(f"*/{TOKENIZER}"))
    if model is not None:
        found = found or list(Path(model).glob(TOKENIZER))
    return Tokenizer.from_file(str(found[-1])) if found else None


def token_texts(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Return what each token adds to the text. A character of several tokens is added by the last of them.

    Each token is decoded together with those before it, because some tokenizers write a space only within a text.
    """

    def decode(start: int, end: int) -> str:
        text: str = tokenizer.decode(token_ids[start:end], skip_special_tokens=False)
        return text

    texts = []
    before = begin = 0  # tokens from `begin` on wait for the end of their character; those from `before` on are context
    for end in range(1, len(token_ids) + 1):
        text = decode(before, end)
        may_go_on = end - begin < BYTES_OF_A_CHARACTER and end < len(token_ids)
        if text.endswith(REPLACEMENT) and may_go_on:
            texts.append("")
            continue
        texts.append(text[len(decode(before, begin)) :])
        before = begin
        begin = end
    return texts


def loss_spans(row: Mapping[str, Any], tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """Return the text of a row's response in parts, each with whether its tokens are in the loss."""
    start = row["prompt_length"]
    texts = token_texts(tokenizer, row["token_ids"][start:])
    said = zip(texts, row["loss_mask"][start:], strict=True)
    parts = itertools.groupby(said, key=lambda token: token[1])
    return [("".join(text for text, _ in part), is_kept) for is_kept, part in parts]


def sample_of(row: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> SampledEpisode:
    """Make a sample of the row of a trajectory file; with the tokenizer, it knows what of it was trained."""
    versions = [version for version in row["policy_versions"] if version != NOT_SAMPLED]
    computed = {
        "step": None if row["trained_at"] is None else row["trained_at"] + 1,
        "parts": dict(row["reward_parts"]),
        "error": row["reward_error"],
        "length": len(versions),
        "oldest_version": min(versions, default=None),
        "newest_version": max(versions, default=None),
        "spans": loss_spans(row, tokenizer) if tokenizer is not None else (),
    }
    return msgspec.convert({**row, **computed}, SampledEpisode)


def draw(sample: SampledEpisode) -> Panel:
    """Draw one sample as a panel: prompt, response and a line of facts. Its text is never taken for markup.

    What is not in the loss is dim: the prompt, text of tools, episodes that are masked.
    """
    has_dim_parts = not all(is_trained for _, is_trained in sample.spans)
    spans = sample.spans if has_dim_parts else [(sample.response, True)]
    parts: list[RenderableType] = [
        _text(sample.prompt, "dim"),
        Rule(style="dim"),
        Text.assemble(*(_text(text, "" if is_trained else "dim") for text, is_trained in spans)),
        Rule(style="dim"),
        _text(facts(sample)),
    ]
    if sample.error:
        parts.append(_text(f"graded 0: {sample.error}", "red"))
    return Panel(Group(*parts), title=_text(title(sample)), title_align="left", border_style=COLORS[sample.is_right])


def title(sample: SampledEpisode) -> str:
    """Name a sample: its step or fate, its problem, and its place in its group."""
    place = f"step {sample.step}" if sample.step is not None else sample.fate
    return f"{place} · problem {sample.problem_id} · group {sample.group_id}, sample {sample.sample}"


def facts(sample: SampledEpisode) -> str:
    """Write what is known of a sample, beside its text, in one line; a dash stands for what it has no value of."""
    named = ", ".join(f"{name} {value:g}" for name, value in sample.parts.items())
    reward = "–" if sample.reward is None else f"{sample.reward:g}"
    versions = "–" if sample.oldest_version is None else str(sample.oldest_version)
    if sample.newest_version != sample.oldest_version:
        versions += f"–{sample.newest_version}"
    age = "–" if sample.age is None else str(sample.age)
    advantage = "–" if sample.advantage is None else f"{sample.advantage:+.3f}"
    return (
        f"answer {sample.answer or '–'}   reward {reward}{f' ({named})' if named else ''}   advantage {advantage}   "
        f"{sample.length} tokens, {'truncated' if sample.truncated else 'ended by itself'}   "
        f"versions {versions}, age {age}"
    )


def _text(text: str, style: str = "") -> Text:
    """Keep a model from writing to the terminal what it obeys."""
    return Text(printable(text.expandtabs()), style=style)
