"""Settle on one GPU what no CPU can: `just gpu`, or `just gpu NAME...` for some of the checks.

    check ─► its commands, each a process, at most ten minutes in all ─► docs/benchmarks/gpu/<file>.json

docs/benchmarks/gpu/README.md says which open question each check answers. They need this repository and installed
packages, no model and no network. The check `sglang` also needs SGLang's environment for GPUs (docs/gpu.md).
"""

import functools
import json
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from arl.bench import to_json
from arl.bench.trainer_bench import write_model
from arl.config.engine_section import EngineConfig
from arl.config.recipe import Train
from arl.engine.backend import find_backend
from arl.errors import InputError
from arl.launch.network import LOOPBACK
from arl.run.checks import gpu_findings
from arl.sync.buckets import BUCKET_BYTES, TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.choose import BufferPlace
from arl.sync.process_group import Group, serve_store
from arl.sync.targets import BroadcastTarget
from arl.sync.version_buffers import allocate_buckets
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks" / "gpu"
SECONDS = 600.0  # of one check
VERSIONS = 4
COLLOCATED = ["mode=collocated", "engine.dtype=bfloat16", "train.dtype=bfloat16", "sync.check=true"]
HALF_A_BILLION = "model.tiny={hidden_size: 1024, layers: 36, heads: 16, intermediate_size: 4096}"  # 0.6e9 parameters
RUNS = {
    "quickstart": ["recipes/quickstart.yaml", *COLLOCATED, "train.steps=20"],
    "sglang": [
        "recipes/quickstart-sglang.yaml",
        *COLLOCATED,
        HALF_A_BILLION,
        "warmup=false",
        "train.steps=4",
        "eval.problems=0",
        "deadlines.startup=500",
    ],
}


class CheckFailed(Exception):
    """A check has no result; says why."""


