"""Do what `arl eval` does: check everything, evaluate what is not on disk yet, and return the scores.

Request ─► prepare: suites, protocols, output directories ─► refused, or finished already
              └─► serve the model ─► suite after suite: samples ─► files ─► scores.json

A run starts `arl eval` as a process to measure one version while it trains: see arl.run.evaluation.during.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from arl import clock
from arl.config.cluster_section import Cluster
from arl.config.recipe import Recipe, Sync
from arl.config.recipe_file import load_recipe, make_recipe
from arl.config.scoring_sections import HELD_OUT
from arl.data.hub import check_model_source
from arl.data.model_limits import model_limits
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.engine.backend import probe_backend
from arl.errors import InputError
from arl.files import writing
from arl.launch.base import Resources, make_launcher
from arl.launch.placement import place
from arl.launch.run_secrets import run_secrets
from arl.metrics.console import ConsoleDisplay
from arl.metrics.run_files import RECIPE
from arl.models.model_files import local_copy
from arl.outputs import go_on_in
from arl.run.checkpoint import checkpoints_in, step_of
from arl.run.checks import check_sandboxes
from arl.run.engine_pool import open_engine_pool
from arl.run.evaluation.evaluate import evaluate_suite
from arl.run.evaluation.results import Scored, SuiteOutput, locked, model_sha256, protocol_of
from arl.run.evaluation.scoreboard import CHECKPOINTS
from arl.run.evaluation.scores import Sample, score_samples
from arl.run.evaluation.suite import Suite, load_suites
from arl.run.failures import explain_deaths, reported_failures
from arl.run.machines import resolve_auto
from arl.run.processes import EngineServers, rare_collections
from arl.run.rewards import evaluation_scorer, open_rewards
from arl.sandbox.current import configured
from arl.tasks.registry import task_class
from arl.types import StartingVersions

ALL_PROBLEMS = 10**9  # more than any suite has, and the most that a recipe may name
NEW_TOKENS = 1024  # of an answer, where neither recipe, task nor flag says otherwise
LINE_SECONDS = 10.0  # between two lines of progress, where no bar can be drawn


@dataclass(frozen=True, kw_only=True)
class Request:
    """Hold what the command line asks for."""

    model: str  # directory, or Hugging Face name
    suites: Sequence[str] = ()
    recipe: Path | None = None
    overrides: Sequence[str] = ()  # `a.b=x`, of the recipe
    sampling: dict[str, Any] = field(default_factory=dict)  # fields of the recipe's section `eval`
    output: Path | None = None  # None: evals/<model>/<suite>-<fingerprint>
    logs: Path | None = None  # directory of logs; None: a temporary one, which is kept after a failure


@dataclass(frozen=True)
class Assignment:
    """Hold one suite that is to be evaluated, with its files."""

    suite: Suite
    codec: HuggingFaceCodec  # makes its prompts
    output: SuiteOutput


@dataclass(frozen=True)
class Evaluation:
    """Hold everything that `prepare` has checked."""

    recipe: Recipe
    resources: list[Resources]  # of engines
    versions: StartingVersions  # of engines
    context: int  # tokens
    assignments: list[Assignment]


def evaluate_model(request: Request, display: ConsoleDisplay) -> list[Scored]:
    """Evaluate a model on suites, and return one score a suite, in their order.

    Raises:
        InputError: something is known to fail; nothing was started.
        RunError: the evaluation failed; what was sampled is kept, and the same command continues.
    """
    evaluation = prepare(request, display.note)
    assignments = evaluation.assignments
    with contextlib.ExitStack() as stack:
        for directory in {each.output.directory for each in assignments}:
            stack.enter_context(locked(directory))
        for each in assignments:
            with writing(each.output.directory):
                each.output.begin()
        if all(len(each.output.kept) == each.suite.num_episodes for each in assignments):
            for each in assignments:
                display.note(f"{each.suite.name}: finished already, in {each.output.directory}")
            seed = evaluation.recipe.seed
            return [each.output.finish(score_samples(each.suite.name, each.output.kept, seed)) for each in assignments]
        logs = request.logs or Path(tempfile.mkdtemp(prefix="arl-eval-"))
        go_on_in(logs)
        scores = clock.run(lambda: _evaluate(evaluation, logs, display))
        if request.logs is None:
            shutil.rmtree(logs)  # after a failure they are kept, because the message names them
    return scores


def prepare(request: Request, note: Callable[[str], None]) -> Evaluation:
    """Check everything that is known to fail. Nothing is started or written.

    Args:
        note: is called with a line about where the model is.

    Raises:
        InputError: unknown suites, impossible settings, a model that is nowhere, prompts that do not fit, an engine
            that is not installed, or a directory with another evaluation.
    """
    request = _of_a_run(request, note)
    names = list(dict.fromkeys(request.suites)) or ([HELD_OUT] if request.recipe else [])
    if not names:
        raise InputError("--suite: required without --recipe; `arl eval MODEL --suite gsm8k,math500`")
    if request.recipe is None and HELD_OUT in names:
        raise InputError(
            f"--suite {HELD_OUT}: these are the problems of a recipe; give --recipe, or a run's checkpoint"
        )
    recipe = _recipe(request, names[0])
    if cached := check_model_source(request.model):
        note(cached)
    suites: list[Suite] = []
    for name in names:
        all_of_it = {} if name == HELD_OUT else {"problems": ALL_PROBLEMS}
        opened = load_suites(recipe, name, all_of_it | request.sampling, "--suite")
        suites += [suite.shortened() for suite in opened]
    check_sandboxes([suite.recipe for suite in suites])
    installed = probe_backend(recipe)
    # All cores and devices are for the engines.
    shared = place(recipe.model_copy(update={"mode": "collocated"}), make_launcher(recipe, Path()).nodes)
    resources = [replace(each, takes_turns=False) for each in shared.engines]
    model = local_copy(request.model)
    identity = {"name": request.model, "sha256": model_sha256(model)}
    model_codec = load_codec(str(model), suites[0].recipe.data)
    limits = model_limits(str(model))
    assignments = []
    for suite in suites:
        codec = model_codec.with_format(suite.recipe.data)
        for line in suite.check_prompts(codec, limits):
            note(line)
        output = SuiteOutput(request.output, protocol_of(suite, installed, codec), identity)
        output.check()
        assignments.append(Assignment(suite, codec, output))
    version = step_of(model) if model in checkpoints_in(model.parent) else 0
    return Evaluation(recipe, resources, StartingVersions(str(model), version), limits.context, assignments)


def _of_a_run(request: Request, note: Callable[[str], None]) -> Request:
    """Complete a request for a run or one of its checkpoints: the newest one, and its recipe for held-out problems."""
    given = Path(request.model)
    saved = checkpoints_in(given / CHECKPOINTS)
    if saved:
        note(f"{given}: its newest checkpoint is {saved[-1]}")
        given = saved[-1]
    elif given.is_symlink():  # such as checkpoints/best, which leads elsewhere later
        given = given.resolve()
    if given != Path(request.model):
        request = replace(request, model=str(given))
    recipe = given.parent.parent / RECIPE
    is_of_run = given.parent.name == CHECKPOINTS and recipe.is_file()
    if request.recipe is not None or not is_of_run or (request.suites and HELD_OUT not in request.suites):
        return request
    return replace(request, recipe=recipe)


def _recipe(request: Request, suite: str) -> Recipe:
    """Read the recipe, or make one for the model and the first suite; leave out what only training needs.

    Secrets of an evaluation are temporary files of this machine, so engines on other nodes could not start.
    """
    if request.recipe is not None:
        quoted = request.model.replace("'", "''")
        recipe = load_recipe(request.recipe, [*request.overrides, "warmup=false", f"model.path='{quoted}'"])
    else:
        task_class(suite, "--suite")  # a name that is wrong was given there
        values = {
            "name": "eval",
            "model": {"path": request.model},
            "data": {"task": suite},
            "rollout": {"max_new_tokens": NEW_TOKENS},
        }
        recipe = make_recipe(values, request.overrides, Path("arl eval"))
    changes: dict[str, object] = {
        "cluster": Cluster(),
        "launcher": "local",
        "world": "wall",
        "mode": "disaggregated",  # engines never give up their memory
        "train": recipe.train.model_copy(update={"ranks": 1}),
        "rollout": recipe.rollout.model_copy(update={"lag": None}),
        "sync": Sync(),  # models are files
        "eval": recipe.eval.model_copy(update={"every": 0}),
    }
    return resolve_auto(recipe.model_copy(update=changes))


async def _evaluate(evaluation: Evaluation, logs: Path, display: ConsoleDisplay) -> list[Scored]:
    """Serve the model, and run one suite after the other; what was sampled is kept, whatever happens.

    Args:
        logs: directory of the logs of all processes; none of these is left afterwards.
    """
    recipe = evaluation.recipe
    scored = []
    async with reported_failures(), make_launcher(recipe, logs) as launcher, explain_deaths(launcher):
        with (
            run_secrets(logs, [node.address for node in launcher.nodes]) as trust,
            rare_collections(),
            configured(recipe.sandbox),
        ):
            servers = EngineServers(
                recipe=recipe.without_lora,  # checkpoints hold merged weights
                versions=evaluation.versions,
                resources=dict(enumerate(evaluation.resources)),
                launcher=launcher,
                trust=trust,
            )
            async with open_engine_pool(servers, await servers.start_all(), display.note) as pool:
                for each in evaluation.assignments:
                    suite = each.suite
                    with each.output.samples_file.open("ab", buffering=0) as file:
                        async with open_rewards(suite.recipe, logs, display.note) as rewards:
                            score = await evaluate_suite(
                                suite,
                                pool.router,
                                each.codec,
                                evaluation_scorer(suite.recipe, rewards),
                                evaluation.context,
                                keep=_keeper(file, display, each),
                                done=each.output.kept,
                                show_prompt=each.codec.prompts.text,
                            )
                    scored.append(each.output.finish(score))
    return scored


def _keeper(file: FileIO, display: ConsoleDisplay, each: Assignment) -> Callable[[Sample], None]:
    """Return what writes a sample, and shows how far the evaluation of a suite is."""
    suite = each.suite
    total = suite.num_episodes
    count = len(each.output.kept)
    correct = sum(sample.correct for sample in each.output.kept)
    next_line = monotonic()
    display.begin(suite.name, total)
    if count:
        display.note(f"{suite.name}: {count:,} of {total:,} episodes are kept from before")

    def keep(sample: Sample) -> None:
        nonlocal count, correct, next_line
        file.write(msgspec.json.encode(sample) + b"\n")  # at once: a killed evaluation goes on behind it
        count += 1
        correct += sample.correct
        if display.is_live or monotonic() >= next_line:
            next_line = monotonic() + LINE_SECONDS
            detail = f"{suite.name}: {count:,} of {total:,} episodes, {correct / count:.3f} right"
            display.advance(completed=count, detail=detail)

    return keep
