"""Ask about wandb's server without wandb: does it answer, and is there a key for it?"""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from arl.errors import InputError

ANSWER_SECONDS = 5.0  # for the server's first answer
START_SECONDS = 30.0  # for wandb to register the run


def is_reachable(url: str) -> bool:
    """Ask a server for any answer, through the proxies of the environment, and wait at most ANSWER_SECONDS."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # an answer, though not a page
    except (OSError, http.client.HTTPException):  # nobody answers, or something that does not speak HTTP
        return False


def refuse_without_key() -> None:
    """Refuse online tracking without an API key.

    Raises:
        InputError: neither WANDB_API_KEY nor a netrc file (that of NETRC, or ~/.netrc) is there.
    """
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    if "WANDB_API_KEY" not in os.environ and not os.path.exists(netrc):
        raise InputError("output.wandb online: no API key; run `wandb login`, set WANDB_API_KEY, or use offline")
