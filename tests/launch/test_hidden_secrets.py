"""What processes print of their secrets, which no log and no message shows."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from arl.launch.base import Command, Resources
from arl.launch.hidden_secrets import HIDDEN, LEAST_SECRET, HiddenSecrets
from arl.launch.local import LocalLauncher
from arl.launch.trust import FOLDER
from arl.run.control.run_key_file import KEY
from tests.run.test_train import Command as Train

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


def test_neither_the_log_of_a_process_nor_the_message_about_its_end_shows_its_secrets(tmp_path: Path) -> None:
    lines: list[str] = []

    async def run(secrets: Mapping[str, str]) -> str:
        command = Command((sys.executable, "-c", PRINT_IN_TWO_PIECES), {}, secrets)
        async with LocalLauncher(tmp_path, patience=5.0) as launcher:
            process = await launcher.start("engine-0", command, Resources(1), lines.append)
            return str(await process.died())

    message = asyncio.run(run({"MY_PASSWORD": "sword=fish"}))
    shown = f"settings: password={HIDDEN} of mine\n"
    assert (tmp_path / "engine-0.log").read_text() == f"{shown}swor"
    assert lines == [shown.strip()]
    assert shown.strip() in message and "sword=fish" not in message


def test_no_file_of_a_run_holds_its_key_but_the_one_that_goes_with_it(tmp_path: Path) -> None:
    run = Train(tmp_path, "name=small", "train.steps=2", "eval.problems=8", "engine.replicas=2")
    try:
        run.read_until("step    1")
        key = (run.run / FOLDER / KEY).read_bytes().strip()
        assert run.end() == 0, run.output
    finally:
        run.clear()
    assert len(key) >= 32
    assert key.decode() not in run.output
    for folder, _, names in os.walk(run.run):
        for name in names:
            assert key not in Path(folder, name).read_bytes(), f"{folder}/{name}"
