"""Define the recipe's section about the sandbox: where programs run that the model wrote."""

from pydantic import model_validator

from arl.config.section import Section


class SandboxSection(Section):
    """Say where programs run that the model wrote: code that a reward tests, and tools of an env."""

    kind: str = "bubblewrap"
    """bubblewrap: namespaces of this machine; fusion, e2b: a service at `url` that speaks this protocol; or a
    `module:attribute` (arl.sandbox.base)."""
    url: str | None = None
    """Address of the service. Its key is taken from the environment variable ARL_SANDBOX_KEY."""
    unsafe: bool = False
    """Run programs without any isolation, as this user. Only for a machine that holds nothing of value."""

    @model_validator(mode="after")
    def _one_place(self) -> "SandboxSection":
        if self.kind == "bubblewrap" and self.url is not None:
            raise ValueError(f"sandbox.url {self.url}: bubblewrap is on this machine; name a service in sandbox.kind")
        if self.kind != "bubblewrap" and self.unsafe:
            raise ValueError(f"sandbox.unsafe true: is for this machine; leave it or sandbox.kind {self.kind} out")
        return self
