"""Write long lists of numbers in a figure as plotly's typed arrays, half as long as their digits."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

LONG = 48  # entries; a shorter list stays as it is
COORDINATES = frozenset({"x", "y", "base"})
EXACT_IN_FLOAT32 = 2**24


def pack_numbers(traces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the traces with their long lists packed; null becomes NaN, which plotly does not draw either."""
    return [{name: _packed(name, value) for name, value in trace.items()} for trace in traces]


def _packed(name: str, value: Any) -> Any:
    if name not in COORDINATES or not isinstance(value, list) or len(value) < LONG:
        return value
    if not all(map(_is_number, value)):
        return value
    array = np.asarray(value, np.float64)
    largest = np.nanmax(np.abs(array[np.isfinite(array)]), initial=0.0)
    kind = "f4" if largest < EXACT_IN_FLOAT32 else "f8"
    content = base64.b64encode(array.astype(f"<{kind}").tobytes())
    return {"dtype": kind, "bdata": content.decode("ascii")}


def _is_number(entry: object) -> bool:
    return entry is None or (isinstance(entry, int | float) and not isinstance(entry, bool))
