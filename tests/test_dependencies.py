"""Whatever arl imports is declared, and the lock of CI holds what is declared."""

import ast
import importlib.metadata
import re
import sys
import tomllib

from packaging.requirements import Requirement

from tests.test_architecture import ROOT, modules_of, sources

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


def test_every_import_is_of_a_declared_package() -> None:
    distributions = importlib.metadata.packages_distributions()
    names = {canonical(requirement.name) for requirement in requirements()}
    known = sys.stdlib_module_names | NOT_FROM_PYPI | OF_OTHER_ENVIRONMENTS
    for path in [*sources(), *(ROOT / "tests").rglob("*.py"), ROOT / "cli.py"]:
        modules = {name.partition(".")[0] for name in modules_of(ast.walk(ast.parse(path.read_text())))}
        for module in modules - known:
            found = {canonical(name) for name in distributions.get(module, [module])}  # an extra may not be installed
            assert found & names, f"{path} imports {module}, of {sorted(found)}: declare it in pyproject.toml"


def test_the_lock_has_every_declared_package_in_a_version_of_its_range() -> None:
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for requirement in requirements():
        if requirement.name != "arl":
            assert versions[canonical(requirement.name)] in requirement.specifier, requirement
