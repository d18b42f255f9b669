"""Check the environment variables that a recipe gives to processes of one side: engines, trainer or rewards."""

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

RESERVED = {  # variables that arl sets itself, and where their value comes from
    "CUDA_VISIBLE_DEVICES": "the placement of the run: set it for `arl train` instead, to choose the GPUs of all sides",
    "OMP_NUM_THREADS": "engine.threads or train.threads",
    "RANK": "train.ranks",
    "LOCAL_RANK": "train.ranks",
    "WORLD_SIZE": "train.ranks",
    "MASTER_ADDR": "the launcher",
    "MASTER_PORT": "the launcher",
    "GLOO_SOCKET_IFNAME": "the launcher",
    "NCCL_SOCKET_IFNAME": "the launcher",
    "PYTHONUNBUFFERED": "the launcher, because output must reach the logs at once",
}
SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


Environment = dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]]


def refuse_reserved(field: str, environment: Environment, may_give: Collection[str] = ()) -> Environment:
    """Return the variables of the recipe's `field`, if a recipe may give them.

    Args:
        may_give: names that arl sets itself for other processes only.

    Raises:
        ValueError: arl sets one of them itself, or one is a secret by its name.
    """
    for name in environment:
        if name in RESERVED and name not in may_give:
            raise ValueError(f"{field} {name}: arl sets it ({RESERVED[name]}); leave it out")
        if name.startswith("ARL_"):
            raise ValueError(f"{field} {name}: names with ARL_ are arl's own; leave it out")
        if name.upper().endswith(SECRET_ENDINGS):
            raise ValueError(
                f"{field} {name}: by its name it is a secret, and a recipe is copied into the run "
                "directory and to trackers; set it for `arl train` instead, every process inherits it"
            )
    return environment
