"""Put a fake nvidia-smi on PATH, which answers the queries that arl makes as the real one would."""

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

H200 = "NVIDIA H200"
SCRIPT = """#!/bin/sh
case "$*" in
  --query-gpu=index,uuid,name,memory.total,memory.used,driver_version,mig.mode.current*) cat {place}/gpus ;;
  --query-compute-apps=gpu_uuid,pid,process_name,used_memory*) cat {place}/processes ;;
  "topo -p2p r") cat {place}/peers ;;
  *) echo "unknown arguments: $*" >&2; exit 2 ;;
esac
"""


class FakeNvidiaSmi:
    """Answers for a machine with `count` GPUs of 143,771 MiB that nobody uses; change `files` for another one."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        directory.mkdir()
        script = directory / "nvidia-smi"
        script.write_text(SCRIPT.format(place=directory))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self.gpus = [[str(i), f"GPU-{i:08x}", H200, "143771", "4", "580.65.06", "Disabled"] for i in range(count)]
        self.processes: list[list[str]] = []
        self.without_access: set[tuple[int, int]] = set()
        self.write()

    def write(self) -> None:
        """Write the answers to the files that the script prints."""
        (self.directory / "gpus").write_text(_lines(self.gpus))
        (self.directory / "processes").write_text(_lines(self.processes))
        (self.directory / "peers").write_text(self._peers())

    def use(self, number: int, pid: int, name: str, mebibytes: str) -> None:
        """Have a process use a GPU."""
        self.processes.append([self.gpus[number][1], str(pid), name, mebibytes])
        if mebibytes.isdecimal():
            self.gpus[number][4] = str(int(self.gpus[number][4]) + int(mebibytes))
        self.write()

    def _peers(self) -> str:
        count = len(self.gpus)
        names = [f"GPU{i}" for i in range(count)]
        rows = [" \x1b[4m\t" + "\t".join(names) + "\t\x1b[0m"]
        for i in range(count):
            states = [self._state(i, j) for j in range(count)]
            rows.append(f" GPU{i}\t" + "\t".join(states) + "\t")
        legend = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
        return "\n".join(rows) + "\n" + legend

    def _state(self, one: int, other: int) -> str:
        if one == other:
            return "X"
        pair = (min(one, other), max(one, other))
        return "CNS" if pair in self.without_access else "OK"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join(", ".join(row) + "\n" for row in rows)


def on_path(monkeypatch: pytest.MonkeyPatch, directory: Path, count: int) -> FakeNvidiaSmi:
    """Make one, the first on PATH."""
    fake = FakeNvidiaSmi(directory / "nvidia", count)
    monkeypatch.setenv("PATH", str(fake.directory), prepend=":")
    return fake
