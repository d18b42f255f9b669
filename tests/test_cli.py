"""Check what a newcomer types, and what arl answers if it is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import ROOT, arl

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


def test_train_help_fits_one_screen() -> None:
    assert len(arl("train", "--help").stdout.splitlines()) <= 24


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    settings = ("--verbose", "--set", "sync.check=true", "--set", "seed=7")
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), "--dry-run", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page, _, whole = done.stdout.partition("\n\n")
    assert {"seed: 7", "  check: true", "  behavior_weight: capped"} < set(whole.splitlines())
    plan = dict(line.split(maxsplit=1) for line in page.splitlines())
    assert plan["run"] == "quickstart, written to runs/quickstart"
    assert plan["world"] == "wall, disaggregated"
    assert plan["problems"].startswith("running_checksum: 17,")
    assert "1,024 held out" in plan["problems"]
    assert plan["steps"].startswith("60 of 32 problems, 0.1")
    assert plan["tokens"].startswith("at most 12,288 sampled a step (256 episodes of 48)")
    assert plan["staleness"] == "at most 4 versions; up to 160 groups in flight"
    assert plan["engines"].startswith("1 process with ")
    assert plan["trainer"].startswith("1 process with ")
    assert plan["weights"] == "travel by transport file"
    assert {"model", "rewards", "memory"} < plan.keys()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("rollout.stalenes=1", "did you mean staleness?"),
        ("train.steps=none", "train.steps = 'none'"),
        ("data.task=gms8k", "data.task 'gms8k': did you mean gsm8k?"),
        ("reward.function=nowhere:score", "cannot import nowhere"),
        ("rollout.env=json", "write it as module:attribute"),
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


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--set", "output.directory=/proc/nowhere"), "output.directory /proc/nowhere: nothing can be written there"),
        (("--nodes", ""), "arl: --nodes '': must not be empty; give a value, or leave the option out\n"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would(tmp_path: Path, options: tuple[str, str], complaint: str) -> None:
    done = arl("train", str(ROOT / "recipes/quickstart.yaml"), *options, "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr


IN_THE_BACKGROUND = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what a script starts with &
import typer, arl.cli

group = typer.Typer()

@arl.cli.command(group)
def wait() -> None:
    signal.raise_signal(signal.SIGTERM)
    time.sleep(60)

group()
"""


def test_sigterm_ends_a_command_that_a_script_has_started_in_the_background() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THE_BACKGROUND], check=False, timeout=30, capture_output=True)
    assert done.returncode == 130
    assert b"everything it had started has ended" in done.stderr


AFTER_A_LIBRARY = """
import typer, arl.cli, arl.errors

group = typer.Typer()

@arl.cli.command(group)
def fail() -> None:
    print("(raylet) what a library prints")
    error = arl.errors.RunError("trainer-0 was lost")
    error.add_note("status.json: cannot be written")
    raise error

group()
"""


def test_a_failure_is_shown_with_its_notes_and_nothing_that_a_library_has_printed_follows_it() -> None:
    command = [sys.executable, "-c", AFTER_A_LIBRARY]
    done = subprocess.run(command, check=False, timeout=30, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.stdout.splitlines() == [
        "(raylet) what a library prints",
        "arl: trainer-0 was lost",
        "status.json: cannot be written",
    ]


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


def started(arguments: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run the real command as a shell starts it, with one of its streams changed."""
    command = ["bash", "-c", f'"$0" -m arl.cli {arguments} {redirection}; exit ${{PIPESTATUS[0]}}', sys.executable]
    return subprocess.run(command, check=False, timeout=300, capture_output=True, text=True, cwd=ROOT)


def test_a_command_ends_without_a_word_if_nobody_reads_its_output() -> None:
    done = started("tasks", "| true")
    assert (done.returncode, done.stderr) in {(1, ""), (0, "")}  # it may have written all of it before


def test_a_run_goes_on_to_its_end_if_nobody_can_read_its_output(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done = started(f"train {tmp_path}/recipe.yaml --set output.directory={tmp_path}/runs", "| true")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.glob("runs/*/summary.json"))
