"""Set how many examples a property test draws.

By default few, so that the suite stays short; five times as many under `--hypothesis-profile thorough`, which `.ci/run`
uses. A property test states its size in proportion to the others: `@examples(10)` draws ten times as many as `@given`.
"""

from hypothesis import HealthCheck, settings

# Examples are not timed, because how long one takes is the machine's business.
settings.register_profile("few", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("few"), max_examples=100)


def examples(proportion: float) -> settings:
    """Return settings that draw `proportion` times as many examples as the profile does, and at least one."""
    return settings(max_examples=max(1, round(proportion * settings().max_examples)))
