"""Servers of one node read a published version from its memory, after one of them has copied it there."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from arl.sync.loading import read_weights
from arl.sync.node_copy import PREFIX, PUBLISHED, SHARED_MEMORY
from arl.sync.verify import checksums
from arl.types import WeightUpdate
from tests.engine.conftest import ServerProcess, Weights, connect, sglang_command, start, start_server, within
from tests.waiting import wait_until

Starter = Callable[[], ServerProcess]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The publication directory of a run on several nodes."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}-", dir=tmp_path))


@pytest.fixture
def in_memory(published: Path) -> Path:
    return SHARED_MEMORY / published.name


@pytest.fixture
def started(
    old: Weights, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str | None], ServerProcess]]:
    """Start servers of one node: ours, or with an interpreter SGLang's. They are killed at the end."""
    monkeypatch.setenv(PUBLISHED, str(published))
    servers: list[ServerProcess] = []

    def begin(python: str | None) -> ServerProcess:
        log = tmp_path / f"{len(servers)}.log"
        if python is None:
            servers.append(start_server(old.path, log))
        else:
            argv, env = sglang_command(python, old.path)
            servers.append(start(argv, env | {"TMPDIR": str(tmp_path)}, log))
        return servers[-1]

    yield begin
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(timeout=120)


def update_of(published: Path, version: int, weights: Weights) -> WeightUpdate:
    """Publish `weights` as a trainer on another node does."""
    directory = published / f"v{version}"
    shutil.copytree(weights.path, directory)
    sums = checksums(read_weights(weights.path), torch.float32)
    return WeightUpdate(version, str(directory), checksums=sums)


async def load(server: ServerProcess, update: WeightUpdate) -> None:
    """Load a version, and compare every weight afterwards."""
    async with connect(server.url, copies_weights=True, swap_seconds=60.0) as engine:
        await engine.update_weights(update)


def one_reads_and_another_has_its_copy(
    first: ServerProcess, second: ServerProcess, published: Path, in_memory: Path, old: Weights, new: Weights
) -> None:
    version = update_of(published, 1, new)
    within(lambda: load(first, version))
    shutil.rmtree(version.path)  # nobody can read it there any more
    assert {path.name for path in (in_memory / "v1").iterdir()} == {path.name for path in Path(new.path).iterdir()}
    within(lambda: load(second, version))
    within(lambda: load(second, update_of(published, 2, old)))
    assert [path.name for path in in_memory.glob("v*")] == ["v2"]


def test_two_servers_of_a_node_read_a_version_once(
    started: Callable[[str | None], ServerProcess], published: Path, in_memory: Path, old: Weights, new: Weights
) -> None:
    first = started(None)
    second = started(None)
    one_reads_and_another_has_its_copy(first, second, published, in_memory, old, new)
    first.process.kill()
    assert second.end() == 0
    wait_until(lambda: not in_memory.exists())


def test_nothing_stays_in_memory_when_every_server_is_killed(
    started: Callable[[str | None], ServerProcess], published: Path, in_memory: Path, new: Weights
) -> None:
    servers = [started(None), started(None)]
    version = update_of(published, 1, new)
    for server in servers:
        within(lambda: load(server, version))  # noqa: B023 - it is called at once
    for server in servers:
        server.process.kill()
    wait_until(lambda: not in_memory.exists())


def test_a_version_that_is_not_there_is_refused_and_the_server_goes_on(
    started: Callable[[str | None], ServerProcess], published: Path, in_memory: Path, new: Weights
) -> None:
    server = started(None)
    with pytest.raises(Exception, match="v7: the weights cannot be read"):
        within(lambda: load(server, WeightUpdate(7, str(published / "v7"))))
    within(lambda: load(server, update_of(published, 8, new)))
    assert server.end() == 0
    wait_until(lambda: not in_memory.exists())


@pytest.mark.slow
@pytest.mark.sglang
def test_sglang_and_our_server_share_a_copy(
    started: Callable[[str | None], ServerProcess],
    sglang_python: str,
    published: Path,
    in_memory: Path,
    old: Weights,
    new: Weights,
) -> None:
    sglang = started(sglang_python)
    ours = started(None)
    one_reads_and_another_has_its_copy(sglang, ours, published, in_memory, old, new)
    version = update_of(published, 3, new)
    within(lambda: load(ours, version))
    shutil.rmtree(version.path)
    within(lambda: load(sglang, version))
    ours.process.kill()
    os.kill(sglang.process.pid, 9)  # the whole server, whose guard ends the rest of it
    wait_until(lambda: not in_memory.exists())
