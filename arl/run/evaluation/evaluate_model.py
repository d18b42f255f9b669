"""Do what `arl eval` does: check everything, evaluate what is not on disk yet, and return the scores.

Request ─► prepare: suites, protocols, output directories ─► refused, or finished already
              └─► serve the model ─► suite after suite: samples ─► files ─► scores.json
"""

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from arl import clock
from arl.config.cluster_section import Cluster
from arl.config.recipe import Recipe, Sync
from arl.config.recipe_file import load_recipe, make_recipe
from arl.config.scoring_sections import HELD_OUT
from arl.config.section import usable_path
from arl.data.hub import check_model_source
from arl.data.model_limits import model_limits
from arl.data.tokenizer import HuggingFaceCodec, load_codec, recipe_format
from arl.engine.backend import probe_backend
from arl.engine.base import Engine
from arl.errors import InputError
from arl.launch.base import Resources, make_launcher
from arl.launch.placement import place
from arl.launch.run_secrets import run_secrets
from arl.metrics.console import ConsoleDisplay
from arl.models.model_files import local_copy
from arl.run.engine_pool import open_engine_pool
from arl.run.evaluation.evaluate import evaluate_suite, suite_episodes
from arl.run.evaluation.results import (
    Scored,
    SuiteOutput,
    append_sample,
    default_directory,
    identify,
    locked,
    protocol_of,
)
from arl.run.evaluation.scores import Sample, check_ks, score_samples
from arl.run.evaluation.suite import Suite, load_suite
from arl.run.failures import explain_deaths, reported_failures
from arl.run.machines import resolve_auto
from arl.run.processes import EngineServers, rare_collections
from arl.run.rewards import evaluation_scorer, open_rewards
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
    ks: Sequence[int] = ()  # of pass@k; none: powers of two
    output: Path | None = None  # None: evals/<model>/<suite>-<fingerprint>
    defaults: dict[str, Any] = field(default_factory=lambda: {"problems": ALL_PROBLEMS})  # of `eval`, but for held_out
    logs: Path | None = None  # directory of logs; None: a temporary one, which is kept after a failure
    version: int = 0  # of the policy that the model is
    adapt: Callable[[Recipe], Recipe] = lambda recipe: recipe  # changes the recipe once it is read


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
    model: Path
    context: int  # tokens
    request: Request
    assignments: list[Assignment]
    note: str | None = None  # about where the model is


def evaluate_model(request: Request, display: ConsoleDisplay) -> list[Scored]:
    """Evaluate a model on suites, and return one score a suite, in their order.

    Raises:
        InputError: something is known to fail; nothing was started.
        RunError: the evaluation failed; what was sampled is kept, and the same command continues.
    """
    evaluation = prepare(request)
    if evaluation.note is not None:
        display.note(evaluation.note)
    with contextlib.ExitStack() as stack:
        for directory in dict.fromkeys(each.output.directory for each in evaluation.assignments):
            stack.enter_context(locked(directory))
        return _evaluate_missing(evaluation, display)


def prepare(request: Request) -> Evaluation:
    """Check everything that is known to fail. Nothing is started or written.

    Raises:
        InputError: unknown suites, impossible settings, a model that is nowhere, prompts that do not fit, an engine
            that is not installed, or a directory with another evaluation.
    """
    try:
        usable_path(request.model)
    except ValueError as error:
        raise InputError(f"MODEL {request.model}: {error}") from error
    given = Path(request.model)
    saved = {int(path.name[5:]): path for path in given.glob("checkpoints/step_*") if path.name[5:].isdecimal()}
    if saved:
        raise InputError(f"MODEL {given}: is a run, whose newest checkpoint is {saved[max(saved)]}; give that")
    if given.is_symlink():  # such as checkpoints/best, which leads elsewhere later
        request = replace(request, model=str(given.resolve()))
    names = _names(request)
    recipe = for_evaluation(request.adapt(_base_recipe(request, names)))
    note = check_model_source(request.model)
    settings = request.defaults | request.sampling
    suites = []
    for name in names:
        suite = load_suite(recipe, name, request.sampling if name == HELD_OUT else settings).shortened()
        check_ks(request.ks, suite.sampling.samples)
        suites.append(suite)
    installed = probe_backend(recipe)
    _engine_resources(recipe)
    model = local_copy(request.model)
    identity = identify(request.model, model)
    codec = load_codec(str(model))
    limits = model_limits(str(model))
    assignments = []
    for suite in suites:
        suite.check_prompts(codec, limits)
        suite_codec = codec.with_format(recipe_format(suite.recipe.data))
        protocol = protocol_of(suite, installed, suite_codec)
        output = SuiteOutput(request.output or default_directory(identity, protocol), protocol, identity)
        output.check()
        assignments.append(Assignment(suite, suite_codec, output))
    return Evaluation(recipe, model, limits.context, request, assignments, note)


def _names(request: Request) -> list[str]:
    """Return the suites to evaluate on, each once.

    Raises:
        InputError: there is none, or held_out without a recipe.
        RecipeError: one is unknown; with the nearest name.
    """
    names = list(dict.fromkeys(request.suites)) or ([HELD_OUT] if request.recipe else [])
    if not names:
        raise InputError("--suite: required without --recipe; `arl eval MODEL --suite gsm8k,math500`")
    for name in names:
        if name != HELD_OUT:
            task_class(name, "--suite")
        elif request.recipe is None:
            raise InputError(f"--suite {HELD_OUT}: these are the problems of a recipe; give --recipe")
    return names


