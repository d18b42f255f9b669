"""Check that the trajectory files of a run belong together and to its recipe, before a replay begins.

    files, in order ─► each row by itself (arl.metrics.trajectory_reading) ─► groups: whole, once, of one mind
                   ─► steps, versions, token ids: what this run and its model can have

Rules are for whole columns, because a recording has millions of tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from msgspec import Struct

from arl.data.model_limits import Limits
from arl.errors import DataError
from arl.metrics.run_files import SUMMARY, TRAJECTORIES
from arl.metrics.trajectory_reading import REMEDY, read_trajectories, trajectory_files
from arl.types import NOT_SAMPLED

OF_A_GROUP = (
    *("fate", "trained_at", "problem_id", "prompt_length"),
    *("dispatch_version", "dispatch_time", "arrival_version", "arrival_time"),
)
MOST_WITHOUT_ROWS = 1_000_000  # groups
NO_STEP = -1  # in the place of a null


class RunBounds(Struct, frozen=True):
    """Hold what the rows of a run cannot exceed."""

    admitted: int  # groups
    trained: int  # of these
    problems_per_step: int
    group_size: int
    max_age: int | None  # of a trained token, versions; None: the recipe has no bound
    masks_truncated: bool  # reward.mask_truncated
    limits: Limits  # of the model
    counted_in: str = SUMMARY  # the file that counts the groups

    @property
    def steps(self) -> int:
        """Return how many versions were trained."""
        return self.trained // self.problems_per_step


def read_verified(run: Path, columns: Sequence[str], bounds: RunBounds) -> pa.Table:
    """Read `columns` of all trajectory files of a run, in the order in which they were written.

    Raises:
        DataError: a file is missing or damaged, or a row cannot be of this run; names file, row, field, value and rule.
    """
    files = _numbered_files(run)
    tables = [read_trajectories(file, columns) for file in files]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    if not table.num_rows:
        raise DataError(f"{run / TRAJECTORIES}: holds no trajectory; {REMEDY}")
    _RunRules(files, [len(own) for own in tables], table, bounds).check()
    return table


def _numbered_files(run: Path) -> list[Path]:
    """List the files, which are numbered from 0 without a gap."""
    files = trajectory_files(run)
    for number, file in enumerate(files):
        if file.name != f"{number:06d}.parquet":
            raise DataError(f"{file}: {number:06d}.parquet must come first, and is missing; {REMEDY}")
    if not files:
        raise DataError(f"{run / TRAJECTORIES}: holds no trajectory; {REMEDY}")
    return files


class GroupRules:
    """Check the rows of whole groups against each other and against the bounds of their run.

    Args:
        lengths: rows of each file.
    """

    def __init__(self, files: Sequence[Path], lengths: Sequence[int], table: pa.Table, bounds: RunBounds) -> None:
        self._files = files
        self._ends = np.cumsum(lengths)
        self._table = table
        self._bounds = bounds
        group_ids = self._column("group_id")
        begins = np.append(True, group_ids[1:] != group_ids[:-1])
        self._starts = np.flatnonzero(begins)  # the first row of each group
        self._sizes = np.diff(np.append(self._starts, len(group_ids)))
        self._first = np.repeat(self._starts, self._sizes)  # of the group of each row
        self._lengths = np.diff(self._list("token_ids").offsets.to_numpy())
        self._row_of_token = np.repeat(np.arange(len(group_ids)), self._lengths)

    def check(self) -> None:
        """Apply every rule."""
        self._check_groups()
        self.check_each()

    def check_each(self) -> None:
        """Apply the rules for rows by themselves; their groups may not be whole."""
        self._check_versions()
        self._check_masks()
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Check that the model has every token, and room for every row."""
        ids = self._tokens("token_ids")
        size = self._bounds.limits.vocab_size
        self._refuse_tokens("token_ids", ids >= size, f"the model has the ids 0 to {size - 1}")
        context = self._bounds.limits.context
        too_long = self._lengths > context
        if too_long.any():
            row = int(too_long.argmax())
            self._raise(row, "length of token_ids", int(self._lengths[row]), f"the model's context is {context} tokens")

    def _check_groups(self) -> None:
        group_ids = self._column("group_id")
        bounds = self._bounds
        rule = f"{bounds.counted_in} counts {bounds.admitted} groups, which are numbered from 0"
        self._refuse("group_id", group_ids >= bounds.admitted, rule)
        _, once = np.unique(group_ids[self._starts], return_index=True)
        again = np.ones(len(group_ids), bool)
        again[self._starts[once]] = False
        again &= self._first == np.arange(len(group_ids))
        self._refuse("group_id", again, "a group is recorded once, and its rows lie together")
        places = np.arange(len(group_ids)) - self._first
        rule = "the rows of a group are its samples 0, 1, 2 …: one is missing, doubled or moved"
        self._refuse("sample", self._column("sample") != places, rule)
        sizes = np.repeat(self._sizes, self._sizes)
        rule = f"it has another number of rows than rollout.group_size {bounds.group_size}"
        self._refuse("group_id", sizes != bounds.group_size, rule)
        for name in OF_A_GROUP:
            column = self._column(name)
            self._refuse(name, column != column[self._first], "all rows of a group have the same")
        self._check_prompts()

    def _check_prompts(self) -> None:
        """Compare the prompt of each row, a token or more, with that of the first row of its group."""
        lengths = self._column("prompt_length")
        self._refuse("prompt_length", lengths == 0, "a prompt has at least one token")
        begins = np.cumsum(self._lengths) - self._lengths
        rows = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ids = self._tokens("token_ids")
        own = begins[rows] + places
        unlike = np.zeros(len(ids), bool)
        unlike[own] = ids[own] != ids[begins[self._first[rows]] + places]
        self._refuse_tokens("token_ids", unlike, "all rows of a group have the same prompt")

    def _check_versions(self) -> None:
        bounds = self._bounds
        trained_at = self._column("trained_at")
        newest = np.where(trained_at == NO_STEP, bounds.steps, trained_at)  # when the group ended
        rule = "no version is newer than the step that trained the group, or than the run's last one"
        self._refuse("arrival_version", self._column("arrival_version") > newest, rule)
        versions = self._tokens("policy_versions")
        self._refuse_tokens("policy_versions", versions > newest[self._row_of_token], rule)
        if bounds.max_age is not None:
            too_old = versions < trained_at[self._row_of_token] - bounds.max_age
            too_old &= self._tokens("loss_mask")
            rule = f"a trained token is at most rollout.staleness {bounds.max_age} versions old"
            self._refuse_tokens("policy_versions", too_old, rule)

    def _check_masks(self) -> None:
        """Refuse a sampled token without a loss, except those of a truncated episode, where the recipe masks these.

        So a step trains nothing only where the run has trained nothing either.
        """
        untrained = (self._tokens("policy_versions") != NOT_SAMPLED) & ~self._tokens("loss_mask")
        if self._bounds.masks_truncated:
            has_loss = np.zeros(len(self._lengths), bool)
            has_loss[self._row_of_token[self._tokens("loss_mask")]] = True
            masked = self._list("truncated").to_numpy(zero_copy_only=False) & ~has_loss
            untrained &= ~masked[self._row_of_token]
        rule = "what the policy sampled is trained, except in a truncated episode under reward.mask_truncated"
        self._refuse_tokens("loss_mask", untrained, rule)

    # ---- columns

    def _column(self, name: str) -> np.ndarray:
        """Return a column; a text is its place in the dictionary, and a null is −1."""
        column = self._table[name].combine_chunks()
        if pa.types.is_string(column.type):
            column = column.dictionary_encode()
        if pa.types.is_dictionary(column.type):
            column = column.indices
        numbers: np.ndarray = column.fill_null(NO_STEP).to_numpy(zero_copy_only=False)
        return numbers

    def _list(self, name: str) -> Any:
        return self._table[name].combine_chunks()

    def _tokens(self, name: str) -> np.ndarray:
        tokens: np.ndarray = self._list(name).flatten().to_numpy(zero_copy_only=False)
        return tokens

    # ---- refusals

    def _refuse_tokens(self, name: str, wrong: np.ndarray, rule: str) -> None:
        if wrong.any():
            token = int(wrong.argmax())
            row = int(self._row_of_token[token])
            place = token - int(np.searchsorted(self._row_of_token, row))
            self._raise(row, f"{name}[{place}]", self._tokens(name)[token].item(), rule)

    def _refuse(self, name: str, wrong: np.ndarray, rule: str) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            self._raise(row, name, self._table[name][row].as_py(), rule)

    def _raise(self, row: int, field: str, value: object, rule: str) -> NoReturn:
        number = int(np.searchsorted(self._ends, row, side="right"))
        before = int(self._ends[number - 1]) if number else 0
        raise DataError(f"{self._files[number]} row {row - before + 1}: {field} = {value!r}: {rule}; {REMEDY}")


