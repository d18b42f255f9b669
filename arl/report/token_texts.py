"""Find the tokenizer of a run, which may be living, and turn token ids into text without torch or transformers."""

import os
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what part of a character decodes to


def texts_of(tokenizer: Tokenizer | None, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token, as it stands within a text; without a tokenizer an id is its own text."""
    if tokenizer is None:
        return [f"{token} " for token in token_ids]
    known = sorted(set(token_ids))
    texts = dict(zip(known, token_texts(tokenizer, known), strict=True))
    return [texts[token] for token in token_ids]


def load_tokenizer(run: Path, model: Path | None) -> Tokenizer | None:
    """Load the tokenizer of a run; None: it has none.

    Args:
        model: that the run's recipe names; None: it names none.
    """
    path = find_tokenizer(run, model)
    return None if path is None else Tokenizer.from_file(str(path))


def find_tokenizer(run: Path, model: Path | None) -> Path | None:
    """Return the tokenizer of a checkpoint of a run, or of the model that its recipe names; None: it has none."""
    in_checkpoints = sorted((run / "checkpoints").glob(f"*/{TOKENIZER}"))
    if in_checkpoints:
        return in_checkpoints[-1]
    if model is None or not os.path.exists(model / TOKENIZER):
        return None
    return model / TOKENIZER


def token_texts(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token as it stands within a text, with the space that some tokenizers put before it.

    A token that is a part of a character has no text of its own; its bytes are named instead, as in `⟨<0xF0>⟩`.
    """
    alone = _decode(tokenizer, [[token] for token in token_ids])
    anchor = next((i for i, text in enumerate(alone) if text and REPLACEMENT not in text), None)
    if anchor is None:
        return [_name(tokenizer, token) for token in token_ids]
    after = _decode(tokenizer, [[token_ids[anchor], token] for token in token_ids])
    texts = []
    for token, own, pair in zip(token_ids, alone, after, strict=True):
        text = pair.removeprefix(alone[anchor]) if pair.startswith(alone[anchor]) else own
        texts.append(text if text and REPLACEMENT not in text else _name(tokenizer, token))
    return texts


def _decode(tokenizer: Tokenizer, sequences: list[list[int]]) -> list[str]:
    texts: list[str] = tokenizer.decode_batch(sequences, skip_special_tokens=False)
    return texts


def _name(tokenizer: Tokenizer, token: int) -> str:
    name = tokenizer.id_to_token(token)
    return f"⟨{token}⟩" if name is None else f"⟨{name}⟩"
