"""Refuse flags of the user that break what arl needs of an SGLang server. Torch-free.

engine.args ─► refuse_contradictions, before anything starts

Flags that arl gives itself are refused while the recipe is read: `RESERVED_FLAGS` in server_command.py.
"""

import os
from collections.abc import Sequence

from arl.config.engine_section import EngineConfig
from arl.errors import RecipeError

FILE_OF_FLAGS = "--config"
# With these flags SGLang sets these variables for itself, whatever its environment says: entrypoints/engine.py, 0.5.20.
NCCL_FLAGS = {
    "--enable-symm-mem": ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"),
    "--enable-nccl-nvls": ("NCCL_NVLS_ENABLE",),
}
ON = "1"
# Each of them chooses another loop of SGLang's scheduler than `event_loop_normal`; see server_command.KEEP_SWITCHES.
OVERLAPPING_FLAGS = {
    "--enable-prefill-delayer": "it works only with overlapped scheduling",
    "--pp-size": "pipeline stages have no pause in place",
    "--pipeline-parallel-size": "pipeline stages have no pause in place",
    "--enable-pdmux": "its scheduler has no pause in place",
    "--disaggregation-mode": "its schedulers have no pause in place",
}


def refuse_contradictions(config: EngineConfig) -> None:
    """Check the user's flags against what arl needs.

    Raises:
        RecipeError: names the flag, the reason and the remedy.
    """
    if is_given(FILE_OF_FLAGS, config.args):
        raise RecipeError(
            f"engine.args {FILE_OF_FLAGS}: a file could contradict flags that arl gives; write its flags in engine.args"
        )
    for flag, variables in NCCL_FLAGS.items():
        for variable in variables:
            _refuse_hidden_setting(flag, variable, config)
    if config.kv_policy != "keep":
        return
    for flag, reason in OVERLAPPING_FLAGS.items():
        if is_given(flag, config.args):
            raise RecipeError(
                f"engine.args {flag}: with engine.kv_policy keep a server must pause between two passes, and {reason}; "
                "leave it out, or use engine.kv_policy recompute"
            )


def is_given(flag: str, args: Sequence[str]) -> bool:
    """Return whether `args` hold `flag`, spelled out or shortened, as SGLang's parser allows.

    >>> is_given("--config", ["--conf=server.yaml"]), is_given("--config", ["--context-length", "9"])
    (True, False)
    """
    for argument in args:
        beginning = argument.partition("=")[0]
        if len(beginning) > len("--") and flag.startswith(beginning):
            return True
    return False


def _refuse_hidden_setting(flag: str, variable: str, config: EngineConfig) -> None:
    """Raise RecipeError if `flag` gives `variable` a value that the trainer's ranks would not learn of."""
    value = config.environment.get(variable, os.environ.get(variable))
    if is_given(flag, config.args) and value != ON:
        raise RecipeError(
            f"engine.args {flag}: SGLang then sets {variable}={ON} for itself, and the trainer's ranks need the same "
            f"value; add engine.environment {{{variable}: {ON}}}, from which they take it, or leave the flag out"
        )
