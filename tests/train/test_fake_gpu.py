"""Hold the plan of a trainer GPU's memory to what a step allocates there, on a GPU that is only a type.

A rank of FSDP2 loads a model, runs packs through flash attention and the fused head in bfloat16, reduces the gradient,
and updates with fused AdamW. tests/train/fake_gpu.py says how, and counts bytes by the shapes of tensors; what CUDA's
own libraries allocate inside of an operation it cannot see. A step that mixes devices or types ends with an error.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.train.families import configs
from tests.train.test_rank_bytes import SIZES

pytest.importorskip("triton", reason="Triton is not installed here")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for GPUs: pytest -m gpu"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which compiles fake_gpu.cpp"),
]
HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = [
    {"checkpointing": "none"},
    {"checkpointing": "selective", "dtype": "float16"},
    {"checkpointing": "full", "ranks": 1},
    {"checkpointing": "full", "reshard": True, "ranks": 4},
]


def run(*command: str, **environment: str) -> str:
    """Return what a command that succeeds prints."""
    variables = os.environ | environment
    root = HERE.parent.parent
    done = subprocess.run(command, env=variables, cwd=root, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_step_on_a_gpu_allocates_what_is_planned_and_keeps_weights_and_moments(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(configs(SIZES)["llama"]).save_pretrained(tmp_path)
    library = tmp_path / "fake_gpu.so"
    of_torch = Path(torch.__file__).parent
    linked = [f"-L{of_torch / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{of_torch / 'lib'}"]
    source = [str(HERE / "fake_gpu.cpp"), f"-I{of_torch / 'include'}"]
    run("g++", "-std=c++20", "-shared", "-fPIC", *source, "-o", str(library), *linked)
    command = [sys.executable, "-m", "tests.train.fake_step", str(tmp_path), json.dumps(CASES)]
    found = json.loads(run(*command, LD_PRELOAD=str(library)).splitlines()[-1])
    for case, one in zip(CASES, found, strict=True):
        assert one["resident"] == pytest.approx(one["planned_resident"], rel=0.01), (case, one)
        assert one["peak"] <= one["planned"] <= 1.3 * one["peak"], (case, one)
