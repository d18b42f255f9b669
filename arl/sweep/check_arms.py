"""Check every arm of a sweep before anything starts, and report all that is wrong at once.

request ─► arms ─► recipe of each ─► preflight of each ─► CheckedArm
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from arl.config.leaves import leaves
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.errors import InputError
from arl.run.preflight import preflight
from arl.run.submit import is_submitted
from arl.sweep.axes import write_override
from arl.sweep.combinations import SweepArm, combine
from arl.sweep.request import SweepRequest

LISTED = 4  # arms that a message names


class CheckedArm(Struct, frozen=True):
    """Hold an arm whose recipe is known to be able to start."""

    arm: SweepArm
    recipe: Recipe

    @property
    def name(self) -> str:
        """Return the name of its directory."""
        return self.arm.name


class CheckedSweep(Struct, frozen=True):
    """Hold the recipe of a sweep without any arm's settings, its arms, and the seeds of each."""

    base: Recipe
    arms: list[CheckedArm]
    seeds: list[int]


def check_arms(request: SweepRequest, note: Callable[[str], None]) -> CheckedSweep:
    """Make the recipe of each arm, and check that each can start. Nothing is started or written.

    Raises:
        InputError: the recipe is wrong, or arms cannot run; with arm, value, rule and remedy of all of them.
    """
    base = _make_base(request)
    arms = combine(
        request.axes,
        request.named,
        request.exclude,
        base=dict(leaves(base.model_dump(mode="json"))),
    )
    note(f"checking {len(arms)} arms")
    checked = []
    complaints: dict[str, list[str]] = {}
    for arm in arms:
        try:
            recipe = _make_recipe(request, arm)
            _check_launcher(recipe)
            preflight(recipe)
            checked.append(CheckedArm(arm, recipe))
        except InputError as error:
            for complaint in str(error).splitlines():
                complaints.setdefault(_without_value(complaint, arm), []).append(arm.name)
    if complaints:
        raise InputError(_explain(complaints, num_wrong=len(arms) - len(checked), num_arms=len(arms)))
    _refuse_equal_arms(checked)
    seeds = [base.seed] if request.seeds is None else request.seeds
    return CheckedSweep(base, checked, seeds)


def _make_base(request: SweepRequest) -> Recipe:
    """Make the recipe without any arm's settings.

    Raises:
        InputError: it is not valid.
    """
    try:
        return load_recipe(request.recipe, request.overrides)
    except InputError as error:
        raise InputError(
            f"{error}\n{request.recipe}: must be a valid recipe also without the settings of an arm; correct it there, "
            "or by --set, which every arm begins with"
        ) from error


def _check_launcher(recipe: Recipe) -> None:
    """Refuse launchers whose nodes the runs of a sweep cannot get.

    Raises:
        InputError: Slurm outside of an allocation; or Ray, whose nodes this process would hold itself.
    """
    if is_submitted(recipe):
        raise InputError(
            "launcher slurm: a sweep submits no jobs, its runs take turns in an allocation; make one with salloc or "
            "sbatch, and start the sweep on its first node (docs/sweeps.md)"
        )
    if recipe.launcher == "ray":
        raise InputError(
            "launcher ray: a sweep would keep the nodes of the cluster from its own runs; start them by `arl train`, "
            "one after the other (docs/sweeps.md)"
        )


def _without_value(complaint: str, arm: SweepArm) -> str:
    """Leave out the value of an unknown field, so that the arms of an axis make one complaint and not one each."""
    for field, value in arm.given.items():
        place = f"--set {write_override(field, value)}: "
        if complaint.startswith(f"{place}{field}: unknown key"):
            return complaint.removeprefix(place)
    return complaint


def _make_recipe(request: SweepRequest, arm: SweepArm) -> Recipe:
    settings = [write_override(field, value) for field, value in arm.given.items()]
    recipe = load_recipe(request.recipe, [*request.overrides, *settings])
    labels = {  # by which a tracker groups the runs, beside the recipe's own
        "wandb_group": recipe.output.wandb_group or request.name,
        "wandb_tags": (*recipe.output.wandb_tags, *arm.name.split(",")),
    }
    output = recipe.output.model_copy(update=labels)
    return recipe.model_copy(update={"output": output})


def _refuse_equal_arms(arms: Sequence[CheckedArm]) -> None:
    """Refuse two arms that compute the same, which a report could not tell apart.

    Raises:
        InputError: there are two, as of values 1e-4 and 1.0e-4.
    """
    computed: list[dict[str, Any]] = []
    for arm in arms:
        settings = arm.recipe.model_dump(mode="json", exclude={"output"})
        if settings in computed:
            twin = arms[computed.index(settings)]
            raise InputError(f"arms {twin.name} and {arm.name}: their recipes are equal; leave one of the two out")
        computed.append(settings)


def _explain(complaints: Mapping[str, list[str]], num_wrong: int, num_arms: int) -> str:
    """Write each complaint once, with the arms that have it."""
    lines = []
    for complaint, names in complaints.items():
        more = "" if len(names) <= LISTED else "; …"
        arms = f"arm {names[0]}" if len(names) == 1 else f"{len(names)} arms ({'; '.join(names[:LISTED])}{more})"
        lines.append(f"{arms}: {complaint}")
    lines.append(
        f"{num_wrong} of {num_arms} arms cannot run, and nothing was started. Change the values, or leave these "
        "combinations out by `exclude:` of a sweep file (docs/sweeps.md)"
    )
    return "\n".join(lines)
