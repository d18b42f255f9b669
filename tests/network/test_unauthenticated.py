"""A run between hosts: real trainer ranks and a real engine server, each in a network namespace.

this process: controller ── bridge ─┬─ "trainer": two ranks, which broadcast to the engine
                                    └─ "engine": a server
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from arl.config.recipe import TinyModel
from arl.engine.http.engine_client import HttpEngine
from arl.errors import EngineError, EngineLost
from arl.launch.network import CERTIFICATE, HOST, PRIVATE_KEY
from arl.launch.run_secrets import KEY, RunSecrets, run_secrets
from arl.models.tiny import make_tiny_model
from arl.sync.group_sender import GroupSender
from arl.tasks import running_checksum
from arl.train.algorithms.advantage import GRPO
from arl.train.channel import ADDRESS
from arl.train.trainer_client import TrainerClient
from tests.forks import Fork, pipe
from tests.network.listening import SOCKETS, listening
from tests.network.namespaces import Host, Network, network
from tests.train.synthetic import batch
from tests.train.workers import DEADLINES, init

SECONDS = 1.0  # for an answer to an unauthenticated caller
REQUEST = b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
WITHOUT_KEYS = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + b"\0" * 32  # a greeting of ZeroMQ
VOCAB = len(running_checksum.CHARACTERS) + 3


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with network(["trainer", "engine"]) as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny_model(TinyModel(), running_checksum.CHARACTERS, seed=1, directory=directory)
    return directory


@contextlib.contextmanager
def started(host: Host, argv: list[str], environment: dict[str, str]) -> Iterator[tuple[Fork, TextIO]]:
    """Run a module of arl on a host, and yield what it prints as well; it is killed at the end if it still runs."""
    ours = {"OMP_NUM_THREADS": "1", HOST: host.address, "GLOO_SOCKET_IFNAME": host.interface}
    printed, output = pipe()
    process = Fork("tests.network.entered", [host.name, *argv], os.environ | ours | environment, output=output)
    with printed:
        try:
            yield process, printed
        finally:
            process.kill()
            process.wait()


def server_argv(model: Path, host: Host) -> list[str]:
    arguments = ["--model", str(model), "--host", host.address, "--port", "0", "--threads", "1", "--slots", "8"]
    return ["arl.engine.embedded.server", *arguments, "--dtype", "float32"]


def connect(url: str, trust: RunSecrets, sender: GroupSender | None = None) -> HttpEngine:
    return HttpEngine(
        url,
        generate_seconds=120.0,
        swap_seconds=120.0,
        key=trust.key,
        certificate=trust.certificate,
        vocab_size=VOCAB,
        context=512,
        sender=sender,
    )


@dataclass
class Run:
    """Hold the parts of a run between hosts."""

    trust: RunSecrets
    trainer: TrainerClient
    engine: HttpEngine
    url: str  # of the server
    roles: Mapping[int, str]  # by pid

    @property
    def places(self) -> list[tuple[str, int]]:
        """Return address and port of the server and of the trainer's channel."""
        urls = [urlsplit(url) for url in (self.url, self.trainer.environment[ADDRESS])]
        return [(url.hostname or "", url.port or 0) for url in urls]


@contextlib.asynccontextmanager
async def run_between(hosts: Network, model: Path, directory: Path) -> AsyncIterator[Run]:
    first = msgspec.structs.replace(init(model, directory / "published"), transport="broadcast")
    place = hosts.hosts["engine"]
    with contextlib.ExitStack() as stack:
        trust = stack.enter_context(run_secrets(directory, [hosts.address]))
        secrets = {**trust.environment, **trust.secrets}
        engine, printed = stack.enter_context(started(place, server_argv(model, place), secrets))
        roles = {os.getpid(): "controller", engine.pid: "engine"}
        async with TrainerClient(first, GRPO(), 2, trust, DEADLINES, host=hosts.address) as trainer:
            for rank in range(2):
                numbers = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
                environment = {**trainer.environment, **trainer.secrets, **numbers}
                process, _ = stack.enter_context(started(hosts.hosts["trainer"], ["arl.train.rank"], environment))
                roles[process.pid] = f"rank {rank}"
            await trainer.ready()
            url = next(line.split()[1] for line in printed if line.startswith("ready "))
            async with connect(url, trust, GroupSender(trainer)) as client:
                yield Run(trust, trainer, client, url, roles)
            await trainer.stop()


def exchange(place: tuple[str, int], data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send `data`, and return what comes back until the connection is closed or silent."""
    answer = b""
    with socket.create_connection(place, timeout=10) as plain, contextlib.suppress(OSError):
        plain.settimeout(SECONDS)
        with tls.wrap_socket(plain) if tls else plain as connection:
            connection.sendall(data)
            while piece := connection.recv(4096):
                answer += piece
    return answer


async def refusals(run: Run) -> list[bytes]:
    """Speak to every socket without a key; return what is answered behind a certificate that nobody has checked."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    kinds = [(REQUEST, None), (WITHOUT_KEYS, None), (REQUEST, anybody)]
    asked = [asyncio.to_thread(exchange, place, data, tls) for place in run.places for data, tls in kinds]
    answers = await asyncio.gather(*asked)
    for plain, greeting in (answers[:2], answers[3:5]):
        assert not plain.startswith(b"HTTP/1.1 200"), "no plain HTTP"
        assert len(greeting) <= 64, "no more than the greeting of ZeroMQ"
    return [answers[2].partition(b"\r\n")[0], answers[5].partition(b"\r\n")[0]]


async def check_clients(url: str, trust: RunSecrets, old: RunSecrets) -> None:
    """Connect with what is not of this run."""
    plain = url.replace("https", "http")
    refused = {
        "shows another certificate than the one of this run": (url, old),
        "401.*this server needs its run key": (url, RunSecrets(old.key, trust.directory)),
        "its certificate is not known": (url, RunSecrets(trust.key)),
        "in the clear": (plain, trust),
    }
    for message, (address, secrets) in refused.items():
        with pytest.raises(EngineError, match=message) as caught:
            async with connect(address, secrets):
                pass
        assert not isinstance(caught.value, EngineLost), "another server would show the same"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"{plain}/model_info")


def test_whoever_knows_no_key_is_refused_on_every_socket_of_a_run_and_none_listens_elsewhere(
    hosts: Network, model: Path, tmp_path: Path
) -> None:
    async def scene() -> Path | None:
        before = listening(hosts, {os.getpid(): "controller"})  # of what other tests keep in this process
        async with run_between(hosts, model, tmp_path) as run:
            step = await run.trainer.step(batch(4, groups=4, size=4, seed=0))
            await run.engine.update_weights(await run.trainer.weights(5))
            assert step.version == run.engine.loaded_version == 5
            assert await asyncio.to_thread(listening, hosts, run.roles) - before == SOCKETS
            assert await refusals(run) == [b"HTTP/1.1 401 Unauthorized", b""], "the server, and the channel"
            with run_secrets(tmp_path / "old", [hosts.address]) as old:
                await check_clients(run.url, run.trust, old)
            secrets = run.trust.directory
            assert secrets is not None
            assert secrets.stat().st_mode & 0o777 == 0o700
            assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o600}
            assert {path.name for path in secrets.iterdir()} == {CERTIFICATE, PRIVATE_KEY, KEY}
        return secrets

    secrets = asyncio.run(scene())
    assert secrets is not None
    assert not secrets.exists(), "they are removed with the run"
