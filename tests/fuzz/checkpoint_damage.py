"""Damage the files of a run and of its checkpoints at random, as disks, people and other programs do."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from arl.launch.durable import remove_any
from arl.run.file_manifest import MANIFEST, Manifest
from tests.fuzz.damage import TEXTS, damage_bytes, damage_value
from tests.fuzz.irregular import put_irregular

Damage = Callable[[Random, Path], None]

NAMES = (
    *("step_8", "step_08", "step_", "step_6.old", "step_٣", "step_" + "9" * 200, "step_-2", "step_1e3", "best"),
    *(".step_8.partial", ".step_6.removed", "refused_step_6", ".step_.partial", "model_3", "step_0", "step_7\n"),
)


def damage(random: Random, run: Path) -> str:
    """Do one damage to a run, and return what it was. A place that an earlier one has removed stays as it is."""
    do = random.choice(DAMAGES)
    try:
        do(random, run)
    except (OSError, LookupError, ValueError):
        return f"{do.__name__[1:]} (impossible)"
    return do.__name__[1:]


def _change_bytes(random: Random, run: Path) -> None:
    file = _file_of_checkpoint(random, run)
    file.write_bytes(damage_bytes(random, file.read_bytes()))


def _change_manifest(random: Random, run: Path) -> None:
    file = _manifest(random, run)
    file.write_bytes(damage_bytes(random, file.read_bytes()))


def _change_value(random: Random, run: Path) -> None:
    """Change a value of a manifest. Sometimes its own sum is made anew."""
    file = _manifest(random, run)
    value = damage_value(random, json.loads(file.read_bytes()))
    text = json.dumps(value)
    if random.random() < 0.5:
        try:
            file.write_bytes(msgspec.json.decode(text, type=Manifest).encode())
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return
    else:
        file.write_text(text)


def _change_name(random: Random, run: Path) -> None:
    """Let a manifest name another file than it did, and make its own sum anew."""
    file = _manifest(random, run)
    manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    sums = random.choice((manifest.files, manifest.counted_on))
    name = random.choice(sorted(sums))
    hostile = ("../step_2/" + name, f"../../{name}", f"./{name}", f"/etc/{name}", f"{name}/", f"a/{name}", f"{name}\0")
    other = random.choice((*hostile, *TEXTS[:12], str(run / name), "/dev/zero", "../../../../../etc/passwd"))
    sums[other] = sums[name] if random.random() < 0.3 else sums.pop(name)
    file.write_bytes(manifest.encode())


def _change_run_file(random: Random, run: Path) -> None:
    file = _file_of_run(random, run)
    file.write_bytes(damage_bytes(random, file.read_bytes()))


def _append_to_run_file(random: Random, run: Path) -> None:
    """Append what a killed run could have left, or garbage. Files that grow are cut back, so that is no damage."""
    file = _file_of_run(random, run)
    with file.open("ab") as end:
        end.write(random.choice((b"garbage\n", b"{", b"\xff\0", b'{"step": 7}\n', b"\0" * 4096)))


def _remove(random: Random, run: Path) -> None:
    random.choice((_file_of_checkpoint, _file_of_run))(random, run).unlink()


def _remove_checkpoint(random: Random, run: Path) -> None:
    remove_any(_checkpoint(random, run))


def _replace(random: Random, run: Path) -> None:
    """Put something else in the place of a file."""
    path = random.choice((_file_of_checkpoint, _file_of_checkpoint, _file_of_run))(random, run)
    path.unlink()
    _put(random, path)


def _replace_checkpoint(random: Random, run: Path) -> None:
    checkpoint = _checkpoint(random, run)
    remove_any(checkpoint)
    _put(random, checkpoint)


def _add(random: Random, run: Path) -> None:
    """Put something beside the files of a checkpoint, or beside the checkpoints."""
    beside = random.random() < 0.5
    directory = run / "checkpoints" if beside else _checkpoint(random, run)
    name = random.choice(NAMES) if beside else random.choice(("x", ".x", "model-00001-of-00002.safetensors", "é\udcff"))
    if not os.path.lexists(directory / name):
        _put(random, directory / name)


def _rename_checkpoint(random: Random, run: Path) -> None:
    target = run / "checkpoints" / random.choice(NAMES)
    if not os.path.lexists(target):
        _checkpoint(random, run).rename(target)


def _copy_checkpoint(random: Random, run: Path) -> None:
    target = run / "checkpoints" / random.choice(("step_8", "step_1", ".step_8.partial", "refused_step_6"))
    shutil.copytree(_checkpoint(random, run), target)


def _swap(random: Random, run: Path) -> None:
    """Let two files of checkpoints, or of the run, take each other's place."""
    choose = random.choice((_file_of_checkpoint, _file_of_run))
    one = choose(random, run)
    other = choose(random, run)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def _link_aside(random: Random, run: Path) -> None:
    """Move a file or a folder away, and put a link to it in its place."""
    file = random.choice((_file_of_checkpoint, _file_of_run))(random, run)
    path = random.choice((file, file.parent)) if file.parent != run else file
    aside = run / "aside" / path.name
    aside.parent.mkdir(exist_ok=True)
    path.rename(aside)
    path.symlink_to(aside)


DAMAGES: tuple[Damage, ...] = (
    *(_change_bytes, _change_bytes, _change_bytes, _change_manifest, _change_manifest, _change_value, _change_name),
    *(_change_run_file, _change_run_file, _append_to_run_file, _remove, _remove_checkpoint, _replace),
    *(_replace_checkpoint, _add, _rename_checkpoint, _copy_checkpoint, _swap, _link_aside),
)


def _put(random: Random, path: Path) -> None:
    """Make something that is no file of a run."""
    if random.random() < 0.2:
        path.write_bytes(random.randbytes(random.choice((0, 1, 100))))
    else:
        put_irregular(random, path)


def _checkpoint(random: Random, run: Path) -> Path:
    """Choose a checkpoint, mostly the newest."""
    return run / "checkpoints" / random.choice(("step_6", "step_6", "step_6", "step_4", "step_4", "step_2"))


def _file_of_checkpoint(random: Random, run: Path) -> Path:
    return random.choice(sorted(path for path in _checkpoint(random, run).iterdir() if path.is_file()))


def _file_of_run(random: Random, run: Path) -> Path:
    """Choose a file that checkpoints count on, mostly one on which only the newest does."""
    newest = sorted((run / "trajectories").iterdir())[-1:]
    files = (run / "metrics.jsonl", run / "trace.json", *newest, *newest)
    return random.choice([file for file in files if file.is_file()])


def _manifest(random: Random, run: Path) -> Path:
    file = _checkpoint(random, run) / MANIFEST
    if not file.is_file():  # an earlier damage has put a FIFO there, for instance
        raise FileNotFoundError(file)
    return file
