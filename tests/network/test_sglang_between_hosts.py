"""A real SGLang server on another host: TLS, its own warm-up and health check, a broadcast through a store's gate."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from arl.launch.child import PARENT
from arl.launch.trust import run_trust
from tests.engine.conftest import Weights, sglang_command
from tests.network.capture import captured, streams
from tests.network.namespaces import Network, network
from tests.network.test_strangers import address_of, complete, connect, held_in_the_clear, secrets_of
from tests.sync.sender import ThreadSender

pytestmark = [pytest.mark.sglang, pytest.mark.long]


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network(["engine"]) as made:
        yield made


def _end(server: "subprocess.Popen[str]") -> None:
    """End a server with everything it has started: its guard kills what is left."""
    tree = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    server.wait(timeout=120)
    psutil.wait_procs(tree, timeout=120)
    assert server.stdout is not None
    server.stdout.read()
    server.stdout.close()


def test_sglang_serves_tls_receives_a_broadcast_and_no_key_crosses_in_the_clear(
    hosts: Network,
    sglang_python: str,
    old: Weights,
    new: Weights,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = hosts.hosts["engine"]
    argv, environment = sglang_command(sglang_python, old.path, host.address)

    async def scene(url: str) -> None:
        sender = ThreadSender(old.path, host=hosts.address)
        async with connect(url, trust, sender.shared) as engine:
            before = await complete(engine, "before")
            await engine.update_weights(sender.publish(1, new.path))
            after = await complete(engine, "after")
        assert (set(before.policy_versions), set(after.policy_versions)) == ({0}, {1})

    with run_trust(tmp_path, [host.address]) as trust, captured(hosts.bridge, tmp_path / "run.pcap"):
        for name, value in {**trust.environment, **trust.secrets}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", hosts.bridge)
        given = {**os.environ, **environment, "GLOO_SOCKET_IFNAME": host.interface, "TMPDIR": str(tmp_path)}
        given.pop(PARENT, None)
        with (tmp_path / "log").open("w") as log:
            server = subprocess.Popen(host.argv(*argv), stdout=subprocess.PIPE, stderr=log, text=True, env=given)
        try:
            url = address_of(server)
            assert url.startswith(f"https://{host.address}:")
            listening = {address for address, _ in host.listeners() if not address.startswith("127.")}
            assert listening == {host.address}, "nothing of SGLang listens on every interface"
            asyncio.run(scene(url))
        finally:
            _end(server)
        wanted = secrets_of(trust)
    assert held_in_the_clear(streams(tmp_path / "run.pcap"), wanted) == set()
