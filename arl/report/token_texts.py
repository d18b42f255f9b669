"""Find the tokenizer of a run, which may be living, and turn token ids into text without torch or transformers."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what part of a character decodes to


class TokenTexts:
    """Load each tokenizer once, whatever number of runs has it, and collect the text of every token that occurs."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}  # content of tokenizer.json -> its place in `tables`
        self._tokenizers: list[Tokenizer] = []
        self.tables: list[dict[int, str]] = []

    def load(self, run: Path, model: Path | None) -> tuple[int | None, str]:
        """Return the place of a run's table, or None and a note that says why there is none.

        Args:
            model: that the run's recipe names; None: it names none.
        """
        path = find_tokenizer(run, model)
        if path is None:
            return None, f"{run}: no {TOKENIZER} in its checkpoints or model, so its tokens are shown as ids"
        try:
            content = path.read_text()
            if content not in self._places:
                self._tokenizers.append(Tokenizer.from_str(content))
                self.tables.append({})
                self._places[content] = len(self.tables) - 1
        except Exception as error:  # the tokenizers package raises plain Exceptions
            return None, f"{path}: cannot be read ({error}), so tokens are shown as ids"
        return self._places[content], ""

    def add(self, place: int, token_ids: Iterable[int]) -> None:
        """Add the texts of some tokens to a table."""
        table = self.tables[place]
        new = sorted(set(token_ids) - table.keys())
        table.update(zip(new, token_texts(self._tokenizers[place], new), strict=True))


def find_tokenizer(run: Path, model: Path | None) -> Path | None:
    """Return the tokenizer of a run's newest checkpoint, or of the model that its recipe names; None: it has none."""
    in_checkpoints = newest(sorted((run / "checkpoints").glob(f"*/{TOKENIZER}")))
    if in_checkpoints is not None:
        return in_checkpoints
    if model is None or not os.path.exists(model / TOKENIZER):
        return None
    return model / TOKENIZER


def newest(paths: Iterable[Path]) -> Path | None:
    """Return the file that was written last; None: there is none. A living run removes checkpoints at any moment."""
    written = {}
    for path in paths:
        with contextlib.suppress(OSError):  # or it is a link that leads nowhere
            written[path] = path.stat().st_mtime_ns
    return max(written, key=written.__getitem__, default=None)


def token_texts(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token as it stands within a text, with the space that some tokenizers put before it.

    A token that is a part of a character has no text of its own; its bytes are named instead, as in `⟨<0xF0>⟩`.
    """
    alone = _decode(tokenizer, [[token] for token in token_ids])
    anchor = next((i for i, text in enumerate(alone) if text and REPLACEMENT not in text), None)
    if anchor is None:
        return [_name(tokenizer, token) for token in token_ids]
    after = _decode(tokenizer, [[token_ids[anchor], token] for token in token_ids])
    before = alone[anchor]
    texts = []
    for token, own, pair in zip(token_ids, alone, after, strict=True):
        text = own
        if pair.startswith(before):
            text = pair.removeprefix(before)
        if not text or REPLACEMENT in text:
            text = _name(tokenizer, token)
        texts.append(text)
    return texts


def _decode(tokenizer: Tokenizer, sequences: list[list[int]]) -> list[str]:
    texts: list[str] = tokenizer.decode_batch(sequences, skip_special_tokens=False)
    return texts


def _name(tokenizer: Tokenizer, token: int) -> str:
    name = tokenizer.id_to_token(token)
    if name is None:
        return f"⟨{token}⟩"
    return f"⟨{name}⟩"
