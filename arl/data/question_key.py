"""Normalize questions, so that the same question in another spelling is recognized.

Case, white space, quotation marks and the punctuation of sentences do not matter. Whatever changes the meaning of a
mathematical question stays: digits, operators, brackets, decimal points, factorials, primes.
"""

import re
import unicodedata
from typing import Any

DASHES = "‐‑‒–—−"  # which texts have for a minus
APOSTROPHES = "‘’ʼ"
_PLAIN = str.maketrans(
    {
        **dict.fromkeys(DASHES, "-"),
        **dict.fromkeys(APOSTROPHES, "'"),
    }
)
_MARKS = re.compile(
    r"""
    [\\$"“”„«»`.,;:?!]     # looked for first, because most characters are none of these
    (?:
        (?<=\\) [()\[\]]   # where mathematics begins and ends
      | (?<=[$"“”„«»`])
      | (?<=[.,;:]) (?!\d) # a digit may follow a decimal point or the comma of thousands
      | (?<=\?) \?* !*
      | (?<=[^\W\d_]!) !*  # behind a letter; behind a number or a bracket it is a factorial
    )
    """,
    re.VERBOSE,
)


def question_key(text: str) -> str:
    """Return the text by which equal questions are found.

    >>> question_key("What is  2.5 + 3?") == question_key("what is $2.5 + 3$")
    True
    >>> question_key("What is 2.5 + 3?") == question_key("What is 25 + 3?")
    False
    """
    composed = unicodedata.normalize("NFKC", text)
    folded = composed.translate(_PLAIN).casefold()
    unmarked = _MARKS.sub(" ", folded)
    return " ".join(unmarked.split())


def prompt_key(prompt: str | list[dict[str, Any]]) -> str:
    """Return the key of a prompt; of chat messages, that of what the user says."""
    if isinstance(prompt, str):
        return question_key(prompt)
    asked = [str(part["content"]) for part in prompt if part["role"] == "user"]
    return question_key(" ".join(asked))
