"""The weights of a learner are published as they are, and versions that are overtaken are skipped."""

import threading
from pathlib import Path

import pytest

from arl.sync.publisher import Publisher
from arl.sync.targets import FileTarget
from arl.types import WeightUpdate
from tests.train.one_rank import learner

pytestmark = pytest.mark.usefixtures("alone")


def test_the_publisher_skips_what_a_newer_version_overtook_and_keeps_the_last_few(tmp_path: Path, tiny: Path) -> None:
    trained, announced = learner(tiny), list[int]()
    first, busy = threading.Event(), threading.Event()

    def announce(outcome: WeightUpdate | Exception) -> None:
        assert isinstance(outcome, WeightUpdate)
        announced.append(outcome.version)
        first.set()
        assert (Path(outcome.path) / "model.safetensors").exists()
        busy.wait(300)

    publisher = Publisher(FileTarget(tmp_path, trained.config_json()), kept=2, announce=announce)
    publisher.publish(5, trained.snapshot())
    assert first.wait(300)
    for version in (6, 7, 8):
        publisher.publish(version, trained.snapshot())
    busy.set()
    publisher.publish(9, trained.snapshot())
    publisher.close(300)
    assert announced[0] == 5
    assert announced[-1] == 9
    assert 6 not in announced
    assert len(list(tmp_path.iterdir())) <= 2
