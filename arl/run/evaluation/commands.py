"""Define the commands that score models. Heavy imports live inside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from arl.config.command_options import Model, Overrides

Suites = Annotated[
    str,
    typer.Option(help="Tasks, as in gsm8k,math500; held_out: of the recipe."),
]
Samples = Annotated[
    int | None,
    typer.Option(min=1, help="Of each problem. [1]"),
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0.0, help="0: greedy. [1]"),
]
TopP = Annotated[
    float | None,
    typer.Option(help="[1]"),
]
TopK = Annotated[
    int | None,
    typer.Option(min=1, help="[all]"),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Of an answer."),
]
Problems = Annotated[
    int | None,
    typer.Option(min=1, help="The first so many. [all]"),
]
Ks = Annotated[
    str,
    typer.Option(help="Of pass@k, as in 1,8. [1,2,4,…]"),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Of sampling. [0]"),
]
OptionalRecipe = Annotated[
    Path | None,
    typer.Option(help="Takes engine, options and held_out from it."),
]
Output = Annotated[
    Path | None,
    typer.Option(help="Directory. [evals/MODEL/SUITE-PROTOCOL]"),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print scores.json instead of a table."),
]
Directories = Annotated[
    list[Path],
    typer.Argument(help="What `arl eval` wrote, or above.", metavar="DIR..."),
]


def eval_(
    model: Model,
    suite: Suites = "",
    samples: Samples = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    max_new_tokens: MaxNewTokens = None,
    problems: Problems = None,
    k: Ks = "",
    seed: Seed = None,
    recipe: OptionalRecipe = None,
    set_: Overrides = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Score a model on suites of problems; resumable."""
    import msgspec
    from rich.console import Console

    from arl.metrics.console import stderr_display
    from arl.run.evaluation.evaluate_model import Request, evaluate_model
    from arl.run.evaluation.score_table import print_scores

    suites = [name.strip() for name in suite.split(",")]
    overrides = list(set_ or ())
    if seed is not None:
        overrides.append(f"seed={seed}")
    sampling = {
        "samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "max_new_tokens": max_new_tokens,
        "problems": problems,
    }
    request = Request(
        model=model,
        suites=[name for name in suites if name],
        recipe=recipe,
        overrides=overrides,
        sampling={field: value for field, value in sampling.items() if value is not None},
        ks=_whole_numbers("--k", k),
        output=output,
    )
    with stderr_display() as display:
        scores = evaluate_model(request, display)
    if json:
        document = msgspec.json.encode(scores)
        typer.echo(msgspec.json.format(document).decode())
    else:
        print_scores(scores, Console(highlight=False))


def scores(directories: Directories) -> None:
    """Compare scores of `arl eval`: a table for each protocol."""
    from rich.console import Console

    from arl.run.evaluation.score_table import find_scores, print_scores

    found = find_scores(directories)
    print_scores(found, Console(highlight=False))


def _whole_numbers(option: str, text: str) -> list[int]:
    """Read `1,8,32`."""
    from arl.errors import InputError

    parts = text.split(",")
    try:
        return [int(part) for part in parts if part.strip()]
    except ValueError as error:
        raise InputError(f"{option} {text}: give whole numbers, as in {option} 1,8") from error


COMMANDS: tuple[Callable[..., None], ...] = (eval_, scores)
