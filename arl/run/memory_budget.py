"""Hold a plan of memory: what each kind of device and the host must hold at once. Torch-free."""

from msgspec import Struct


class Part(Struct, frozen=True):
    """Name bytes that live in one memory at the instant for which it is planned."""

    owner: str  # trainer, engine or host: whose settings change it
    name: str
    bytes: int


class MemoryBudget(Struct, frozen=True):
    """Compare what one memory must hold with what it has."""

    place: str  # such as "each trainer GPU"
    when: str  # the instant at which it holds most
    parts: tuple[Part, ...]
    available: int | None  # bytes; None: not known, so nothing is refused

    @property
    def needed(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def fits(self) -> bool:
        """Return whether there is room for all parts, as far as that is known."""
        return self.available is None or self.needed <= self.available


class MemoryPlan(Struct, frozen=True):
    """Hold the budgets of a run, and what follows for its engines and for its measurements."""

    budgets: tuple[MemoryBudget, ...]
    hardware: str  # what it was planned for
    rank_peak: int  # bytes that torch allocates on the device of one trainer rank, at most
    rank_peaks: dict[str, int]  # of each instant of an update
    rank_resident: int  # that stay between two steps, while engines generate
    weights: int  # of one engine, on each of its devices
    cache_tokens: int  # that the caches of one engine hold
    longest: int  # tokens of the longest trajectory
    slots: int  # of one engine

    @property
    def fits(self) -> bool:
        """Return whether every memory has room."""
        return all(budget.fits for budget in self.budgets)

    @property
    def on_gpus(self) -> bool:
        """Return whether there are other memories than the host's."""
        return len(self.budgets) > 1

    @property
    def full_requests(self) -> int:
        """Return how many requests of the longest trajectory one engine's cache holds."""
        return self.cache_tokens // self.longest
