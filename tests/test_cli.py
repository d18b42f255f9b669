"""Check what a newcomer types, and what arl answers if it is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import ROOT, ForkedCommand, arl

HEAVY = {"torch", "transformers", "wandb", "pyarrow", "aiohttp", "pydantic", "rich"}


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys, arl.cli; arl.cli.app(['--help'], standalone_mode=False); "
        f"heavy = {HEAVY} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Train a policy with asynchronous RL." in done.stdout
    assert not [line for line in done.stdout.splitlines()[1:] if line.endswith("...")]


def test_a_result_that_does_not_fit_on_the_disk_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "arl.cli", "tasks"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 3
    assert done.stderr == "arl: the output cannot be written: [Errno 28] No space left on device\n"


def test_a_cache_of_warm_ups_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setenv("ARL_CACHE", str(tmp_path / "cache"))
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), cwd=tmp_path)
    assert done.returncode == 2
    assert f"ARL_CACHE (of the environment) {tmp_path}/cache/warmup: nothing can be written there" in done.stderr


def test_train_help_fits_one_screen() -> None:
    assert len(arl("train", "--help").stdout.splitlines()) <= 24


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARL_CACHE", str(tmp_path / "no/cache"))
    settings = ("--verbose", "--set", "sync.check=true", "--set", "seed=7")
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--dry-run", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page, _, whole = done.stdout.partition("\n\n")
    assert {"seed: 7", "  check: true", "    mode: cap"} < set(whole.splitlines())
    plan = dict(line.split(maxsplit=1) for line in page.splitlines())
    expected = {
        "run": "quickstart, written to runs/quickstart",
        "world": "wall, disaggregated",
        "objective": "decoupled_ppo",
        "advantage": "grpo",
        "env": "arl.rollout.env:single_turn",
        "filter": "none",
        "staleness": "at most 4 versions; up to 160 groups in flight",
        "weights": "travel by transport file",
    }
    assert expected.items() <= plan.items()
    assert plan["tokens"].startswith("at most 12,288 sampled a step (256 episodes of 48)")
    assert plan["reward"].startswith("arl.tasks.running_checksum:")
    assert plan["model"].startswith(f"tiny; warm-up by the task, not yet cached in {tmp_path}/no/cache/warmup/")
    assert {"problems", "steps", "engines", "trainer", "rewards", "memory"} < plan.keys()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("rollout.stalenes=1", "did you mean staleness?"),
        ("data.task=gms8k", "data.task 'gms8k': did you mean gsm8k?"),
        ("reward.function=nowhere:score", "cannot import nowhere"),
        ("train.capacity=20", "rollout.max_new_tokens 48, 74 in all: raise train.capacity to 74 or more"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2_before_anything_starts(
    tmp_path: Path, override: str, complaint: str
) -> None:
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--set", override, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_tilde_behind_an_equals_sign_is_the_home_directory_though_shells_leave_it_there(tmp_path: Path) -> None:
    done = arl("eval", "m", "--recipe=~/absent.yaml", cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)})
    assert done.stderr.startswith(f"arl: {tmp_path}/absent.yaml: cannot be read")


def test_a_dry_run_refuses_what_a_run_would(tmp_path: Path) -> None:
    options = ("--set", "output.directory=/proc/nowhere", "--dry-run")
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), *options, cwd=tmp_path)
    assert done.returncode == 2
    assert "output.directory /proc/nowhere: nothing can be written there" in done.stderr


COMMAND = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what a script starts with &
import typer, arl.cli, arl.errors

group = typer.Typer()

@arl.cli.command(group)
def wait() -> None:
    signal.raise_signal(signal.SIGTERM)
    time.sleep(60)

@arl.cli.command(group)
def fail() -> None:
    print("(raylet) what a library prints")
    error = arl.errors.RunError("trainer-0 was lost")
    error.add_note("status.json: cannot be written")
    raise error

group()
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("wait", 130, ["arl: interrupted; everything it had started has ended"]),
        ("fail", 3, ["(raylet) what a library prints", "arl: trainer-0 was lost", "status.json: cannot be written"]),
    ],
)
def test_sigterm_in_the_background_and_a_failure_end_a_command_with_its_code_and_its_notes_last(
    name: str, code: int, said: list[str]
) -> None:
    command = [sys.executable, "-c", COMMAND, name]
    done = subprocess.run(command, check=False, timeout=30, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (code, said)


RECIPE = """\
name: small
world: virtual
model:
  tiny: {hidden_size: 16, layers: 1, heads: 2, intermediate_size: 32}
data: {task: running_checksum, options: {size: 100}}
rollout: {problems_per_step: 2, group_size: 2, staleness: 2, max_new_tokens: 8}
train: {steps: 2, minibatches: 1}
eval: {problems: 0}
"""


def test_commands_go_on_to_their_end_without_a_word_if_nobody_can_read_their_output(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    train = ["train", f"{tmp_path}/recipe.yaml", "--set", f"output.directory={tmp_path}/runs"]
    for arguments, codes in ((["tasks"], {0, 1}), (train, {0})):  # it may have written all of it before
        command = ForkedCommand(arguments, tmp_path, os.environ, is_apart=True)
        command.stdout.close()
        assert command.stderr is not None
        assert command.stderr.read() == ""
        assert command.wait(60.0) in codes
    assert list(tmp_path.glob("runs/*/summary.json"))
