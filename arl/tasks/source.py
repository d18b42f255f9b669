"""Find the files of a published problem set.

$ARL_DATA/gsm8k/train.jsonl (or .json, .parquet) ─► there? ─► taken
                                                 └─► no    ─► the Hugging Face hub, or its cache: arl.data.hub
"""

import os
from pathlib import Path

from msgspec import Struct

from arl.data.hub import HubFiles, cached_hub_files, fetch_hub_files
from arl.errors import DataError


class Source(Struct, frozen=True):
    """Say where one side of a set is, and what its columns hold."""

    local: str  # below $ARL_DATA, without suffix: gsm8k/train
    hub: HubFiles
    num_problems: int
    licence: str
    prompt: str = "problem"  # column
    answer: str = "answer"  # column

    def local_file(self) -> Path | None:
        """Return the file below $ARL_DATA, if it is there."""
        folder = os.environ.get("ARL_DATA")
        suffixes = (".jsonl", ".json", ".parquet")
        files = [Path(folder, self.local + suffix) for suffix in suffixes] if folder else []
        return next((file for file in files if os.path.isfile(file)), None)

    def files(self, field: str) -> list[Path]:
        """Return the files, after fetching them if need be.

        Raises:
            DataError: they are nowhere.
        """
        local = self.local_file()
        if local is not None:
            return [local]
        try:
            return fetch_hub_files(self.hub, field)
        except DataError as error:
            raise DataError(f"{error}, or let ARL_DATA name a folder that holds {self.local}.jsonl") from error

    def where(self) -> str:
        """Say where the files are, without asking the hub."""
        local = self.local_file()
        if local is not None:
            return str(local)
        cached = cached_hub_files(self.hub)
        return f"cached in {cached[0].parent}" if cached else f"missing: {self.hub.fetch_command}"
