"""The viewer's sample is bounded, spread over runs, steps and outcomes, and made of whatever files are intact."""

import base64
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from arl.report.token_columns import MOST_TOKENS, pack_tokens, run_lengths
from arl.report.token_texts import find_tokenizer, newest
from arl.report.trajectory_choice import share_out
from arl.report.trajectory_source import spread
from arl.report.viewer import MOST_CHARACTERS, choose_trajectories
from arl.types import TRAINED
from tests.report.written_runs import episode, opened, write_file, write_run, write_tokenizer


@given(st.integers(0, 50), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40)))
def test_parts_are_equal_as_far_as_there_is_enough(count: int, available: dict[str, int]) -> None:
    parts = share_out(count, available)
    assert sum(parts.values()) == min(count, sum(available.values()))
    assert all(parts[name] <= available[name] for name in available)
    cut = [parts[name] for name in available if parts[name] < available[name]]
    assert not cut or max(parts.values()) - min(cut) <= 1


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_spread_choice_keeps_order_and_both_ends(available: int, count: int) -> None:
    chosen = spread(range(available), count)
    assert len(chosen) == min(available, count)
    assert chosen == sorted(set(chosen))
    if count > 1 and available:
        assert chosen[0] == 0
        assert chosen[-1] == available - 1


@given(st.lists(st.integers(-1, 3)))
def test_run_lengths_are_the_values_again(values: list[int]) -> None:
    assert [value for value, count in run_lengths(values) for _ in range(count)] == values


def test_sample_is_spread_over_runs_steps_and_outcomes(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 40) for name in ("one", "two")]
    data = choose_trajectories([opened(run) for run in runs], most=60)
    assert data.notes == []
    assert data.num_episodes == 2 * 40 * 8
    for run in (0, 1):
        own = [trajectory for trajectory in data.trajectories if trajectory.run == run]
        assert len(own) == 30
        trained = [trajectory for trajectory in own if trajectory.fate == TRAINED]
        assert sum(trajectory.right is True for trajectory in trained) == 10
        assert sum(trajectory.right is False for trajectory in trained) == 10
        steps = [trajectory.step for trajectory in trained if trajectory.step is not None]
        assert min(steps) <= 2
        assert max(steps) >= 39


def test_the_same_files_give_the_same_sample(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 20)
    first = msgspec.json.encode(choose_trajectories([opened(run)], most=20))
    assert first == msgspec.json.encode(choose_trajectories([opened(run)], most=20))


def test_sample_stays_within_its_bytes(tmp_path: Path) -> None:
    rows = [episode(group=i, response="x" * 5_000, token_ids=[1] * 2_000) for i in range(60)]
    write_file(tmp_path / "run", 0, rows)
    data = choose_trajectories([opened(tmp_path / "run")], most_bytes=400_000)
    assert 0 < len(data.trajectories) < 60
    assert len(msgspec.json.encode(data.trajectories)) <= 400_000


def test_a_long_trajectory_is_cut_and_says_so(tmp_path: Path) -> None:
    row = episode(response="x" * (MOST_CHARACTERS + 5), token_ids=[1] * (MOST_TOKENS + 7))
    write_file(tmp_path / "run", 0, [row])
    [shown] = choose_trajectories([opened(tmp_path / "run")]).trajectories
    assert shown.response.endswith("… 5 more characters are left out")
    assert shown.num_tokens == MOST_TOKENS + 7
    assert shown.tokens.num_tokens == MOST_TOKENS


def test_numbers_of_tokens_arrive_as_they_were_written() -> None:
    row = episode(token_ids=[5, 6, 7], versions=[3, 3, 4], trained_at=5)
    packed = pack_tokens(row | {"advantages": [None] * 5 + [0.25, -0.5]})
    assert np.frombuffer(base64.b64decode(packed.ids), "<u4").tolist() == [5, 6, 7]
    assert packed.versions == [[3, 2], [4, 1]]
    assert packed.mask == [[1, 3]]
    assert packed.advantages is not None
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed.advantages), "<f4"), [np.nan, 0.25, -0.5])
    assert packed.current_logprobs is not None
    current = np.frombuffer(base64.b64decode(packed.current_logprobs), "<f4")
    np.testing.assert_allclose(current, [-0.4] * 3, rtol=1e-6)


def test_tokens_have_the_text_of_the_runs_own_tokenizer(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3)
    data = choose_trajectories([opened(run)])
    place = data.runs[0].vocabulary
    assert place is not None
    assert data.vocabularies[place][10] == "+"
    assert set(data.vocabularies[place].values()) <= set("0123456789+")


def test_runs_of_one_tokenizer_share_its_table(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 3) for name in ("one", "two")]
    data = choose_trajectories([opened(run) for run in runs])
    assert [run.vocabulary for run in data.runs] == [0, 0]


def test_without_a_tokenizer_tokens_are_ids_and_a_note_says_why(tmp_path: Path) -> None:
    write_file(tmp_path / "run", 0, [episode()])
    data = choose_trajectories([opened(tmp_path / "run")])
    assert data.runs[0].vocabulary is None
    assert any("tokenizer.json" in note for note in data.notes)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "run", 0, [episode()])
    write_tokenizer(tmp_path / "run")
    path = find_tokenizer(tmp_path / "run", None)
    assert path is not None
    path.write_text("{")
    data = choose_trajectories([opened(tmp_path / "run")])
    assert len(data.trajectories) == 1
    assert any(str(path) in note for note in data.notes)


def test_the_tokenizer_of_the_recipes_model_is_found(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "base")
    model = tmp_path / "base" / "checkpoints" / "step_1"
    assert find_tokenizer(tmp_path / "run", model) == model / "tokenizer.json"
    assert find_tokenizer(tmp_path / "run", tmp_path / "removed") is None


def test_a_checkpoint_that_is_removed_while_it_is_looked_at_is_passed_over(tmp_path: Path) -> None:
    there = tmp_path / "tokenizer.json"
    there.touch()
    assert newest([tmp_path / "removed" / "tokenizer.json", there]) == there
    assert newest([tmp_path / "removed" / "tokenizer.json"]) is None


def test_torn_and_older_files_are_named_and_the_others_are_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 30)
    torn = run / "trajectories" / "000001.parquet"
    torn.write_bytes(torn.read_bytes()[:-9])
    older = run / "trajectories" / "000003.parquet"
    pq.write_table(pa.table({"fate": ["trained"]}), older)
    data = choose_trajectories([opened(run)])
    assert len(data.trajectories) == 2 * 10 * 8
    assert len(data.notes) == 2
    assert str(torn) in data.notes[0]
    assert "older arl" in data.notes[1]


def test_a_page_that_is_damaged_inside_an_intact_file_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 20)
    damaged = run / "trajectories" / "000000.parquet"
    content = bytearray(damaged.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    damaged.write_bytes(content)
    data = choose_trajectories([opened(run)])
    assert len(data.trajectories) == 10 * 8
    assert any(str(damaged) in note for note in data.notes)
