"""What processes print of their secrets, which no log and no message shows."""

import asyncio
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from arl.launch.address import HOST
from arl.launch.base import Command, Resources
from arl.launch.hidden_secrets import HIDDEN, LEAST_SECRET, HiddenSecrets
from arl.launch.local import LocalLauncher
from arl.launch.ray.child_actor import ChildActor
from arl.launch.secrets_file import written_secrets
from arl.launch.slurm import step_runner
from arl.launch.slurm.step_file import write_step_file
from arl.launch.slurm.step_runner import MARK

# Of two letters, so that secrets begin, overlap and repeat inside of each other and of themselves.
SECRETS = st.lists(st.text("ab", min_size=LEAST_SECRET, max_size=LEAST_SECRET + 4), min_size=1, max_size=3)
PIECES = st.lists(st.text("ab\n", max_size=20).map(str.encode), max_size=10)
PRINT_IN_TWO_PIECES = """
import os, sys
value = os.environ["MY_PASSWORD"]
sys.stdout.write("settings: password=" + value[:5])
sys.stdout.flush()
sys.stdin.read()
sys.stdout.write(value[5:] + " of mine\\n" + value[:4])
sys.exit(3)
"""
SECRET = "sword=fish"
SHOWN_LINE = f"settings: password={HIDDEN} of mine"
SHOWN = f"{SHOWN_LINE}\nswor".encode()


def hidden(secrets: list[str], pieces: list[bytes]) -> bytes:
    output = HiddenSecrets(secrets)
    taken = [output.take(piece) for piece in pieces]
    return b"".join([*taken, output.rest()])


@given(SECRETS, PIECES)
def test_however_output_is_cut_into_pieces_the_same_is_hidden_and_no_secret_is_left(
    secrets: list[str], pieces: list[bytes]
) -> None:
    output = hidden(secrets, pieces)
    assert output == hidden(secrets, [b"".join(pieces)])
    assert not any(secret in output.decode() for secret in secrets)


@given(SECRETS, st.lists(st.sampled_from(["said ", "\n", "="]), max_size=8), st.data())
def test_what_is_no_secret_is_printed_as_it_is(secrets: list[str], words: list[str], data: st.DataObject) -> None:
    shown = "".join(words)
    secret = data.draw(st.sampled_from(secrets))
    assert hidden(secrets, [shown.encode(), secret.encode(), b"=" + shown.encode()]).decode().startswith(shown + HIDDEN)
    assert hidden(secrets, [shown.encode()]).decode() == shown


@given(PIECES)
def test_without_secrets_and_for_short_values_nothing_is_hidden_or_held_back(pieces: list[bytes]) -> None:
    for secrets in ([], ["ab"]):
        output = HiddenSecrets(secrets)
        assert [output.take(piece) for piece in pieces] == pieces
        assert output.rest() == b""


def test_a_whole_line_is_never_held_back() -> None:
    output = HiddenSecrets(["swordfish"])
    assert output.take(b"ready http://127.0.0.1:1\n") == b"ready http://127.0.0.1:1\n"


def printing_command() -> Command:
    return Command((sys.executable, "-c", PRINT_IN_TWO_PIECES), {HOST: "127.0.0.1"}, {"MY_PASSWORD": SECRET})


def test_neither_the_log_of_a_process_nor_the_message_about_its_end_shows_its_secrets(tmp_path: Path) -> None:
    lines: list[str] = []

    async def run() -> str:
        async with LocalLauncher(tmp_path, patience=5.0) as launcher:
            process = await launcher.start("engine-0", printing_command(), Resources(1), lines.append)
            return str(await process.died())

    message = asyncio.run(run())
    assert (tmp_path / "engine-0.log").read_bytes() == SHOWN
    assert lines == [SHOWN_LINE]
    assert SHOWN_LINE in message and SECRET not in message


def test_a_runner_of_slurm_hides_them_on_the_node(tmp_path: Path) -> None:
    file = write_step_file(tmp_path, "engine-0", printing_command(), {}, "127.0.0.1")
    runner = [sys.executable, "-I", "-S", str(step_runner.__file__), str(file)]
    with subprocess.Popen(runner, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first, *rest = process.stdout.read().splitlines(keepends=True)  # to the end, while its input is still open
    assert first.startswith(f"{MARK}pid ".encode())
    assert b"".join(rest) == SHOWN + f"{MARK}ended 3\n".encode()


def test_an_actor_of_ray_hides_them_on_the_node(tmp_path: Path) -> None:
    async def run() -> bytes:
        actor = ChildActor()
        command = printing_command()
        with written_secrets(tmp_path, command.secrets) as secrets:
            await actor.start(command.argv, command.environment, str(secrets), str(tmp_path))
        output = b""
        while piece := await actor.read(len(output)):
            output += piece
        await actor.wait()
        await actor.end()
        return output

    assert asyncio.run(run()) == SHOWN
