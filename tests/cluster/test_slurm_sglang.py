"""Real SGLang servers as steps of a real Slurm job on three nodes: TLS, and weights that travel over the network."""

from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.slurm_job import SlurmJob, wait_for_idle_nodes

pytestmark = [pytest.mark.slow, pytest.mark.sglang, pytest.mark.long]

RECIPE = """\
name: sglang
model:
  tiny: {{hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {{task: running_checksum, options: {{size: 2000}}}}
rollout: {{problems_per_step: 4, group_size: 4, staleness: 2, max_new_tokens: 24}}
train: {{steps: 4, minibatches: 2, learning_rate: 1.5e-4, dtype: float32}}
engine: {{kind: sglang, python: {python}, replicas: 2, slots: 16, dtype: float32}}
sync: {{transport: broadcast}}
eval: {{problems: 16}}
output: {{checkpoint_every: 2}}
launcher: slurm
cluster: {{nodes: 3}}
"""


def test_a_run_with_sglang_on_two_of_three_nodes_trains_on_what_versions_of_a_broadcast_have_written(
    slurm: SlurmCluster, tmp_path: Path, sglang_python: str
) -> None:
    recipe = tmp_path / "sglang.yaml"
    recipe.write_text(RECIPE.format(python=sglang_python))
    job = SlurmJob(slurm, recipe, tmp_path / "runs")
    job.wait_for_state("COMPLETED")
    job.assert_trained_once(steps=4)
    assert "weights travel by broadcast" in job.output
    for number, node in enumerate(("n1", "n2")):
        log = (job.run / "logs" / f"engine-{number}.log").read_text()
        assert f"ready https://{slurm.nodes[node].address}:" in log
    ages = [int(age) for age in job.summary()["token_ages"]]
    assert max(ages) <= 2  # so step 4 trains on nothing older than version 1, which only a broadcast has brought
    wait_for_idle_nodes(slurm)
