"""Which transport a run uses, and which it cannot."""

from pathlib import Path

import pytest
from transformers import LlamaConfig

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch.base import Node, Resources
from arl.launch.placement import Placement, place
from arl.run.preflight import check_sglang
from arl.sync.choose import choose_transport
from tests.fake_sglang import make_fake_sglang
from tests.train.families import SHAPE, make_family

GPUS = ["0", "1", "2"]


def recipe(**sections: object) -> Recipe:
    base = {"model": {"path": "somewhere"}, "data": {"task": "running_checksum"}}
    return Recipe.model_validate(base | sections)


def placed(of: Recipe, gpus: list[str]) -> Placement:
    return place(of, Node("here", 2, tuple(gpus)))


SGLANG = {"kind": "sglang"}
TABLE = [
    (recipe(world="virtual"), GPUS, "memory"),
    (recipe(), [], "file"),
    (recipe(engine=SGLANG), [], "file"),
    (recipe(), GPUS, "broadcast"),
    (recipe(engine=SGLANG | {"tensor_parallel": 2}), GPUS, "broadcast"),
    (recipe(rollout={"lag": 1}), GPUS, "file"),
    (recipe(mode="collocated"), GPUS, "file"),
    (recipe(mode="collocated", engine=SGLANG), GPUS, "ipc"),
    (recipe(mode="collocated", engine=SGLANG | {"replicas": 2}), GPUS, "file"),
    (recipe(mode="collocated", engine=SGLANG | {"tensor_parallel": 2}), GPUS, "file"),
    (recipe(sync={"transport": "broadcast"}), [], "broadcast"),
    (recipe(sync={"transport": "ipc"}, engine=SGLANG), [], "ipc"),
    (recipe(sync={"transport": "file"}, world="virtual"), [], "file"),
]


@pytest.mark.parametrize(("given", "gpus", "transport"), TABLE)
def test_auto_suits_the_devices_and_a_wish_is_granted_where_it_can_be(
    given: Recipe, gpus: list[str], transport: str
) -> None:
    assert choose_transport(given, placed(given, gpus)) == transport


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (recipe(mode="collocated", sync={"transport": "broadcast"}), "NCCL joins no two processes on one GPU"),
        (recipe(engine=SGLANG, sync={"transport": "ipc"}), "on GPUs only mode collocated with engine.replicas 1"),
    ],
)
def test_a_wish_that_these_gpus_cannot_grant_is_refused(given: Recipe, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        choose_transport(given, placed(given, GPUS))
    on_cpus = Placement([Resources(1)], [Resources(1)])
    assert choose_transport(given, on_cpus) == given.sync.transport


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"sync": {"transport": "memory"}}, "sync.transport memory: in world wall"),
        ({"sync": {"transport": "broadcast"}, "world": "virtual"}, "world virtual has one process"),
        ({"sync": {"transport": "broadcast"}, "rollout": {"lag": 0}}, "with rollout.lag checkpoints keep the files"),
        ({"sync": {"transport": "ipc"}}, "for SGLang with tensor_parallel 1, and this is engine.kind embedded"),
        (
            {"sync": {"check": True}, "engine": SGLANG | {"tensor_parallel": 2}},
            "sync.check true: weights are compared whole",
        ),
    ],
)
def test_what_nothing_could_carry_or_check_is_no_recipe(sections: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        recipe(**sections)


def test_a_model_that_sglang_would_load_otherwise_than_it_was_published_is_refused(tmp_path: Path) -> None:
    """It holds Gemma's norms plus one, and knows no biases in an MLP."""
    engine = SGLANG | {"python": make_fake_sglang(tmp_path)}
    gemma = {"path": str(make_family("gemma-tied", tmp_path / "gemma"))}
    check_sglang(recipe(model=gemma, engine=engine))
    with pytest.raises(InputError, match=r"sync\.check true: SGLang adds one to the norms"):
        check_sglang(recipe(model=gemma, engine=engine, sync={"check": True}))
    LlamaConfig(**SHAPE, mlp_bias=True).save_pretrained(tmp_path / "biased")
    with pytest.raises(InputError, match=r"its MLPs have biases \(mlp_bias\), which SGLang's Llama leaves out"):
        check_sglang(recipe(model={"path": str(tmp_path / "biased")}, engine=engine))
