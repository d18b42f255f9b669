"""A reward worker keeps its sandbox from call to call, and takes it along when it ends."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from arl.reward.pool import RewardPool
from arl.reward.scorer import UngradedLog
from arl.reward.worker import Settings
from arl.types import Problem, Response
from tests.sandbox import rewards


@pytest.mark.usefixtures("sandbox")
def test_a_worker_keeps_its_sandbox_and_takes_it_along(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    settings = Settings((f"{rewards.__name__}:run_it",), workers=1, timeout=60.0, memory_gb=0.5)

    async def grade() -> list[dict[str, float]]:
        async with RewardPool(settings, 60.0, log, os.environ, UngradedLog(log, print)) as pool:
            parts = []
            for code in ("print(1)", "while True: print('x' * 10**6)", "import os; os._exit(1)", "print(1)"):
                verdict = await pool.call(settings.functions[0], Problem("", "1\n"), Response(code))
                parts.append(verdict.parts)
            return parts

    parts = asyncio.run(grade())
    assert [part["correct"] for part in parts] == [1.0, 0.0, 0.0, 1.0]
    (server,) = {int(part["server"]) for part in parts}
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{server}") and time.monotonic() < end:
        """Its parent has just ended."""
    assert not os.path.exists(f"/proc/{server}")
