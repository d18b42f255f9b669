"""Serve and hide a Hugging Face hub."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.data.fake_hub import point_to


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty Hugging Face cache, and let nothing answer at the hub's address."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    point_to("http://127.0.0.1:9", monkeypatch)
    return tmp_path / "hub"
