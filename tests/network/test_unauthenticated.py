"""A run between hosts: real trainer ranks and a real engine server, each in a network namespace.

this process: controller ── bridge ─┬─ "trainer": two ranks, which broadcast to the engine
                                    └─ "engine": a server
"""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
from arl.train.trainer_client import TrainerClient
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
def started(host: Host, argv: list[str], environment: dict[str, str], log: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a module of arl on a host; it is killed at the end if it still runs."""
    ours = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        HOST: host.address,
        "GLOO_SOCKET_IFNAME": host.interface,
        **environment,
    }
    with log.open("w") as errors:
        process = subprocess.Popen(
            host.argv(sys.executable, "-m", *argv), stdout=subprocess.PIPE, stderr=errors, text=True, env=ours
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def server_argv(model: Path, host: Host) -> list[str]:
    arguments = ["--model", str(model), "--host", host.address, "--port", "0", "--threads", "1", "--slots", "8"]
    return ["arl.engine.embedded.server", *arguments, "--dtype", "float32"]


def address_of(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    return next(line.split()[1] for line in server.stdout if line.startswith("ready "))


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
    roles: Mapping[int, str] = field(default_factory=dict)  # by pid
    places: Sequence[tuple[str, int]] = ()  # the channel of the trainer, and the server


@contextlib.asynccontextmanager
async def run_between(hosts: Network, model: Path, directory: Path) -> AsyncIterator[Run]:
    first = msgspec.structs.replace(init(model, directory / "published"), transport="broadcast")
    place = hosts.hosts["trainer"]
    with contextlib.ExitStack() as stack:
        others = set(hosts.listeners())
        trust = stack.enter_context(run_secrets(directory, [hosts.address]))
        secrets = {**trust.environment, **trust.secrets}
        server = server_argv(model, hosts.hosts["engine"])
        engine = stack.enter_context(started(hosts.hosts["engine"], server, secrets, directory / "engine.log"))
        roles = {os.getpid(): "controller", engine.pid: "engine"}
        url = await asyncio.to_thread(address_of, engine)
        async with TrainerClient(first, GRPO(), 2, trust, DEADLINES, host=hosts.address) as trainer:
            places = sorted(set(hosts.listeners()) - others)
            for rank in range(2):
                numbers = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
                environment = {**trainer.environment, **trainer.secrets, **numbers}
                log = directory / f"rank-{rank}.log"
                process = stack.enter_context(started(place, ["arl.train.rank"], environment, log))
                roles[process.pid] = f"rank {rank}"
            await trainer.ready()
            async with connect(url, trust, GroupSender(trainer, 120.0)) as client:
                yield Run(trust, trainer, client, roles, places)
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


def test_whoever_knows_no_key_is_refused_on_every_socket_of_a_run_and_none_listens_elsewhere(
    hosts: Network, model: Path, tmp_path: Path
) -> None:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE

    async def scene() -> None:
        before = listening(hosts, {os.getpid(): "controller"})  # of what other tests keep in this process
        async with run_between(hosts, model, tmp_path) as run:
            step = await run.trainer.step(batch(4, groups=4, size=4, seed=0))
            await run.engine.update_weights(await run.trainer.weights(5))
            assert step.version == run.engine.loaded_version == 5
            assert await asyncio.to_thread(listening, hosts, run.roles) - before == SOCKETS
            refusals = []
            for place in run.places:
                plain = await asyncio.to_thread(exchange, place, REQUEST)
                assert not plain.startswith(b"HTTP/1.1 200"), "no plain HTTP"
                answer = await asyncio.to_thread(exchange, place, REQUEST, anybody)
                greeting = await asyncio.to_thread(exchange, place, WITHOUT_KEYS)
                assert len(greeting) <= 64, "no more than the greeting of ZeroMQ"
                refusals.append(answer.partition(b"\r\n")[0])
            assert sorted(refusals) == [b"", b"HTTP/1.1 401 Unauthorized"], "the channel, and the server"

    asyncio.run(scene())


def test_another_certificate_an_old_key_and_plain_http_are_refused(hosts: Network, model: Path, tmp_path: Path) -> None:
    host = hosts.hosts["engine"]

    async def ask(url: str, trust: RunSecrets, old: RunSecrets) -> None:
        async with connect(url, trust):
            pass
        with pytest.raises(EngineError, match="shows another certificate than the one of this run") as refused:
            async with connect(url, old):
                pass
        assert not isinstance(refused.value, EngineLost), "another server would show the same"
        with pytest.raises(EngineError, match=r"401.*this server needs its run key"):
            async with connect(url, RunSecrets(old.key, trust.directory)):
                pass
        with pytest.raises(EngineError, match="its certificate is not known"):
            async with connect(url, RunSecrets(trust.key)):
                pass
        plain = url.replace("https", "http")
        with pytest.raises(EngineError, match="in the clear"):
            async with connect(plain, trust):
                pass
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{plain}/model_info")

    with run_secrets(tmp_path / "old", [host.address]) as old, run_secrets(tmp_path / "new", [host.address]) as trust:
        secrets = {**trust.environment, **trust.secrets}
        with started(host, server_argv(model, host), secrets, tmp_path / "log") as server:
            asyncio.run(ask(address_of(server), trust, old))
        assert trust.directory is not None
        assert (trust.directory.stat().st_mode & 0o777) == 0o700
        assert {path.stat().st_mode & 0o777 for path in trust.directory.iterdir()} == {0o600}
        assert {path.name for path in trust.directory.iterdir()} == {CERTIFICATE, PRIVATE_KEY, KEY}
    assert not trust.directory.exists(), "it is removed with the run"