def _base_recipe(request: Request, names: Sequence[str]) -> Recipe:
    """Read the recipe, or make one for the model.

    Raises:
        RecipeError: it, or an override, is wrong.
    """
    if request.recipe is not None:
        quoted = request.model.replace("'", "''")
        return load_recipe(request.recipe, [*request.overrides, "warmup=false", f"model.path='{quoted}'"])
    values = {
        "name": "eval",
        "model": {"path": request.model},
        "data": {"task": names[0]},
        "rollout": {"max_new_tokens": NEW_TOKENS},
    }
    return make_recipe(values, request.overrides, Path("arl eval"))


def for_evaluation(recipe: Recipe) -> Recipe:
    """Return `recipe` as this machine runs it, without what only training needs: engines are all that runs.

    Secrets of an evaluation are temporary files of this machine, so engines on other nodes could not start.
    """
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


def _engine_resources(recipe: Recipe) -> list[Resources]:
    """Give all cores and devices to the engines.

    Raises:
        RecipeError: there are GPUs, but fewer than the engines need.
    """
    launcher = make_launcher(recipe, Path())
    shared = place(recipe.model_copy(update={"mode": "collocated"}), launcher.nodes)
    return [replace(resources, takes_turns=False) for resources in shared.engines]


@contextlib.asynccontextmanager
async def _serve(evaluation: Evaluation, logs: Path, note: Callable[[str], None]) -> AsyncIterator[Engine]:
    """Start the engines with the model.

    Args:
        logs: directory of their logs.
        note: is called with one line for each engine that is replaced.

    Raises:
        InputError, RunError: see arl.run.train.train; no process is left.
    """
    recipe = evaluation.recipe
    async with reported_failures(), make_launcher(recipe, logs) as launcher, explain_deaths(launcher):
        with run_secrets(logs, [node.address for node in launcher.nodes]) as trust, rare_collections():
            servers = EngineServers(
                recipe=recipe,
                versions=StartingVersions(str(evaluation.model), evaluation.request.version),
                resources=_engine_resources(recipe),
                launcher=launcher,
                trust=trust,
            )
            async with open_engine_pool(servers, await servers.start_all(), note) as pool:
                yield pool.router


def _evaluate_missing(evaluation: Evaluation, display: ConsoleDisplay) -> list[Scored]:
    """Evaluate what is not finished, and score what is from its file."""
    scored: dict[str, Scored] = {}
    missing: list[tuple[Assignment, list[Sample]]] = []
    for each in evaluation.assignments:
        suite = each.suite
        done = each.output.begin()
        if len(done) < suite.num_episodes:
            missing.append((each, done))
            continue
        display.note(f"{suite.name}: finished already, in {each.output.directory}")
        score = score_samples(suite.name, done, suite.sampling.samples, evaluation.request.ks, suite.recipe.seed)
        scored[suite.name] = each.output.finish(score)

    async def evaluate() -> None:
        async with _serve(evaluation, logs, display.note) as engine:
            for each, done in missing:
                scored[each.suite.name] = await _evaluate_one(evaluation, each, done, engine, logs, display)

    if missing:
        given = evaluation.request.logs
        logs = given or Path(tempfile.mkdtemp(prefix="arl-eval-"))
        logs.mkdir(exist_ok=True)
        clock.run(evaluate)
        if given is None:
            shutil.rmtree(logs)  # after a failure they are kept, because the message names them
    return [scored[each.suite.name] for each in evaluation.assignments]


async def _evaluate_one(
    evaluation: Evaluation,
    assignment: Assignment,
    done: Sequence[Sample],
    engine: Engine,
    logs: Path,
    display: ConsoleDisplay,
) -> Scored:
    """Run one suite to its end; what was sampled is kept, whatever happens."""
    suite = assignment.suite
    show_progress = _progress(display, suite, done)
    with assignment.output.samples_file.open("ab") as file:

        def keep(sample: Sample) -> None:
            append_sample(file, sample)
            show_progress(sample)

        async with open_rewards(suite.recipe, logs, display.note) as rewards:
            scorer = evaluation_scorer(suite.recipe, rewards)
            score = await evaluate_suite(
                suite_episodes(suite, engine, assignment.codec, scorer, evaluation.context),
                suite,
                timeout=evaluation.recipe.deadlines.step,
                keep=keep,
                done=done,
                ks=evaluation.request.ks,
                show_prompt=assignment.codec.prompts.text,
            )
    return assignment.output.finish(score)


def _progress(display: ConsoleDisplay, suite: Suite, done: Sequence[Sample]) -> Callable[[Sample], None]:
    """Return what shows how far the evaluation of a suite is: episodes, score so far, tokens a second."""
    total = suite.num_episodes
    count = len(done)
    correct = sum(sample.correct for sample in done)
    tokens = 0  # sampled here
    began = next_line = monotonic()
    display.begin(suite.name, total)
    if done:
        display.note(f"{suite.name}: {count:,} of {total:,} episodes are kept from before")

    def add(sample: Sample) -> None:
        """Count a sample, and update the bar; without a terminal, print a line every few seconds."""
        nonlocal count, correct, tokens, next_line
        count += 1
        correct += sample.correct
        tokens += sample.num_tokens
        now = monotonic()
        if not display.is_live and now < next_line:
            return
        next_line = now + LINE_SECONDS
        rate = tokens / max(now - began, 1e-9)
        detail = f"{suite.name}: {count:,} of {total:,} episodes, {correct / count:.3f} right, {rate:,.0f} tok/s"
        display.advance(completed=count, detail=detail)

    return add
