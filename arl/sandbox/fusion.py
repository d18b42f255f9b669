"""Run programs on Sandbox Fusion (https://bytedance.github.io/SandboxFusion), by its POST /run_code.

request     {code, language: python, run_timeout, compile_timeout, files: {}, stdin}
answer      {status: Success | Failed | SandboxError, message, run_result: {status, stdout, stderr, return_code}}
"""

import json

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.base import Program, Result, Shell
from arl.sandbox.remote import START_SECONDS, Service, bootstrap, result_behind


class FusionSandbox:
    """Implement Sandbox by a service that keeps nothing from one run to the next, and so has no shells."""

    def __init__(self, section: SandboxSection) -> None:
        self._service = Service(section)
        self._files: dict[str, bytes] = {}

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """See Sandbox."""
        code, mark = bootstrap(program, peer, self._files)
        seconds = program.seconds + START_SECONDS
        body = {"code": code, "language": "python", "run_timeout": seconds, "compile_timeout": seconds, "files": {}}
        headers = {"Authorization": f"Bearer {self._service.key}"} if self._service.key else {}
        answer = self._service.ask("POST", f"{self._service.url}/run_code", body, headers, seconds + START_SECONDS)
        try:
            report = json.loads(answer)
            text = report["run_result"]["stdout"] if report["run_result"] else report["message"]
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                f"sandbox fusion: {answer[:300]!r} is no answer of POST /run_code (sandbox.url)"
            ) from error
        return result_behind(mark, text, self._service.kind)

    def write(self, path: str, content: bytes) -> None:
        """See Sandbox."""
        self._files[path] = content

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """See Sandbox. Raises SandboxError always."""
        raise SandboxError("sandbox.kind fusion keeps no interpreter for a shell: take bubblewrap or e2b")

    def close(self) -> None:
        """See Sandbox. The service keeps nothing."""
