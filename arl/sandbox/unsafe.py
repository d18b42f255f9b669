"""Run programs as plain processes of this user, without isolation: only where a recipe says `sandbox.unsafe: true`."""

from arl.sandbox.bubblewrap import BubblewrapSandbox


class UnsafeSandbox(BubblewrapSandbox):
    """Implement Sandbox by the same server without bwrap: limits and cleaning up are kept, and nothing is hidden."""

    is_isolated = False
