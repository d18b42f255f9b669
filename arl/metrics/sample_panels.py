"""Draw samples in a terminal."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from arl.errors import printable
from arl.metrics.sampled_episode import SampledEpisode

COLORS = {True: "green", False: "red", None: "yellow"}  # by is_right


def draw(sample: SampledEpisode) -> Panel:
    """Draw one sample as a panel: prompt, response and a line of facts. Its text is never taken for markup."""
    parts: list[RenderableType] = [
        Text(_shown(sample.prompt), style="dim"),
        Rule(style="dim"),
        Text(_shown(sample.response)),
        Rule(style="dim"),
        Text(_shown(facts(sample))),
    ]
    if sample.error:
        parts.append(Text(_shown(f"graded 0: {sample.error}"), style="red"))
    return Panel(
        Group(*parts),
        title=Text(_shown(title(sample))),
        title_align="left",
        border_style=COLORS[sample.is_right],
    )


def title(sample: SampledEpisode) -> str:
    """Name a sample: its step or fate, its problem, and its place in its group."""
    place = f"step {sample.step}" if sample.step is not None else sample.fate
    return f"{place} · problem {sample.problem_id} · group {sample.group_id}, sample {sample.sample}"


def facts(sample: SampledEpisode) -> str:
    """Write what is known of a sample, beside its text, in one line; a dash stands for what it has no value of."""
    named = ", ".join(f"{name} {value:g}" for name, value in sample.parts.items())
    reward = _number(sample.reward) + (f" ({named})" if named else "")
    oldest = sample.oldest_version
    versions = "–" if oldest is None else str(oldest)
    if sample.newest_version != oldest:
        versions += f"–{sample.newest_version}"
    age = "–" if sample.age is None else str(sample.age)
    advantage = "–" if sample.advantage is None else f"{sample.advantage:+.3f}"
    ended = "truncated" if sample.truncated else "ended by itself"
    return (
        f"answer {sample.answer or '–'}   reward {reward}   advantage {advantage}   "
        f"{sample.length} tokens, {ended}   versions {versions}, age {age}"
    )


def _shown(text: str) -> str:
    """Keep a model from writing to the terminal what it obeys."""
    return printable(text.expandtabs())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
