"""Define the commands that score models. Heavy imports live inside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from arl.config.command_options import Model, Overrides


def eval_(
    model: Model,
    suite: Annotated[str, typer.Option(help="Tasks, as in gsm8k,math500; held_out: of the recipe.")] = "",
    samples: Annotated[int | None, typer.Option(min=1, help="Of each problem. [1]")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0: greedy. [1]")] = None,
    top_p: Annotated[float | None, typer.Option(help="[1]")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="[all]")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Of an answer.")] = None,
    problems: Annotated[int | None, typer.Option(min=1, help="The first so many. [all]")] = None,
    k: Annotated[str, typer.Option(help="Of pass@k, as in 1,8. [1,2,4,…]")] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Of sampling. [0]")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Takes engine, options and held_out from it.")] = None,
    set_: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="Directory. [evals/MODEL/SUITE-PROTOCOL]")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print scores.json instead of a table.")] = False,
) -> None:
    """Score a model on suites of problems; resumable."""
    import msgspec
    from rich.console import Console

    from arl.errors import InputError
    from arl.metrics.console import stderr_display
    from arl.run.evaluation.evaluate_model import Request, evaluate_model
    from arl.run.evaluation.results import print_scores

    try:
        ks = [int(part) for part in k.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--k {k}: give whole numbers, as in --k 1,8") from error
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
        suites=[name.strip() for name in suite.split(",") if name.strip()],
        recipe=recipe,
        overrides=[*(set_ or ()), *([] if seed is None else [f"seed={seed}"])],
        sampling={field: value for field, value in sampling.items() if value is not None},
        ks=ks,
        output=output,
    )
    with stderr_display() as display:
        scores = evaluate_model(request, display)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(scores)).decode())
    else:
        print_scores(scores, Console(highlight=False))


def scores(
    directories: Annotated[list[Path], typer.Argument(help="What `arl eval` wrote, or above.", metavar="DIR...")],
) -> None:
    """Compare scores of `arl eval`: a table for each protocol."""
    from rich.console import Console

    from arl.run.evaluation.results import find_scores, print_scores

    print_scores(find_scores(directories), Console(highlight=False))


COMMANDS: tuple[Callable[..., None], ...] = (eval_, scores)
