"""Write what a reader of a plan should change or know, as its notes. Torch-free."""

from collections.abc import Iterator

from arl.config.recipe import Recipe
from arl.run.memory.memory_text import tight_device
from arl.run.preflight import Plan


def plan_notes(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Yield what preflight found, then what the recipe's own settings cost."""
    yield from plan.notes
    yield from _mixed_dtypes(recipe)
    if not plan.placement.on_gpus:
        return
    yield from _wide_dtypes(recipe)
    if plan.memory is not None:
        yield from tight_device(plan.memory, recipe)


def _mixed_dtypes(recipe: Recipe) -> Iterator[str]:
    """Yield a note if one side rounds to bfloat16 what the other one has in float16."""
    sides = {"train.dtype": recipe.train.dtype, "engine.dtype": recipe.engine.dtype}
    if set(sides.values()) != {"float16", "bfloat16"}:
        return
    fields = {dtype: field for field, dtype in sides.items()}
    coarse = fields["bfloat16"]
    yield (
        f"{fields['float16']} float16 and {coarse} bfloat16: one side rounds eight times coarser, so nothing is gained "
        f"by float16; set {coarse} to float16 as well"
    )


def _wide_dtypes(recipe: Recipe) -> Iterator[str]:
    for field, dtype in (("train.dtype", recipe.train.dtype), ("engine.dtype", recipe.engine.dtype)):
        if dtype == "float32":
            yield (
                f"{field} float32 on GPUs: without tensor cores, and with twice the memory of bfloat16; `auto` is "
                "bfloat16 there"
            )
