"""Whatever arl imports is declared, the lock of CI holds what is declared, and both environments for GPUs agree."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from arl.engine.sglang.sglang_backend import GPU_LOCK, TESTED
from tests.test_architecture import ROOT, modules_of, sources

NOT_FROM_PYPI = {"arl", "tests", "kernels"}
OF_OTHER_ENVIRONMENTS = {"sglang", "liger_kernel", "cut_cross_entropy"}  # SGLang's own, and peers of a benchmark

OURS = ROOT / ".ci" / "constraints.txt"
OUT_OF_REACH = 3  # what .ci/lock exits with


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


def pins(lock: Path) -> dict[str, str]:
    """Return the version of each package of a lock."""
    lines = lock.read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_lock_has_every_declared_package_in_a_version_of_its_range() -> None:
    versions = pins(OURS)
    for requirement in requirements():
        if requirement.name != "arl":
            assert versions[canonical(requirement.name)] in requirement.specifier, requirement


def test_both_environments_for_gpus_have_one_torch_and_nccl_and_sglangs_has_a_toolkit_of_its_own() -> None:
    ours, theirs = pins(OURS), pins(GPU_LOCK)
    assert theirs["sglang"] == TESTED
    for name in ("torch", "triton", "nvidia-nccl-cu13", "nvidia-cuda-runtime"):
        assert ours[name] == theirs[name], name
    for part in ("nvcc", "nvvm", "crt", "cccl", "runtime"):
        assert f"nvidia-{part}" in theirs or f"nvidia-cuda-{part}" in theirs, part


@pytest.mark.slow
def test_both_environments_for_gpus_still_resolve() -> None:
    """Look at PyPI: it fails the day a pin vanishes."""
    done = subprocess.run([ROOT / ".ci" / "lock", "check"], capture_output=True, text=True, check=False)
    if done.returncode == OUT_OF_REACH:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
