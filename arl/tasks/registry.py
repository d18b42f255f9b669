"""Open the task that a recipe names. A new built-in task is one module, and one line in arl.config.data_section.TASKS.

recipe.data ─► TASKS or module:attribute ─► class, compared with the seam ─► Options ─► Task
"""

from arl.config.data_section import TASKS, Data
from arl.config.imports import import_seam
from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.tasks.base import Task

SINGLE_TURN = "arl.rollout.env:single_turn"
TOOLS = "arl.rollout.tools:use_tools"
AGENT = "arl.endpoint.agent_program:run_agent"
EXAMPLE = "arl/tasks/running_checksum.py"


def task_class(name: str, field: str = "data.task") -> type[Task]:
    """Import the class of the task, and check that it is complete.

    Args:
        field: where it was named, for messages.

    Raises:
        RecipeError: nothing has this name, or what has it lacks a part of arl.tasks.base.Task.
    """
    found = import_seam(name, field, Task, EXAMPLE, TASKS)
    if not isinstance(found, type):
        raise RecipeError(f"{field} {name!r}: is an object, and must be the class of a task; see {EXAMPLE}")
    return found


def open_task(data: Data) -> Task:
    """Make the task with the recipe's options.

    Raises:
        RecipeError: as `task_class`.
    """
    assert data.task is not None
    kind = task_class(data.task)
    return kind(kind.Options.model_validate(data.options))


def task_part(name: str, part: str) -> str:
    """Return `module:attribute` of a static part of the task, such as its reward."""
    return f"{TASKS.get(name, name)}.{part}"


def env_name(recipe: Recipe) -> str:
    """Return `module:attribute` of the env that drives the recipe's episodes: that of its agent, its own, that of its
    tools, the task's, or a single turn."""
    if recipe.rollout.agent is not None:
        return AGENT
    if recipe.rollout.env is not None:
        return recipe.rollout.env
    if recipe.rollout.tools:
        return TOOLS
    if recipe.data.task is not None and task_class(recipe.data.task).env is not None:
        return task_part(recipe.data.task, "env")
    return SINGLE_TURN
