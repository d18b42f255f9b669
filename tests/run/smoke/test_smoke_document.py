"""What a bug report carries: the variables that matter, and no secret."""

import json

from arl.run.smoke.smoke_document import HIDDEN, Secrets, shown_environment, to_json
from arl.run.smoke.smoke_types import SmokeReport, SmokeStage

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0,1",
    "NCCL_P2P_DISABLE": "1",
    "OMP_NUM_THREADS": "4",
    "ARL_RUN_KEY": "0123456789abcdef",
    "WANDB_API_KEY": "wandb-secret-value",
    "HF_TOKEN": "hf_abcdefgh",
    "TORCH_HUB_TOKEN": "torch-token-value",
    "HOME": "/home/somebody",
}


def test_only_variables_that_matter_are_shown_and_none_that_is_secret_by_its_name() -> None:
    assert shown_environment(ENVIRONMENT) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_P2P_DISABLE": "1",
        "OMP_NUM_THREADS": "4",
    }


def test_secrets_are_hidden_wherever_a_log_has_printed_them() -> None:
    secrets = Secrets("the key of the run", ENVIRONMENT)
    stage = SmokeStage(
        name="engine sglang",
        verdict="failed",
        seconds=1.0,
        said="server_args=ServerArgs(api_key='the key of the run')",
        measured={"lines": ["token hf_abcdefgh", {"deep": "wandb-secret-value"}], "count": 3},
    )
    report = SmokeReport(
        verdict="failed",
        seconds=1.0,
        recipe="no recipe",
        machine={},
        versions={},
        environment=shown_environment(ENVIRONMENT),
        stages=[stage],
        logprobs=[],
        advice=[],
    )
    text = to_json(secrets.hide_in(report))
    assert not any(value in text for name, value in ENVIRONMENT.items() if name.endswith(("KEY", "TOKEN")))
    assert "the key of the run" not in text
    read = json.loads(text)
    assert read["stages"][0]["said"] == f"server_args=ServerArgs(api_key='{HIDDEN}')"
    assert read["stages"][0]["measured"]["count"] == 3
