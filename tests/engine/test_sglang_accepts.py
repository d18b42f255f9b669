"""Have SGLang itself read the command lines of servers on GPUs: its parser, and how it completes its settings.

Its resolution of a CUDA server's settings ends before the device is asked for anything, so it runs without a GPU. What
it then takes from the device, the memory above all, it leaves at its defaults here. Nothing is started.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from arl.config.recipe import TinyModel
from arl.engine.sglang import server_command
from arl.launch.base import Resources
from arl.models.tiny import make_tiny_model
from arl.tasks.running_checksum import CHARACTERS
from tests.engine.conftest import sglang_spec as spec

pytestmark = pytest.mark.sglang
READ = """
import json, sys
from sglang.srt.arg_groups.model_override_base import resolved_view
from sglang.srt.environ import envs
from sglang.srt.server_args import prepare_server_args

found = []
for argv in json.load(sys.stdin):
    args = prepare_server_args(argv)
    args.resolve_once()
    view = resolved_view(args)
    names = ("device", "tp_size", "dtype", "disable_overlap_schedule", "enable_memory_saver", "mem_fraction_static")
    settings = {name: getattr(view, name) for name in names}
    settings["sleep_on_idle"] = view.sleep_on_idle
    settings["starts_through_numactl"] = envs.SGLANG_NUMA_BIND_V2.get()
    settings["largest_graph"] = view.cuda_graph_config.decode.max_bs
    found.append(settings)
print()
print(json.dumps(found))
"""
ONE = Resources(1, ("0",))
TWO = Resources(1, ("0", "1"))
SHARED = Resources(1, ("0", "1"), takes_turns=True, memory_share=0.55)
CASES: list[tuple[Resources, dict[str, Any]]] = [
    (ONE, {"dtype": "bfloat16"}),
    (ONE, {"dtype": "float32"}),
    (TWO, {"dtype": "bfloat16", "kv_policy": "keep", "tensor_parallel": 2}),
    (SHARED, {"dtype": "bfloat16", "tensor_parallel": 2}),
    (Resources(1, ("0",), takes_turns=True), {"dtype": "float32"}),
]


@pytest.fixture(scope="module")
def settings(sglang_python: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return SGLang's settings for each case. One process reads all, because importing SGLang takes long."""
    model = tmp_path_factory.mktemp("model")
    make_tiny_model(TinyModel(), CHARACTERS, 0, model)
    flags = []
    environment = dict(os.environ)
    for share, engine in CASES:
        server = spec(str(model), share, slots=384, **engine)
        argv = server_command.command(server, sglang_python)
        assert argv[1] == str(server_command.CHILD)
        flags.append(argv[2:])
        environment |= server_command.environment(server, sglang_python)
    done = subprocess.run(
        [sglang_python, "-P", "-c", READ],
        input=json.dumps(flags),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
        cwd=Path("/"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_sglang_accepts_every_command_line_of_a_cuda_server_and_takes_from_it_what_a_run_needs(
    settings: list[dict[str, Any]],
) -> None:
    """Graphs reach every slot; scheduling overlaps except with a kept cache.

    A collocated server keeps to its share, and sleeps while ranks step. None leaves files behind.
    """
    for (share, engine), found in zip(CASES, settings, strict=True):
        assert (found["device"], found["tp_size"], found["dtype"]) == ("cuda", len(share.devices), engine["dtype"])
        assert found["largest_graph"] == 384
        assert found["disable_overlap_schedule"] == (engine.get("kv_policy") == "keep")
        assert found["enable_memory_saver"] == found["sleep_on_idle"] == share.takes_turns
        assert not found["starts_through_numactl"], "its script would stay in /tmp"
        assert share.memory_share is None or found["mem_fraction_static"] == share.memory_share
