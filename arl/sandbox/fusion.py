"""Run programs on Sandbox Fusion (https://bytedance.github.io/SandboxFusion), by its POST /run_code.

request     {code, language: python, run_timeout, compile_timeout}
answer      {status: Success | Failed | SandboxError, message, run_result: {status, stdout, stderr, return_code}}
"""

from msgspec import Struct

from arl.sandbox.remote import START_SECONDS, RemoteSandbox


class _Ran(Struct):
    stdout: str | None = None


class _Answer(Struct):
    message: str
    run_result: _Ran | None = None


class FusionSandbox(RemoteSandbox):
    """Implement Sandbox by a service that keeps nothing from one run to the next."""

    def _printed(self, code: str, seconds: float) -> str:
        body = {"code": code, "language": "python", "run_timeout": seconds, "compile_timeout": seconds}
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        answer = self._ask("POST", f"{self._url}/run_code", body, headers, seconds + START_SECONDS)
        said = self._decoded(answer, _Answer)
        return (said.run_result and said.run_result.stdout) or said.message
