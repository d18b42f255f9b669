"""docs/reference.md is what the recipe's models say."""

from arl.config.reference import COMMAND, FILE, reference


def test_the_reference_is_up_to_date() -> None:
    assert FILE.read_text() == reference(), f"docs/reference.md is stale: run `{COMMAND}`"


def test_a_field_has_its_type_its_bounds_its_unit_its_default_and_its_docstring() -> None:
    lines = reference().splitlines()
    assert "| `deadlines.swap` | float > 0, seconds | `60.0` | One weight publication and one swap. |" in lines
    assert any(line.startswith("| `model.tiny.context` | int > 0, tokens | `512` |") for line in lines)
    assert any(line.startswith("| `engine.threads` | int or none > 0 | none |") for line in lines)
    assert not any(line.rstrip().endswith("|  |") for line in lines)  # every field has a meaning
