"""A run between hosts: real trainer ranks and a real engine server, each in a network namespace, and a stranger in one.

this process: controller ── bridge ─┬─ "trainer": two ranks, which broadcast to the engine
          packets are captured here ├─ "engine": a server
                                    └─ "stranger": knows no key, and sends to every port
"""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from arl.config.recipe import TinyModel
from arl.engine.http.engine_client import HttpEngine
from arl.errors import EngineError, EngineLost
from arl.launch.address import HOST
from arl.launch.tls import CERTIFICATE, PRIVATE_KEY
from arl.launch.trust import RunTrust, run_trust
from arl.models.tiny import make_tiny_model
from arl.sync.group_sender import GroupSender
from arl.tasks import running_checksum
from arl.train.algorithms.grpo import GRPO
from arl.train.channel_access import client_keys, server_keys
from arl.train.trainer_client import TrainerClient
from arl.types import Completion, GenerateRequest, SamplingParams
from tests.engine.conftest import KEY, start_server
from tests.network.capture import Streams, captured, streams
from tests.network.listening import DOCUMENTED, Listening, documented_rows, listening
from tests.network.namespaces import Host, Network, network
from tests.train.synthetic import batch
from tests.train.workers import DEADLINES, forked, init

MESSAGES = int(os.environ.get("ARL_STRANGER_MESSAGES", "400"))
MANY = 10_000
STRANGER = Path(__file__).with_name("stranger.py")
VOCAB = len(running_checksum.CHARACTERS) + 3


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with network(["trainer", "engine", "stranger"]) as made:
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


def connect(url: str, trust: RunTrust, sender: GroupSender | None = None) -> HttpEngine:
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

    trust: RunTrust
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
        trust = stack.enter_context(run_trust(directory, [hosts.address]))
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


async def complete(engine: HttpEngine, name: str) -> Completion:
    sampling = SamplingParams(max_new_tokens=40, temperature=1.0, seed=7)
    increments = [one async for one in engine.generate(GenerateRequest(name, (1, 2, 3), sampling))]
    ids = tuple(token for one in increments for token in one.token_ids)
    logprobs = tuple(logprob for one in increments for logprob in one.logprobs)
    versions = tuple(version for one in increments for version in one.policy_versions)
    return Completion(ids, logprobs, versions, increments[-1].finish_reason or "abort")


async def results(run: Run, number: int) -> list[Any]:
    """Answer a request, train a step, load its weights into the engine over the network, and answer again."""
    before = await complete(run.engine, f"before {number}")
    step = await run.trainer.step(batch(4 + number, groups=4, size=4, seed=number))
    await run.engine.update_weights(await run.trainer.weights(5 + number))
    after = await complete(run.engine, f"after {number}")
    learned = {name: value for name, value in step.metrics.items() if name.startswith(("loss", "train/", "update/"))}
    return [before, learned, after]


