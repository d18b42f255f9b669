"""Hide secrets in what a process prints, whatever it prints and however its output is cut into pieces.

SGLang, for one, prints all of its settings when it starts, the run key among them. Secrets are hidden on the node where
they are printed, before they could cross a network. The runner of a Slurm step imports this module, so it uses the
standard library only.
"""

import re
from collections.abc import Iterable

HIDDEN = "[hidden]"
LEAST_SECRET = 8  # characters: a shorter value would be found by chance


class HiddenSecrets:
    """Take the output of one process piece by piece, and replace each secret in it by `[hidden]`.

        >>> output = HiddenSecrets(["swordfish"])
        >>> output.take(b"key=swordfi"), output.take(b"sh, and "), output.take(b"sword"), output.rest()
        (b'key=', b'[hidden], and ', b'', b'sword')

    What may be the beginning of a secret is held back until more comes.

    Args:
        secrets: texts of at least `LEAST_SECRET` characters; shorter ones are not hidden.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        long_enough = {secret.encode() for secret in secrets if len(secret) >= LEAST_SECRET}
        values = sorted(long_enough, key=len, reverse=True)  # of two that begin alike, the longer one is found
        whole = b"|".join(re.escape(value) for value in values)
        self._whole = re.compile(whole)
        self._whole_or_begun = re.compile(rb"(?P<begun>(?:%b)\Z)|%b" % (_beginnings(values), whole))
        self._has_secrets = bool(values)
        self._held = b""

    def take(self, piece: bytes) -> bytes:
        """Return the output that is known not to belong to a secret, after a further piece of it."""
        if not self._has_secrets:
            return piece
        output = self._held + piece
        self._held = b""
        return self._whole_or_begun.sub(self._replace, output)

    def rest(self) -> bytes:
        """Return what was held back, when there is no more output."""
        if not self._has_secrets:
            return b""
        rest, self._held = self._held, b""
        return self._whole.sub(HIDDEN.encode(), rest)

    def _replace(self, found: re.Match[bytes]) -> bytes:
        if found["begun"]:
            self._held = found[0]
            return b""
        return HIDDEN.encode()


def _beginnings(values: Iterable[bytes]) -> bytes:
    """Return the alternatives of a pattern: all beginnings of secrets that are not yet whole, the longest first."""
    begun = {value[:length] for value in values for length in range(1, len(value))}
    return b"|".join(re.escape(part) for part in sorted(begun, key=len, reverse=True))
