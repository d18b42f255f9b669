"""A sandbox runs programs within their limits, keeps peers apart, and keeps interpreters."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.base import MAX_OUTPUT, RESTARTED, Program, Sandbox
from arl.sandbox.bubblewrap import BubblewrapSandbox
from tests.processes import below
from tests.sandbox.attacks import SCANNER

ECHO = """
import os
reader, writer = int(os.environ["ARL_PEER_READ"]), int(os.environ["ARL_PEER_WRITE"])
while data := os.read(reader, 1000):
    os.write(writer, data.upper())
"""
ASK = """
import os
os.write(int(os.environ["ARL_PEER_WRITE"]), b"question")
print(os.read(int(os.environ["ARL_PEER_READ"]), 1000).decode())
"""


@pytest.fixture(scope="module", params=["bubblewrap", "unsafe"])
def home(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if request.param == "bubblewrap":
        yield request.getfixturevalue("sandbox")
        return
    opened = BubblewrapSandbox(SandboxSection(unsafe=True))
    yield opened
    opened.close()


def test_a_program_has_its_input_and_its_files_and_reports_how_it_ended(home: Sandbox) -> None:
    home.write("kept/value.py", b"value = 6")
    code = "import sys; sys.path.append('kept'); from value import value; print(value * int(input()), open('a').read())"
    result = home.run(Program(code=code, stdin="7", files={"a": b"file"}))
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == ("done", 0, "42 file\n", "")
    failed = home.run(Program(code="def f():\n    raise ValueError('é')\nf()"))
    assert (failed.outcome, failed.exit_code) == ("error", 1)
    assert failed.stderr.splitlines()[1:3] == ['  File "program.py", line 3, in <module>', "    f()"]
    assert failed.stderr.endswith("ValueError: é\n")
    assert home.run(Program(code="import sys; sys.exit('reason')")).stderr == "reason\n"
    assert home.run(Program(code="x = [0] * 10**9", memory_mb=128)).outcome == "memory"
    assert home.run(Program(command=("/bin/sh", "-c", "echo $((6 * 7)); exit 3"))).exit_code == 3
    assert "cannot be started" in home.run(Program(command=("/no/program",))).stderr


def test_peers_share_two_pipes_and_end_together(home: Sandbox) -> None:
    assert home.run(Program(code=ASK), Program(code=ECHO)).stdout == "QUESTION\n"
    alone = home.run(Program(code="print('done')"), Program(code="while True: pass"))
    assert alone.stdout == "done\n" and alone.seconds < 5


def test_a_program_finds_no_trace_of_its_peer_nor_of_earlier_programs(sandbox: BubblewrapSandbox) -> None:
    secret = Program(code=f"hidden = 'hidden{'0123456789' * 2}'[:22]\nimport time; time.sleep(60)", seconds=0.2)
    scanner = Program(code=f"import ctypes, os, sys\nlibc = ctypes.CDLL(None)\n{SCANNER}", memory_mb=1024)
    assert sandbox.run(secret).outcome == "time"
    assert sandbox.run(scanner, secret).stdout == " []\n"


def test_a_peer_that_cannot_start_is_a_fault_of_the_sandbox(sandbox: BubblewrapSandbox) -> None:
    with pytest.raises(SandboxError, match="No space left"):
        sandbox.run(Program(code=ASK), Program(code=ECHO, files={"large": bytes(65 << 20)}))


def test_a_large_output_arrives_whole_up_to_its_limit(home: Sandbox) -> None:
    whole = home.run(Program(code=f"print('x' * {MAX_OUTPUT - 1})"))
    assert (whole.outcome, len(whole.stdout)) == ("done", MAX_OUTPUT)
    cut = home.run(Program(code=f"print('x' * {MAX_OUTPUT})"))
    assert (cut.outcome, len(cut.stdout)) == ("output", MAX_OUTPUT)


def test_a_shell_keeps_its_variables_and_prints_as_a_notebook(home: Sandbox) -> None:
    shell = home.shell(seconds=5, memory_mb=256)
    assert shell.run("import math\nx = 40; x + 2").stdout == "42\n"
    failed = shell.run("print(x)\nmath.sqrt(-1)")
    assert (failed.outcome, failed.stdout) == ("error", "40\n")
    assert failed.stderr.endswith("ValueError: math domain error\n")
    assert shell.run("x = 1").stdout == ""
    assert shell.run("x").stdout == "1\n"
    shell.close()


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("while True: pass", "time"),
        ("import os; os._exit(3)", "error"),
        ("print('x' * 10**7)", "output"),
        ("import os; os.closerange(3, 64)\nwhile True: pass", "time"),
    ],
)
def test_a_shell_that_ends_begins_anew_and_says_so(home: Sandbox, code: str, outcome: str) -> None:
    shell = home.shell(seconds=0.5, memory_mb=256)
    shell.run("x = 1")
    assert shell.run(code).outcome == outcome
    again = shell.run("x")
    assert again.stderr.startswith(RESTARTED) and again.stderr.endswith("NameError: name 'x' is not defined\n")
    assert shell.run("2").stderr == ""
    shell.close()


def states() -> list[str]:
    """Return the states of the processes below this one: R runs, S sleeps, T is stopped."""
    return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in below(os.getpid())]


def test_an_idle_shell_uses_no_time(sandbox: BubblewrapSandbox) -> None:
    shell = sandbox.shell(seconds=5, memory_mb=256)
    shell.run("import threading\ndef count():\n    global n\n    n = 0\n    while True: n += 1")
    shell.run("threading.Thread(target=count, daemon=True).start()")
    end = time.monotonic() + 10
    while "T" not in states() and time.monotonic() < end:
        """Its watcher stops it."""
    assert "T" in states()
    assert shell.run("n > 0").stdout == "True\n"
    shell.close()


def test_many_shells_are_open_at_once(sandbox: BubblewrapSandbox) -> None:
    shells = [sandbox.shell(seconds=10, memory_mb=256) for _ in range(50)]
    for number, shell in enumerate(shells):
        shell.run(f"x = {number}")
    assert [shell.run("x").stdout for shell in shells] == [f"{number}\n" for number in range(50)]
    for shell in shells:
        shell.close()


def test_a_server_that_dies_or_hangs_is_started_again(
    sandbox: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = BubblewrapSandbox()
    for number in (signal.SIGKILL, signal.SIGSTOP):
        monkeypatch.setattr("arl.sandbox.bubblewrap.GRACE_SECONDS", 0.5)
        server = own._server
        assert server is not None
        os.kill(below(server._process.pid)[0], number)
        assert own.run(Program(code="print(1)", seconds=1)).stdout == "1\n"
    own.close()


def test_threads_share_a_sandbox(home: Sandbox) -> None:
    with ThreadPoolExecutor(8) as threads:
        programs = [Program(code=f"print({number} ** 2)") for number in range(40)]
        assert [int(result.stdout) for result in threads.map(home.run, programs)] == [n**2 for n in range(40)]


def test_closing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    processes = below(os.getpid())
    files = len(os.listdir("/proc/self/fd"))
    for section in (SandboxSection(), SandboxSection(unsafe=True)):
        if not section.unsafe and not shutil.which("bwrap"):
            continue
        opened = BubblewrapSandbox(section)
        opened.run(Program(code="import os; os.setsid() if os.getpid() > 1 and os.fork() == 0 else 0", seconds=1))
        opened.close()
    assert set(below(os.getpid())) <= set(processes)  # what an earlier test has left may end meanwhile
    assert len(os.listdir("/proc/self/fd")) == files


def test_what_is_missing_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"apt install bubblewrap.*sandbox.unsafe: true"):
        BubblewrapSandbox()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(SandboxError, match=r"No permissions to create new namespace.*sysctl.*sandbox.unsafe: true"):
        BubblewrapSandbox()


@pytest.mark.slow
def test_ten_thousand_runs_leave_nothing(sandbox: BubblewrapSandbox) -> None:
    program = Program(code="open('a', 'w').write('x')\nprint(sum(range(10)), hash('a'), sorted({'b', 'a'}))")
    expected = sandbox.run(program)
    assert expected.outcome == "done"
    files = len(os.listdir("/proc/self/fd"))
    before = set(below(os.getpid()))  # the watcher of the first run may be among them
    with ThreadPoolExecutor(2) as threads:
        results = threads.map(sandbox.run, [program] * 10_000)
        assert not [each for each in results if (each.outcome, each.stdout) != ("done", expected.stdout)]
    end = time.monotonic() + 10
    while set(below(os.getpid())) - before and time.monotonic() < end:
        """Watchers end."""
    assert not set(below(os.getpid())) - before and len(os.listdir("/proc/self/fd")) == files
