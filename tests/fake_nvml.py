"""Put the answers of a machine with GPUs in the place of NVML's."""

from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

H200 = "NVIDIA H200"
BYTES = 143_771 << 20


class FakeNvml:
    """Answers for a machine with `count` GPUs that nobody uses; change its lists for another one."""

    def __init__(self, count: int) -> None:
        self.uuids = [f"GPU-{i:08x}" for i in range(count)]
        self.names = [H200] * count
        self.total: list[int | None] = [BYTES] * count  # None: it does not say
        self.used = [4 << 20] * count
        self.processes: list[list[Any]] = [[] for _ in range(count)]
        self.programs: dict[int, str] = {}
        self.near: list[set[int] | None] = [None] * count  # cores of each one's NUMA node; None: not known

    def use(self, number: int, pid: int, program: str, num_bytes: int | None) -> None:
        """Have a process use a GPU."""
        self.processes[number].append(SimpleNamespace(pid=pid, usedGpuMemory=num_bytes))
        self.programs[pid] = program
        self.used[number] += num_bytes or 0

    def memory(self, number: int, version: object) -> Any:
        total = self.total[number]
        if total is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=total, used=self.used[number])

    def affinity(self, number: int, num_words: int) -> list[int]:
        near = self.near[number]
        if near is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [sum(1 << core - 64 * word for core in near if core // 64 == word) for word in range(num_words)]


def fake_nvml(monkeypatch: pytest.MonkeyPatch, count: int) -> FakeNvml:
    """Have `pynvml` answer for `count` GPUs; a handle is the number of a GPU."""
    fake = FakeNvml(count)
    answers: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlSystemGetProcessName": lambda pid: fake.programs[pid],
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUUID": lambda handle: fake.uuids[handle],
        "nvmlDeviceGetName": lambda handle: fake.names[handle],
        "nvmlDeviceGetMemoryInfo": fake.memory,
        "nvmlDeviceGetCpuAffinity": fake.affinity,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: fake.processes[handle],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return fake
