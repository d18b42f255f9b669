"""Do what `arl eval` does: check everything, evaluate what is not on disk yet, and return the scores.

Request ─► prepare: suites, protocols, output directories ─► refused, or finished already
              └─► serve the model ─► suite after suite: samples ─► files ─► scores.json
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from arl import clock
from arl.config.eval_section import HELD_OUT
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe, make_recipe
from arl.config.section import usable_path
from arl.data.model_limits import model_limits
from arl.data.model_source import check_model_source
from arl.data.prompt_format import recipe_format
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.engine.backend import probe_backend
from arl.errors import InputError
from arl.metrics.console import ConsoleDisplay
from arl.models.model_files import local_copy
from arl.run.evaluation.eval_progress import EvalProgress
from arl.run.evaluation.evaluate import episodes_at_once, evaluate_suite, suite_episodes
from arl.run.evaluation.model_identity import ModelIdentity, follow_link, identify, short_name
from arl.run.evaluation.outputs import Record, Scored, SuiteOutput, file_name, locked
from arl.run.evaluation.protocol import Protocol, protocol_of
from arl.run.evaluation.sample import Sample, check_ks, score_samples
from arl.run.evaluation.sample_files import SampleFiles
from arl.run.evaluation.serving import Served, engine_resources, for_evaluation, serve_model
from arl.run.evaluation.suite import Suite, open_suite
from arl.run.evaluation.suite_prompts import check_prompts
from arl.run.rewards import evaluation_scorer, open_rewards
from arl.tasks.registry import task_class

ALL_PROBLEMS = 10**9  # more than any suite has, and the most that a recipe may name
NEW_TOKENS = 1024  # of an answer, where neither recipe, task nor flag says otherwise
FLUSH_SECONDS = 2.0  # samples of at most so long are lost with the process


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
    ks: Sequence[int]
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
        return _Runner(evaluation, display).run()


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
    request = replace(request, model=follow_link(request.model))
    recipe = for_evaluation(_base_recipe(request))
    note = check_model_source(request.model)
    settings = {"problems": ALL_PROBLEMS} | request.sampling
    suites = [open_suite(recipe, name, request.sampling if name == HELD_OUT else settings) for name in _names(request)]
    for suite in suites:
        check_ks(request.ks, suite.sampling.samples)
    installed = probe_backend(recipe)
    engine_resources(recipe)
    model = local_copy(request.model)
    identity = identify(request.model, model)
    codec = load_codec(str(model))
    limits = model_limits(str(model))
    assignments = []
    for suite in suites:
        suite_codec = codec.with_format(recipe_format(suite.recipe.data))
        check_prompts(suite, suite_codec, limits)
        protocol = protocol_of(suite, installed, suite_codec)
        directory = request.output or _default_directory(identity, protocol)
        output = SuiteOutput(directory, Record(protocol=protocol, model=identity))
        output.check()
        assignments.append(Assignment(suite, suite_codec, output))
    return Evaluation(recipe, model, limits.context, request.ks, assignments, note)


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


def _base_recipe(request: Request) -> Recipe:
    """Read the recipe, or make one for the model.

    Raises:
        RecipeError: it, or an override, is wrong.
    """
    names = _names(request)
    if request.recipe is not None:
        quoted = request.model.replace("'", "''")
        return load_recipe(request.recipe, [*request.overrides, "warmup=null", f"model.path='{quoted}'"])
    values = {
        "name": "eval",
        "model": {"path": request.model},
        "data": {"task": names[0]},
        "rollout": {"max_new_tokens": NEW_TOKENS},
    }
    return make_recipe(values, request.overrides, Path("arl eval"))


def _default_directory(model: ModelIdentity, protocol: Protocol) -> Path:
    """Return evals/<model>/<suite>-<fingerprint>."""
    return Path("evals") / short_name(model.name) / f"{file_name(protocol.suite)}-{protocol.fingerprint}"


class _Runner:
    """Evaluate what is not finished, and read what is."""

    def __init__(self, evaluation: Evaluation, display: ConsoleDisplay) -> None:
        self._evaluation = evaluation
        self._display = display
        self._scored: dict[str, Scored] = {}  # by suite

    def run(self) -> list[Scored]:
        """Return the scores of all suites."""
        evaluation = self._evaluation
        missing = [each for each in evaluation.assignments if not self._is_finished(each)]
        if missing:
            clock.run(lambda: self._evaluate(missing))
        return [self._scored[each.suite.name] for each in evaluation.assignments]

    def _is_finished(self, assignment: Assignment) -> bool:
        """Score a suite from its file, if all of its samples are there."""
        suite = assignment.suite
        files = assignment.output.begin()
        if not files.is_finished:
            return False
        files.remove_parts()
        samples = files.read(suite.keys(), suite.sampling.samples)
        score = score_samples(suite.name, samples, suite.sampling.samples, self._evaluation.ks, suite.recipe.seed)
        self._scored[suite.name] = assignment.output.finish(score)
        self._display.note(f"{suite.name}: finished already, in {assignment.output.directory}")
        return True

    async def _evaluate(self, assignments: Sequence[Assignment]) -> None:
        evaluation = self._evaluation
        async with serve_model(evaluation.recipe, evaluation.model, self._display.note) as served:
            for assignment in assignments:
                await self._evaluate_one(assignment, served)

    async def _evaluate_one(self, assignment: Assignment, served: Served) -> None:
        """Run one suite to its end; if it is interrupted, what was sampled is kept."""
        suite = assignment.suite
        evaluation = self._evaluation
        files = assignment.output.begin()
        done = files.read(suite.keys(), suite.sampling.samples)
        progress = EvalProgress(self._display, suite, done)
        note = self._display.note
        async with open_rewards(suite.recipe, served.logs, note) as rewards, _flushed(files, progress):
            scorer = evaluation_scorer(suite.recipe, rewards)

            def keep(sample: Sample) -> None:
                files.add(sample)
                progress.add(sample)

            score = await evaluate_suite(
                suite_episodes(suite, served.engine, assignment.codec, scorer, evaluation.context),
                suite,
                at_once=episodes_at_once(evaluation.recipe.engine),
                patience=evaluation.recipe.deadlines.step,
                keep=keep,
                done=done,
                ks=evaluation.ks,
                show_prompt=assignment.codec.prompts.text,
            )
        files.finish(suite.keys())
        self._scored[suite.name] = assignment.output.finish(score)


@contextlib.asynccontextmanager
async def _flushed(files: SampleFiles, progress: EvalProgress) -> AsyncIterator[None]:
    """Write samples to disk every few seconds and at the end, and show how far the evaluation is."""

    async def flush() -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            files.flush()
            progress.show()

    try:
        async with asyncio.TaskGroup() as tasks:
            flushing = tasks.create_task(flush(), name="samples to disk")
            yield
            flushing.cancel()
    finally:
        files.flush()
