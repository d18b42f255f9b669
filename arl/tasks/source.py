"""Find the files of a published problem set, whose rows a subclass of PublishedSet reads.

$ARL_DATA/gsm8k/train.jsonl (or .json, .parquet) ─► there? ─► taken
                                                 └─► no    ─► the Hugging Face hub, or its cache: arl.data.hub
"""

import os
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from arl.data.hub import HubFiles, cached_hub_files, fetch_hub_files
from arl.errors import DataError
from arl.tasks.base import Split, SplitSource, Task


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


class PublishedSet(Task):
    """Say where the two sides of a set are."""

    training: ClassVar[tuple[Source, ...]] = ()
    evaluation_sources: ClassVar[tuple[Source, ...]] = ()
    to_train_on: ClassVar[str]  # sets of the kind, for messages

    @classmethod
    def split_source(cls, split: Split) -> SplitSource | None:
        """Say where the files of this side are."""
        sources = cls._side(split)
        if not sources:
            return None
        where = "; ".join(dict.fromkeys(source.where() for source in sources))
        return SplitSource(sum(source.num_problems for source in sources), where, sources[0].licence)

    def sources(self, split: Split) -> tuple[Source, ...]:
        """Return the sources of this side.

        Raises:
            DataError: the set is for evaluation alone.
        """
        name = type(self).__name__.lower()
        sources = self._side(split)
        if not sources:
            raise DataError(
                f"data.task {name}: is for evaluation alone, and has no problems to train on. Train on "
                f"{self.to_train_on}, and name {name} in eval.suites"
            )
        return sources

    @classmethod
    def _side(cls, split: Split) -> tuple[Source, ...]:
        return cls.training if split == "training" else cls.evaluation_sources