class _RunRules(GroupRules):
    """Check also that the rows are all that a finished run has."""

    def _check_groups(self) -> None:
        super()._check_groups()
        self._check_gaps()
        self._check_steps()

    def _check_gaps(self) -> None:
        group_ids = self._column("group_id")
        if group_ids.max() - len(self._starts) >= MOST_WITHOUT_ROWS:
            rule = f"more than {MOST_WITHOUT_ROWS} groups before it have no row"
            self._refuse("group_id", group_ids == group_ids.max(), rule)

    def _check_steps(self) -> None:
        bounds = self._bounds
        trained_at = self._column("trained_at")
        rule = f"{bounds.counted_in} counts {bounds.trained} trained groups, which are {bounds.steps} steps, from 0"
        self._refuse("trained_at", trained_at >= bounds.steps, rule)
        is_trained = trained_at != NO_STEP
        per_step = np.bincount(trained_at[self._starts][is_trained[self._starts]], minlength=bounds.steps)
        wrong = np.flatnonzero(per_step != bounds.problems_per_step)
        if len(wrong):
            step = int(wrong[0])
            raise DataError(
                f"{self._files[0].parent}: step {step} trained {per_step[step]} groups, and every step trains "
                f"rollout.problems_per_step {bounds.problems_per_step}: a group is missing or doubled; {REMEDY}"
            )