def run(argv: list[str], until: float) -> str:
    """Run a Python module with arguments, and return what it prints.

    Raises:
        CheckFailed: it exits with another code than 0, or still runs at `until`.
    """
    left = max(1.0, until - perf_counter())
    try:
        done = subprocess.run(
            [sys.executable, "-m", *argv], cwd=ROOT, capture_output=True, text=True, check=False, timeout=left
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(f"{' '.join(argv)}: it takes more than {left:.0f} s") from error
    if done.returncode:
        raise CheckFailed(f"{' '.join(argv)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def write(name: str, text: str) -> None:
    (OUT / f"{name}.json").write_text(text.strip() + "\n")


# ---- the checks


def tests(until: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        junit = Path(directory) / "junit.xml"
        files = ["tests/kernels/test_gpu.py", "tests/train/test_gpu.py"]
        try:
            run(["pytest", "-n0", "-m", "gpu", f"--junitxml={junit}", *files], until)
        finally:
            if junit.exists():
                write("tests", to_json(_outcomes(junit)))


def _outcomes(junit: Path) -> dict[str, Any]:
    """Return the seconds of each test that passed, and the names of the others."""
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    bad = {case for case in cases if any(case.find(tag) is not None for tag in ("failure", "error", "skipped"))}
    return {
        "device": _device(),
        "passed_seconds": {case.get("name"): float(case.get("time", 0)) for case in cases if case not in bad},
        "not_passed": [case.get("name") for case in bad],
    }


def bench(until: float, files: dict[str, list[str]]) -> None:
    """Keep what each `arl bench` command prints, by the name of its file."""
    for name, arguments in files.items():
        write(name, run(["arl.cli", "bench", *arguments], until))


def measured(until: float, name: str) -> None:
    """Keep what a function of MEASURED returns; a process of its own frees the GPU's memory."""
    write(name, run(["tests.gpu_checks", "--measure", name], until))


def run_recipe(until: float, name: str) -> None:
    """Keep the summary of a run, and the metrics of its first and its last step."""
    if name == "sglang":
        _need_sglang()
    recipe, *settings = RUNS[name]
    with tempfile.TemporaryDirectory(prefix="arl-gpu-") as directory:
        sets = [word for setting in (*settings, f"output.directory={directory}") for word in ("--set", setting)]
        run(["arl.cli", "train", recipe, *sets], until)
        (summary,) = Path(directory).glob("*/summary.json")
        records = [json.loads(line) for line in (summary.parent / "metrics.jsonl").read_text().splitlines()]
        steps = [record for record in records if "time/step_s" in record]
        logs = [line for log in summary.parent.glob("logs/engine*.log") for line in log.read_text().splitlines()]
        document = {
            "device": _device(),
            "settings": settings,
            "summary": json.loads(summary.read_text()),
            "first_step": steps[0],
            "last_step": steps[-1],
            "memory_in_the_engine's_log": [line for line in logs if "mem usage" in line or "avail mem" in line],
        }
    write(name, to_json(document))


def _need_sglang() -> None:
    try:
        found = find_backend("sglang").probe(EngineConfig(kind="sglang"))
    except InputError as error:
        raise CheckFailed(str(error)) from error
    missing = [finding for finding in gpu_findings(("0",), [found]) if not finding.good]
    if missing:
        raise CheckFailed("\n".join(map(str, missing)))


# ---- what they measure in a process of their own; on a CPU, small, to test them


def measure_overlap(num_bytes: int = 500_000_000, width: int = 8192) -> dict[str, Any]:
    """Measure seconds of 4 broadcasts from pinned memory in a group of one, of 30 matrix products, and of both at once.

    The broadcasts are in a thread, as in a run. With one rank nothing crosses a wire: this is the copy to the GPU, the
    streams and the launches.
    """
    bucket = [TensorSpec("flat", "bfloat16", (num_bytes // 2,))]
    flats = allocate_buckets([bucket] * 4, "host")
    group = _group()
    products = functools.partial(_multiply, torch.randn(width, width, device=_place(), dtype=torch.bfloat16))
    broadcast = functools.partial(group.send, flats)

    both: dict[str, float] = {}
    for _ in range(2):  # the first time warms up
        alone = {"products": _timed(products), "broadcasts": _timed(broadcast)}
        thread = threading.Thread(target=lambda: both.update(broadcasts=_timed(broadcast)))
        thread.start()
        both["products"] = _timed(products)
        thread.join()
    group.close()
    rate = 4 * num_bytes / 1e9 / alone["broadcasts"]
    return {"device": _device(), "bytes": num_bytes, "alone": alone, "both": both, "gigabytes_per_s": round(rate, 1)}


def measure_publication(shape: str = "1.5B") -> dict[str, Any]:
    """Measure the seconds of each part of four versions: the first two are cold, because there are two buffers."""
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory:
        write_model(shape, Path(directory))
        learner = Learner(directory, Train.model_validate({"minibatches": 1, "dtype": dtype}), PPO())
    specs = learner.tensors()
    group = _group()
    found: dict[str, Any] = {"device": _device(), "shape": shape, "bytes_of_a_version": bucket_bytes_of(specs)}
    places: tuple[BufferPlace, ...] = ("device", "host") if torch.cuda.is_available() else ("host",)
    for place in places:
        target = BroadcastTarget(BUCKET_BYTES, place)
        found[place] = [_publish(learner, target, group, version) for version in range(VERSIONS)]
        addresses = {flat.data_ptr(): flat.nbytes for row in found[place] for flat in row.pop("flats")}
        found[f"{place}_bytes"] = sum(addresses.values())
    group.close()
    return found


def _publish(learner: Learner, target: BroadcastTarget, group: Group, version: int) -> dict[str, Any]:
    """Publish one version as a rank does, and send it; return its seconds and its buckets."""
    specs = learner.tensors()
    buckets = make_buckets(specs, BUCKET_BYTES)
    flats: list[Tensor] = []
    row: dict[str, Any] = {"flats": flats}
    row["reserve"] = _timed(lambda: flats.extend(target.reserve(version, specs, SECONDS)))
    row["gather"] = _timed(lambda: learner.policy.gather(buckets, flats))
    row["offer"] = _timed(lambda: target.write(version, {}))
    target.buffers.claim(version, SECONDS)
    lent = target.buffers.lend(version)
    row["broadcast"] = _timed(lambda: group.send(lent))
    return row


def _group() -> Group:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    return Group(serve_store(LOOPBACK, SECONDS), "check", 0, 1, backend, SECONDS)


def _multiply(left: Tensor) -> None:
    for _ in range(30):
        left @ left
    if left.is_cuda:
        torch.cuda.current_stream().synchronize()


def _timed(work: Callable[[], object]) -> float:
    """Return seconds. `work` waits itself for what it launches: to wait for the whole device would end the overlap."""
    start = perf_counter()
    work()
    return round(perf_counter() - start, 6)


def _place() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


MEASURED: dict[str, Callable[[], dict[str, Any]]] = {
    "overlap": measure_overlap,
    "publication": measure_publication,
}
TRAINER = ["trainer", "--steps", "3"]
CHECKS: dict[str, Callable[[float], None]] = {
    "tests": tests,
    "kernels": functools.partial(bench, files={"kernels": ["kernels", "--repeats", "3"]}),
    "trainer": functools.partial(
        bench, files={"trainer": TRAINER, "trainer-full": [*TRAINER, "--checkpointing", "full"]}
    ),
    "compiled": functools.partial(bench, files={"trainer-compiled": [*TRAINER, "--compile"]}),
    "overlap": functools.partial(measured, name="overlap"),
    "quickstart": functools.partial(run_recipe, name="quickstart"),
    "publication": functools.partial(measured, name="publication"),
    "sglang": functools.partial(run_recipe, name="sglang"),
}


def main(names: list[str]) -> int:
    """Run the checks of these names, or all, one after the other; return the exit code."""
    if unknown := set(names) - CHECKS.keys():
        print(f"check {min(unknown)}: choose from {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("torch sees no GPU, and these checks measure one: `arl doctor` says what is missing", file=sys.stderr)
        return 2
    code = 0
    for name in names or CHECKS:
        print(f"== {name}", flush=True)
        began = perf_counter()
        try:
            CHECKS[name](began + SECONDS)
            print(f"ok, {perf_counter() - began:.0f} s", flush=True)
        except CheckFailed as failed:
            code = 1
            print(f"FAILED {failed}", flush=True)
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(to_json(MEASURED[sys.argv[2]]()))
    else:
        sys.exit(main(sys.argv[1:]))
