"""Turn a record into what charts can show: numbers, and histograms.

{"loss": 0.5, "token_age/histogram": [4, 2], "by_age/ratio": [1.0, null, 0.9, …]}
    ─► loss 0.5 · token_age/histogram [4, 2] · by_age/ratio/0 1.0 · by_age/ratio/2 0.9 · …
"""

from collections.abc import Iterator

from arl.metrics.names import AGE_BUCKETS, Record

HISTOGRAM = "/histogram"  # ends the names of lists that count by age


def shown_values(record: Record) -> Iterator[tuple[str, float | list[int]]]:
    """Yield the name and the value of each chart; a list counts by age 0, 1, …

    An age bucket without tokens has no number, so it is left out.
    """
    for name, value in record.items():
        if not isinstance(value, list):
            yield name, value
        elif name.endswith(HISTOGRAM):
            counts = [count for count in value if isinstance(count, int)]
            yield name, counts
        else:
            yield from _by_bucket(name, value)


def _by_bucket(name: str, values: list[int] | list[float | None]) -> Iterator[tuple[str, float]]:
    labeled = zip(AGE_BUCKETS, values, strict=True)
    for label, value in labeled:
        if value is not None:
            chart = f"{name}/{label}"
            yield chart, value