def stranger(hosts: Network, run: Run, count: int, replays: dict[int, list[bytes]]) -> dict[str, Any]:
    """Send `count` messages to the ports of the run, and return what came back."""
    given = {
        "places": run.places,
        "count": count,
        "seed": 3,
        "replays": {port: [one.hex() for one in sent] for port, sent in replays.items()},
    }
    done = subprocess.run(
        hosts.hosts["stranger"].argv(sys.executable, str(STRANGER)),
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def replays_of(found: Streams, run: Run) -> dict[int, list[bytes]]:
    """Return what clients have sent, by the port of the server."""
    sent: dict[int, list[bytes]] = {}
    for (_, target), data in found.items():
        if target in run.places:
            sent.setdefault(target[1], []).append(data[:50_000])
    return sent


def secrets_of(trust: RunTrust) -> dict[str, bytes]:
    """Return everything that must not cross the network, under its name."""
    assert trust.directory is not None
    private = (trust.directory / PRIVATE_KEY).read_text()
    body = "".join(private.splitlines()[1:-1])
    return {
        "run key": trust.key.encode(),
        "run key in base64": base64.b64encode(trust.key.encode()),
        "run key as bytes": bytes.fromhex(trust.key),
        "private key of the certificate": base64.b64decode(body)[-60:],
        "private key in its file": body[:40].encode(),
        "CURVE server": server_keys(trust.key).secret,
        "CURVE client": client_keys(trust.key).secret,
        "CURVE server, public": server_keys(trust.key).public,
    }


def held_in_the_clear(found: Streams, wanted: dict[str, bytes]) -> set[str]:
    return {name for name, secret in wanted.items() for data in found.values() if secret in data}


def scene(hosts: Network, model: Path, directory: Path, count: int) -> None:
    """Compare rounds beside a stranger with the same rounds on loopback, without one; search what was captured.

    The sockets of the run are those that docs/security.md lists.
    """

    async def undisturbed() -> list[Any]:
        trust = RunTrust(KEY)
        first = msgspec.structs.replace(init(model, directory / "undisturbed"), transport="broadcast")
        server = start_server(str(model), directory / "undisturbed.log")
        try:
            async with forked(first, 2) as (trainer, _):
                async with connect(server.url, trust, GroupSender(trainer, 120.0)) as engine:
                    rounds = [await results(Run(trust, trainer, engine), number) for number in range(3)]
                await trainer.stop()
                return rounds
        finally:
            server.process.kill()
            server.process.wait()

    async def disturbed() -> list[Any]:
        file = directory / "run.pcap"
        before = listening(hosts, {os.getpid(): "controller"})  # of what other tests keep in this process
        async with run_between(hosts, model, directory) as run:
            rounds = [await results(run, 0)]
            open_sockets = await asyncio.to_thread(listening, hosts, run.roles)
            assert open_sockets - before == sum(map(Counter, DOCUMENTED.values()), Counter[Listening]())
            place = asyncio.to_thread(stranger, hosts, run, count, replays_of(streams(file), run))
            attack = asyncio.create_task(place)
            rounds.append(await results(run, 1))
            report = await attack
            rounds.append(await results(run, 2))
            _check_answers(report, count)
            wanted.update(secrets_of(run.trust))
            places.update(run.places)
        return rounds

    wanted: dict[str, bytes] = {}
    places: set[tuple[str, int]] = set()
    assert documented_rows() >= DOCUMENTED.keys()
    expected = asyncio.run(undisturbed())
    with captured(hosts.bridge, directory / "run.pcap"):
        rounds = asyncio.run(disturbed())
    assert rounds == expected
    found = streams(directory / "run.pcap")
    assert len(places) == 2, "the channel of the trainer, and the server"
    for place in places:
        assert any(target == place for _, target in found), f"{place} carried nothing"
    assert held_in_the_clear(found, wanted) == set()


def _check_answers(report: dict[str, Any], count: int) -> None:
    """A stranger reads refusals, handshakes, and nothing else."""
    assert report["sent"] == count
    for kind, answers in report["answers"].items():
        for answer in answers:
            is_refused = answer.startswith(("HTTP/1.1 40", "HTTP/1.0 400"))
            is_error = answer in ("", "SSLError", "ConnectionResetError", "TimeoutError", "BrokenPipeError")
            is_alert = answer.startswith("\x15\x03")  # of TLS
            is_hello = answer.startswith("\x16\x03")  # of TLS, to a replayed one
            is_greeting = answer.startswith("\xff\0\0\0\0\0\0\0\x01\x7f") and len(answer) <= 64  # of ZeroMQ
            assert is_refused or is_error or is_alert or is_hello or is_greeting or "SSL" in answer, (
                kind,
                answer[:300],
            )
    assert any(answer.startswith("HTTP/1.1 401") for answer in report["answers"]["https"])


def test_a_stranger_changes_reads_and_stops_nothing_and_no_key_crosses_in_the_clear(
    hosts: Network, model: Path, tmp_path: Path
) -> None:
    scene(hosts, model, tmp_path, MESSAGES)


@pytest.mark.long
def test_nor_does_one_who_sends_ten_thousand_messages(hosts: Network, model: Path, tmp_path: Path) -> None:
    scene(hosts, model, tmp_path, MANY)


def test_without_tls_the_same_capture_holds_the_key_and_our_client_does_not_send_it(
    hosts: Network, model: Path, tmp_path: Path
) -> None:
    trust = RunTrust("0123456789abcdef" * 3)
    host = hosts.hosts["engine"]

    async def ask(url: str) -> None:
        with pytest.raises(EngineError, match="the run's key would cross the network in the clear"):
            async with connect(url, trust):
                pass
        headers = {"Authorization": f"Bearer {trust.key}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/model_info") as response:
            assert response.status == 200

    secrets = {**trust.environment, **trust.secrets}
    file = tmp_path / "plain.pcap"
    with captured(hosts.bridge, file), started(host, server_argv(model, host), secrets, tmp_path / "log") as server:
        asyncio.run(ask(address_of(server)))
    assert held_in_the_clear(streams(file), {"run key": trust.key.encode()}) == {"run key"}


def test_another_certificate_an_old_key_and_plain_http_are_refused(hosts: Network, model: Path, tmp_path: Path) -> None:
    host = hosts.hosts["engine"]

    async def ask(url: str, trust: RunTrust, old: RunTrust) -> None:
        async with connect(url, trust):
            pass
        with pytest.raises(EngineError, match="shows another certificate than the one of this run") as refused:
            async with connect(url, old):
                pass
        assert not isinstance(refused.value, EngineLost), "another server would show the same"
        with pytest.raises(EngineError, match=r"401.*this server needs its run key"):
            async with connect(url, RunTrust(old.key, trust.directory)):
                pass
        with pytest.raises(EngineError, match="its certificate is not known"):
            async with connect(url, RunTrust(trust.key)):
                pass
        plain = url.replace("https", "http")
        with pytest.raises(EngineError, match="in the clear"):
            async with connect(plain, trust):
                pass
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{plain}/model_info")

    with run_trust(tmp_path / "old", [host.address]) as old, run_trust(tmp_path / "new", [host.address]) as trust:
        secrets = {**trust.environment, **trust.secrets}
        with started(host, server_argv(model, host), secrets, tmp_path / "log") as server:
            asyncio.run(ask(address_of(server), trust, old))
        assert trust.directory is not None
        assert (trust.directory.stat().st_mode & 0o777) == 0o700
        assert {path.stat().st_mode & 0o777 for path in trust.directory.iterdir()} == {0o600}
        assert {path.name for path in trust.directory.iterdir()} == {CERTIFICATE, PRIVATE_KEY}
    assert not trust.directory.exists(), "it is removed with the run"
