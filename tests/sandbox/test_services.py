"""Services run programs by the same protocol as this machine."""

from collections.abc import Iterator

import pytest

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.base import Program, Sandbox
from arl.sandbox.current import open_sandbox
from arl.sandbox.remote import SERVICE_OUTPUT
from tests.sandbox.services import KEY, serve
from tests.sandbox.test_sandbox import ASK, ECHO


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, list[str]]]:
    with serve() as served:
        yield served


@pytest.fixture(params=["fusion", "e2b"])
def remote(
    request: pytest.FixtureRequest, service: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sandbox]:
    monkeypatch.setenv("ARL_SANDBOX_KEY", KEY)
    opened = open_sandbox(SandboxSection(kind=request.param, url=service[0]))
    yield opened
    opened.close()
    assert request.param == "fusion" or service[1][-1] == "/sandboxes/s1"


def test_a_service_runs_programs_within_their_limits(remote: Sandbox) -> None:
    remote.write("value.py", b"value = 6")
    code = "from value import value; print(value * int(input()), open('a').read())"
    done = remote.run(Program(code=f"import sys; sys.path.append('.'); {code}", stdin="7", files={"a": b"file"}))
    assert (done.outcome, done.stdout, done.stderr) == ("done", "42 file\n", "")
    assert remote.run(Program(code="while True: pass", seconds=0.5)).outcome == "time"
    assert remote.run(Program(code="[0] * 10**9", memory_mb=256)).outcome == "memory"
    failed = remote.run(Program(code="import sys; sys.exit(3)"))
    assert (failed.outcome, failed.exit_code) == ("error", 3)
    cut = remote.run(Program(code="while True: print('x' * 10**5)"))
    assert (cut.outcome, len(cut.stdout)) == ("output", SERVICE_OUTPUT)
    assert remote.run(Program(command=("/bin/echo", "hello"))).stdout == "hello\n"


def test_a_service_runs_peers_and_keeps_no_interpreter(remote: Sandbox) -> None:
    assert remote.run(Program(code=ASK), Program(code=ECHO)).stdout == "QUESTION\n"
    with pytest.raises(SandboxError, match="take bubblewrap"):
        remote.shell(seconds=1, memory_mb=256)


def test_what_is_wrong_with_a_service_is_said(service: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARL_SANDBOX_KEY", "another")
    for kind in ("fusion", "e2b"):
        with pytest.raises(SandboxError, match=r"(?s)gave 401.*is ARL_SANDBOX_KEY its key\?"):
            open_sandbox(SandboxSection(kind=kind, url=service[0])).run(Program(code="1"))
        with pytest.raises(SandboxError, match=r"Connection refused.*sandbox\.url"):
            open_sandbox(SandboxSection(kind=kind, url="http://127.0.0.1:9")).run(Program(code="1"))
        with pytest.raises(SandboxError, match=r"sandbox\.url: required with sandbox\.kind"):
            open_sandbox(SandboxSection(kind=kind))


@pytest.mark.parametrize(
    "section",
    [{"url": "http://here"}, {"kind": "fusion", "url": "http://here", "unsafe": True}],
)
def test_a_setting_of_another_home_is_refused(section: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"sandbox\.(url|unsafe)"):
        SandboxSection.model_validate(section)
