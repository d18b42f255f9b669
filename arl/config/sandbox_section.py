"""Define the recipe's section about the sandbox: where programs run that the model wrote."""

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
