"""Read one side of a published problem set, in its upstream format.

$ARL_DATA/gsm8k/train.jsonl (or .parquet) ─► there? ─► taken
                                          └─► no    ─► the Hugging Face hub, or its cache: arl.data.source_files
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.config.data_section import Columns
from arl.data.row_problems import Candidate, RowReader, file_candidates
from arl.data.source_files import HubFiles, cached_hub_files, fetch_hub_files
from arl.errors import DataError
from arl.types import Problem


def as_it_is(answer: str) -> str:
    """Return an answer that its column holds alone."""
    return answer


def after_hashes(solution: str) -> str:
    """Return what follows the last `####` of a solution, without commas; empty where there is no mark.

    >>> after_hashes("Half of 2,468 is 1,234.\\n#### 1,234")
    '1234'
    """
    _, mark, answer = solution.rpartition("####")
    return answer.strip().replace(",", "") if mark else ""


def last_boxed(solution: str) -> str:
    r"""Return what the last \boxed{…} of a solution holds; empty where there is none, or where it does not end.

    >>> last_boxed(r"So $x = \boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    _, mark, rest = solution.rpartition("\\boxed")
    if not mark:
        return ""
    if not rest.lstrip().startswith("{"):  # \boxed 5
        return rest.split("$")[0].strip()
    rest = rest.lstrip()
    depth = 0
    for i, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:i].strip()
    return ""


class Source(Struct, frozen=True, kw_only=True):
    """Say where one side of a set is, and what its columns hold."""

    local: str  # below $ARL_DATA, without suffix: gsm8k/train
    hub: HubFiles
    prompt: str = "problem"  # column
    answer: str = "answer"  # column
    read_answer: Callable[[str], str] = as_it_is
    problems: int
    licence: str

    def local_file(self) -> Path | None:
        """Return the file below $ARL_DATA, if it is there."""
        if not os.environ.get("ARL_DATA"):
            return None
        base = Path(os.environ["ARL_DATA"]) / self.local
        files = [base.with_name(base.name + suffix) for suffix in (".jsonl", ".parquet")]
        return next((file for file in files if os.path.isfile(file)), None)

    def load(self, task: str) -> list[Problem]:
        """Return the problems, after fetching them if need be.

        Raises:
            DataError: the files are nowhere, or a row is not what it was.
        """
        field = f"task {task}"
        local = self.local_file()
        files = self._fetched(field) if local is None else [local]
        reader = RowReader(Columns(prompt=self.prompt, answer=self.answer), template=None, task=task)
        candidates, _ = file_candidates(files, reader, field)
        return [self._with_answer(candidate) for candidate in candidates]

    def where(self) -> str:
        """Say where the files are, without asking the hub."""
        local = self.local_file()
        if local is not None:
            return str(local)
        cached = cached_hub_files(self.hub)
        return f"cached in {cached[0].parent}" if cached else f"missing: {self.hub.fetch_command}"

    def _fetched(self, field: str) -> list[Path]:
        try:
            return fetch_hub_files(self.hub, field)
        except DataError as error:
            folder = os.environ.get("ARL_DATA")
            looked = f" ({folder} has none)" if folder else ""
            remedy = f"or let ARL_DATA name a folder that holds {self.local}.jsonl{looked}"
            raise DataError(f"{error}, {remedy}") from error

    def _with_answer(self, candidate: Candidate) -> Problem:
        answer = self.read_answer(candidate.problem.answer)
        if not answer:
            raise DataError(f"{candidate.place}: column {self.answer} holds no answer where this set has it")
        return msgspec.structs.replace(candidate.problem, answer=answer)
