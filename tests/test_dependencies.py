"""Whatever arl imports is declared, and the lock of CI holds what is declared."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from tests.test_architecture import sources

ROOT = Path(__file__).parent.parent
NOT_FROM_PYPI = {"arl", "tests", "kernels"}
OF_OTHER_ENVIRONMENTS = {"sglang", "liger_kernel", "cut_cross_entropy"}  # SGLang's own, and peers of a benchmark


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[Requirement]:
    """Return what pyproject.toml declares, its extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(each for extra in extras for each in extra)]
    return [Requirement(text) for text in texts]


def declared() -> set[str]:
    """Return the names of the distributions that pyproject.toml declares."""
    return {canonical(requirement.name) for requirement in requirements()}


def imported() -> Iterator[tuple[str, Path]]:
    """Yield the first part of each module that is imported anywhere, and where."""
    for path in [*sources(), *(ROOT / "tests").rglob("*.py"), ROOT / "cli.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0], path


def test_every_import_is_of_a_declared_package() -> None:
    distributions = importlib.metadata.packages_distributions()
    names = declared()
    known = sys.stdlib_module_names | NOT_FROM_PYPI | OF_OTHER_ENVIRONMENTS
    for module, path in imported():
        if module in known:
            continue
        found = {canonical(name) for name in distributions.get(module, [module])}  # an extra may not be installed
        assert found & names, f"{path} imports {module}, of {sorted(found)}: declare it in pyproject.toml"


def test_the_lock_has_every_declared_package_in_a_version_of_its_range() -> None:
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for requirement in requirements():
        if requirement.name != "arl":
            assert versions[canonical(requirement.name)] in requirement.specifier, requirement
