"""Normalize questions, so that the same question in another spelling is recognized.

Case, white space, quotation marks and the punctuation of sentences do not matter. Whatever changes the meaning of a
mathematical question stays: digits, operators, brackets, decimal points, factorials, primes.
"""

import re
import unicodedata
from typing import Any

_DASHES = dict.fromkeys(map(ord, "‐‑‒–—−"), "-")  # which texts have for a minus
_QUOTES = dict.fromkeys(map(ord, "‘’ʼ"), "'")
_MATH_MARKS = re.compile(r"\\[()\[\]]|\$|[\"“”„«»`]")  # \( \) \[ \] $: where mathematics begins and ends
_SENTENCE_MARKS = re.compile(r"(?<!\d)[.,;:](?!\d)|(?<=\d)[.,;:](?!\d)|\?+!*|(?<=[^\W\d_])!+")
_SPACE = re.compile(r"\s+")


def question_key(text: str) -> str:
    """Return the text by which equal questions are found.

    >>> question_key("What is  2.5 + 3?") == question_key("what is $2.5 + 3$")
    True
    >>> question_key("What is 2.5 + 3?") == question_key("What is 25 + 3?")
    False
    """
    folded = unicodedata.normalize("NFKC", text).translate(_DASHES).translate(_QUOTES).casefold()
    plain = _SENTENCE_MARKS.sub(" ", _MATH_MARKS.sub(" ", folded))
    return _SPACE.sub(" ", plain).strip()


def prompt_key(prompt: str | list[dict[str, Any]]) -> str:
    """Return the key of a prompt; of chat messages, that of what the user says."""
    if isinstance(prompt, str):
        return question_key(prompt)
    return question_key(" ".join(str(part["content"]) for part in prompt if part["role"] == "user"))
