"""Every rank shares all weights, whole, and a version is announced when all of them have."""

import asyncio
import pickle
from pathlib import Path

import msgspec
import torch

from arl.sync.buckets import checksums
from tests.train.synthetic import batch
from tests.train.workers import forked, init


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Map what a rank has shared, as SGLang does."""
    return dict(pickle.loads((folder / "handles").read_bytes()))


RANKS = 2


def test_what_each_rank_shares_has_the_published_checksums(tiny: Path, tmp_path: Path) -> None:
    shared = msgspec.structs.replace(
        init(tiny, tmp_path / "published"),
        transport="ipc",
        bucket_bytes=1000,
        sharing_ranks=RANKS,
        checked_as="float32",
        kept_versions=2,
    )

    async def scene() -> None:
        async with forked(shared, RANKS) as (trainer, _):
            for version in (4, 5, 6):
                await trainer.step(batch(version, groups=4, size=4))
                update = await trainer.weights(version + 1)
                for rank in range(RANKS):
                    state = read(Path(update.path, str(rank)))
                    assert checksums(state, torch.float32) == update.checksums
            await trainer.stop()

    asyncio.run(scene())
    assert {folder.name for folder in (tmp_path / "published").iterdir()} == {"v6", "v7"}
