"""Versions that the trainer's rank 0 announces reach whoever waits for them, and no others are believed."""

import asyncio
import re

import pytest

from arl.train.announced_versions import AnnouncedVersions
from arl.train.waits import Waits
from arl.types import WeightUpdate


def in_directory(version: int) -> WeightUpdate:
    return WeightUpdate(version, f"/run/v{version}")


@pytest.mark.parametrize(
    "wrong",
    [
        WeightUpdate(5, "/etc"),
        WeightUpdate(5, "/run/v4"),
        WeightUpdate(5, "/run/../etc/v5"),
        WeightUpdate(5, "", "broadcast"),
        WeightUpdate(5, "/run/v5", "file", {"lm_head.weight": b"tensor"}),
    ],
)
def test_a_version_that_is_elsewhere_than_the_run_publishes_it_is_refused_by_its_place(wrong: WeightUpdate) -> None:
    async def scene() -> None:
        versions = AnnouncedVersions(4, {4: "model"}, 3, Waits(), in_directory)
        versions.begin(5)
        said = f"Published of version 5 at {wrong.path!r} by {wrong.transport}; this run publishes it at '/run/v5'"
        with pytest.raises(TypeError, match=re.escape(said)):
            versions.add(wrong)
        versions.add(WeightUpdate(5, "/run/v5", checksums={"lm_head.weight": "00"}))
        assert (await versions.at_least(5)).path == "/run/v5"

    asyncio.run(scene())


def test_only_a_version_that_a_step_has_made_since_the_last_one_is_given_out() -> None:
    async def scene() -> None:
        versions = AnnouncedVersions(4, {4: "model"}, 3, Waits(), in_directory)
        assert (await versions.at_least(4)).path == "model"
        waiting = asyncio.create_task(versions.at_least(5))
        await asyncio.sleep(0)  # it waits from here on
        for version in (3, 4, 5, 999):
            with pytest.raises(TypeError, match=rf"^Published of version {version}; only versions from 5 to 4"):
                versions.add(WeightUpdate(version, "/etc"))
        versions.begin(5)
        versions.made(5)
        versions.begin(6)
        versions.add(WeightUpdate(6, "/run/v6"))  # 5 was skipped
        assert (await waiting).path == "/run/v6"
        for version in (5, 6, 7):
            with pytest.raises(TypeError, match=f"Published of version {version}"):
                versions.add(WeightUpdate(version, "/etc"))

    asyncio.run(scene())
