"""Define one line of the report of `arl doctor`."""

from msgspec import Struct


class Finding(Struct, frozen=True):
    """Hold one line of the report, and the commands that help if it is not good."""

    good: bool
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        state = "ok     " if self.good else "MISSING"
        remedy = f"\n{self.remedy}" if self.remedy else ""
        return f"{state}  {self.what}{remedy}"
