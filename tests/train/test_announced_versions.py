"""Versions that the trainer's rank 0 announces reach whoever waits for them, and no others are believed."""

import asyncio

import pytest

from arl.train.announced_versions import AnnouncedVersions
from arl.train.waits import Waits
from arl.types import WeightUpdate


def test_only_a_version_that_a_step_has_made_since_the_last_one_is_given_out() -> None:
    async def scene() -> None:
        versions = AnnouncedVersions(4, {4: "model"}, 3, Waits())
        assert (await versions.at_least(4)).path == "model"
        waiting = asyncio.create_task(versions.at_least(5))
        await asyncio.sleep(0)  # it waits from here on
        for version in (3, 4, 5, 999):
            with pytest.raises(TypeError, match=rf"^Published of version {version}; only versions from 5 to 4"):
                versions.add(WeightUpdate(version, "/etc"))
        versions.begin(5)
        versions.made(5)
        versions.begin(6)
        versions.add(WeightUpdate(6, "v6"))  # 5 was skipped
        assert (await waiting).path == "v6"
        for version in (5, 6, 7):
            with pytest.raises(TypeError, match=f"Published of version {version}"):
                versions.add(WeightUpdate(version, "/etc"))

    asyncio.run(scene())
