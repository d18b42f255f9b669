"""Enforce the rules of the house: who imports what, sizes, names, and which room knows what."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Rooms from the ground up; a module imports only from its own room's list, itself, and everything below.
LAYERS: list[set[str]] = [
    {"types"},
    {"errors", "clock", "files", "outputs"},
    {"config"},
    {"launch", "tasks", "models", "data", "metrics", "reward", "sandbox"},
    {"sync"},
    {"engine"},
    {"rollout", "endpoint", "train"},
    {"run", "bench"},
    {"sweep"},
    {"report", "watch"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
TORCH_FREE = [
    "arl.rollout.controller",
    "arl.rollout.exact_lag",
    "arl.reward.pool",
    "arl.reward.math.grader",
    "arl.engine.http.engine_client",
    "arl.engine.router",
    "arl.engine.supervisor",
    "arl.train.trainer_client",
    "arl.sync.weight_loader",
    "arl.sync.choose",
    "arl.sync.buckets",
    "arl.run.world",
    "arl.run.wall",
    "arl.bench.null",
    "arl.run.train",  # until it counts GPUs and loads a tokenizer
]

# Programs, and what they load, that run where arl is not: in SGLang's interpreter, in front of a process.
STANDALONE = [
    "arl/engine/sglang/cuda_toolkit.py",
    "arl/engine/sglang/server_plugin.py",
    "arl/engine/sglang/server_process.py",
    "arl/launch/child.py",
    "arl/launch/network.py",
    "arl/reward/code/rpc.py",
    "arl/sandbox/fork_server.py",
    "arl/sandbox/remote_bootstrap.py",
]
IMPORTS = (ast.Import, ast.ImportFrom)


def sources() -> list[Path]:
    return [*(p for p in (ROOT / "arl").rglob("*.py") if not p.is_symlink()), *(ROOT / "kernels").glob("*.py")]


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "arl" else parts[0]


def modules_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the module of each import among these nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "arl":
            yield from (f"arl.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def imported_rooms(path: Path) -> set[str]:
    modules = modules_of(ast.walk(ast.parse(path.read_text())))
    return {module.split(".")[1] for module in modules if module.startswith("arl.")}


def test_imports_go_one_way() -> None:
    for path in sources():
        room = room_of(path)
        others = imported_rooms(path) - {room}
        if room == "kernels":
            assert not others, "kernels import nothing of arl"
        elif room != "__init__":
            assert "kernels" not in others or room in {"train", "models", "bench"}, f"{path} must not import kernels"
            above = [other for other in others - {"kernels"} if LEVEL[other] > LEVEL[room]]
            assert not above, f"{path} must not import {above}"


TORCH_PROBE = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if "torch" in sys.modules:
        sys.exit(f"{module} imports torch")
"""


def test_the_controller_side_never_imports_torch() -> None:
    command = [sys.executable, "-c", TORCH_PROBE, *TORCH_FREE]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_programs_that_run_where_arl_is_not_import_the_standard_library_alone() -> None:
    """At the top of the file; SGLang's interpreter and guards run them by their path."""
    for path in STANDALONE:
        top = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, IMPORTS)]
        assert {name.partition(".")[0] for name in modules_of(top)} <= sys.stdlib_module_names, path


def test_files_and_functions_stay_small() -> None:
    for path in [*sources(), ROOT / "cli.py"]:
        text = path.read_text()
        lines = len(text.splitlines())
        assert lines <= 420, f"{path} has {lines} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name} is too long"


ROOMS_THAT_KNOW = {  # words of the source, and the rooms or files in which alone they may stand
    r"127\.0\.0\.1|localhost": {"launch"},
    "held_port": {"launch"},
    "CUDA_VISIBLE_DEVICES": {"launch", "section.py"},  # which refuses the name in a recipe
    "PDEATHSIG|ARL_PARENT_PID": {"launch", "fork_server.py"},  # the last one runs without arl, inside bubblewrap
    "/dev/shm": {"launch", "sync", "server_process.py"},  # the last one without arl, in SGLang's environment
}


class WithoutTexts(ast.NodeTransformer):
    """Leave out docstrings, which may name anything; comments are none of the tree."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def test_addresses_devices_parent_death_and_shared_memory_are_known_to_their_rooms_alone() -> None:
    for path in [*sources(), ROOT / "cli.py"]:
        code = ast.unparse(WithoutTexts().visit(ast.parse(path.read_text())))
        for words, knowing in ROOMS_THAT_KNOW.items():
            found = re.search(words, code)
            is_known = {room_of(path), path.name} & knowing
            assert is_known or found is None, f"{path} says {found and found[0]}: that is for {sorted(knowing)}"


IN_SEVERAL_ROOMS = {"__init__.py", "base.py", "commands.py"}  # the seam of a room; its part of the command line


def test_no_two_modules_and_no_two_public_classes_have_one_name() -> None:
    modules = [path.name for path in sources() if path.name not in IN_SEVERAL_ROOMS]
    nodes = [node for path in sources() for node in ast.parse(path.read_text()).body]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    assert [name for name, uses in Counter([*modules, *classes]).items() if uses > 1] == []


def test_hugging_faces_kernels_distribution_is_not_shadowed() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_recipes_are_at_most_twenty_lines_and_valid() -> None:
    from arl.config.recipe_file import load_recipe
    from arl.sweep.request import read_request

    for path in (ROOT / "recipes").rglob("*.yaml"):
        settings = [line for line in path.read_text().splitlines() if not re.match(r"\s*(#|$)", line)]
        assert len(settings) <= 20, f"{path.name} has {len(settings)} lines"
        is_sweep = any(line.startswith("recipe:") for line in settings)
        recipe = read_request(path).recipe if is_sweep else path
        assert load_recipe(recipe).name == recipe.stem
