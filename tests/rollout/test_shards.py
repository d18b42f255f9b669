"""Several gates, each with its share of a step, hold the bound that one gate holds."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from arl.rollout.staleness import StalenessGate


@dataclass
class Shard:
    """A controller with a share of every step and engines of its own, as the two rules see it."""

    share: int
    staleness: int
    gate: StalenessGate = field(init=False)
    loaded: int = 0
    running: list[int] = field(default_factory=list)  # deadlines
    finished: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = StalenessGate(self.share, self.staleness)

    def admit(self) -> None:
        if self.gate.is_open(self.loaded):
            self.running.append(self.gate.admit(self.loaded))

    def finish(self, number: int) -> None:
        if self.running:
            self.finished.append(self.running.pop(number % len(self.running)))

    def lose(self, number: int) -> None:
        if self.running:
            self.gate.release(self.running.pop(number % len(self.running)))

    def choose(self, version: int) -> Counter[int] | None:
        """Return what this shard gives to step `version`; None: it is not ready."""
        if len(self.finished) < self.share:
            return None
        chosen = Counter(sorted(self.finished)[: self.share])
        return chosen if self.gate.first_blocking(version, chosen) is None else None

    def train(self, chosen: Counter[int]) -> list[int]:
        """Give the chosen groups away, and return the versions at which they were admitted."""
        admitted_at = []
        for deadline in chosen.elements():
            self.finished.remove(deadline)
            self.gate.train(deadline)
            admitted_at.append(deadline - self.staleness)
        return admitted_at


@dataclass
class Run:
    """One trainer, and shards that know nothing of each other."""

    shards: list[Shard]
    staleness: int
    version: int = 0

    def step(self) -> bool:
        """Train one step if every shard is ready; no token may be older than the bound."""
        chosen = [shard.choose(self.version) for shard in self.shards]
        if None in chosen:
            return False
        for shard, of_shard in zip(self.shards, chosen, strict=True):
            assert of_shard is not None
            ages = [self.version - admitted_at for admitted_at in shard.train(of_shard)]
            assert len(ages) == shard.share
            assert max(ages) <= self.staleness
        self.version += 1
        return True

    def load(self, shard: Shard) -> None:
        shard.loaded = self.version

    def check_the_rules_of_one_gate(self) -> None:
        """What the shards have admitted together, one gate over all of them would have admitted as well."""
        per_step = sum(shard.share for shard in self.shards)
        admitted = sum(shard.gate.num_trained + shard.gate.num_outstanding for shard in self.shards)
        newest = max(shard.loaded for shard in self.shards)
        assert admitted <= (newest + self.staleness + 1) * per_step
        outstanding = sorted(deadline for shard in self.shards for deadline in [*shard.running, *shard.finished])
        for count, deadline in enumerate(outstanding, start=1):
            assert count <= (deadline - self.version + 1) * per_step


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["admit", "admit", "finish", "finish", "lose", "load", "step"]), st.integers(0, 1000)),
    max_size=150,
)


@given(shares=st.lists(st.integers(1, 4), min_size=1, max_size=4), staleness=st.integers(0, 3), actions=ACTIONS)
def test_shares_of_the_gate_hold_the_bound_on_every_schedule_and_never_get_stuck(
    shares: list[int], staleness: int, actions: list[tuple[str, int]]
) -> None:
    run = Run([Shard(share, staleness) for share in shares], staleness)
    for action, number in actions:
        shard = run.shards[number % len(run.shards)]
        if action == "admit":
            shard.admit()
        elif action == "finish":
            shard.finish(number)
        elif action == "lose":
            shard.lose(number)
        elif action == "load":
            run.load(shard)
        else:
            run.step()
        run.check_the_rules_of_one_gate()
    for _ in range(3):  # from wherever that has led, steps go on as soon as engines load and groups end
        for shard in run.shards:
            run.load(shard)
            while shard.gate.is_open(shard.loaded):
                shard.admit()
            while shard.running:
                shard.finish(0)
        assert run.step()
