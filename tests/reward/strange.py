"""What a reward function may raise or return that cannot be shown or read."""


class Mute(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("not a word")


class Unlike(BaseException):
    """An exception that `except Exception` does not catch."""


class Stubborn:
    """An object that is no number, and cannot be shown either."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __repr__(self) -> str:
        raise RuntimeError("nothing to show")


def circular() -> BaseException:
    first = ValueError("first")
    second = ValueError("second")
    first.__cause__ = second
    second.__cause__ = first
    return first
