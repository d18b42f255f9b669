"""Define the nouns that every room shares: one frozen type for every arrow of the walk. Imports no torch.

    Problem ─► GenerateRequest ─► Increment… ─► Completion ─► Trajectory ─► TrajectoryGroup ─► Batch ─► StepResult
                     ▲                                                                                     │
                     └──────────────────────────── engines load it ◄── WeightUpdate ◄──────────────────────┘

Shapes: L tokens of one trajectory, G episodes of one group, P groups of one step.
"""

import hashlib
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

FinishReason = Literal["stop", "length", "abort"]
Transport = Literal["file", "memory", "broadcast", "ipc"]
MetricValue = float | list[float | None]  # a list has one number for each of arl.metrics.names.AGE_BUCKETS
NOT_SAMPLED = -1  # the policy version of prompt and tool tokens
MAX_COUNT = 10**15  # of groups, versions or tokens: more than any run has, and exact in a float64
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]

LARGEST_REWARD = 1e9  # of a part, or of their weighted sum; beyond it, a step computed in float32 may be no number
CORRECT = "correct"  # the part of a reward that evaluations count, and the metrics of right and wrong answers

# Fates: what becomes of an admitted group. A replay adds reasons of its own.
TRAINED = "trained"
FAILED = "failed, given up"  # an episode raised, and its problem has used up its tries
FAILED_REQUEUED = "failed, re-queued"  # an episode raised; its problem is tried again
REJECTED = "rejected"  # by rollout.filter, or by the env
LATE = "dropped late, given up"  # abandoned for a step (rollout.late: drop)
SET_ASIDE = "set aside"  # by rollout.tail_batching; its problem is tried again in a long round
LATE_REQUEUED = "dropped late, re-queued"


class Problem(Struct, frozen=True):
    """Hold one thing to solve.

    >>> Problem("044433152550............=", answer="2").id
    '15277f26d0f3'
    """

    prompt: str | list[dict[str, str]]  # text, or chat messages
    answer: str = ""  # what the reward compares with
    metadata: dict[str, Any] = {}
    source: str = ""  # name of the data source, where a recipe mixes several

    @property
    def id(self) -> str:
        """Return a hash of prompt and answer: the same problem has the same id in every run."""
        content = repr((self.prompt, self.answer))
        return hashlib.sha256(content.encode()).hexdigest()[:12]


class SamplingParams(Struct, frozen=True):
    """Say how the tokens of one request are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # −1: the whole vocabulary
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0  # token t of a request depends on (seed, t) and its logits alone


class GenerateRequest(Struct, frozen=True):
    """Ask an engine to continue `input_ids`. Requests with equal `input_ids` that arrive together share one prefill."""

    request_id: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams
    affinity: str = ""  # requests of one group go to one replica


class Increment(Struct, frozen=True):
    """Carry the tokens that an engine has just produced. The last increment of a request has its finish reason."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # log_softmax(logits / T) before top-p and top-k
    policy_versions: tuple[int, ...]
    finish_reason: FinishReason | None = None


class Completion(Struct, frozen=True):
    """Join all increments of one request. A stop token, if any, is the last token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    finish_reason: FinishReason


class Turn(Struct, frozen=True):
    """Keep what the engine has generated so far in one turn of an episode."""

    context: bytes  # digest of the tokens before the turn; with another context, `said` does not apply
    said: Increment  # finish_reason None: the turn is not over


class Response(Struct, frozen=True):
    """Hold what a reward function sees of an episode."""

    text: str  # everything after the prompt, without the tokens that end or frame turns
    truncated: bool = False  # the token budget or the context ended the episode, and not the policy or the env
    num_tokens: int = 0  # sampled by the policy
    budget: int = 0  # rollout.max_new_tokens, which num_tokens cannot exceed


class Grade(Struct, frozen=True):
    """Hold what scoring gave one episode."""

    reward: float  # not shaped yet
    parts: dict[str, float] = {}  # as the reward function named them; empty: it returned one number
    error: str = ""  # why it was graded 0; empty: it was graded


class ScoreRequest(Struct, frozen=True):
    """Ask an engine for the log-probabilities of given tokens, those from `start` on, each behind the ones before."""

    request_id: str
    token_ids: tuple[int, ...]
    start: int  # at least 1
    temperature: float = 1.0
    top_k: int = 0  # likeliest tokens to report at each place


class TokenScores(Struct, frozen=True):
    """Hold what a model says of the L tokens of a sequence; 0 before the first that was scored."""

    logprobs: np.ndarray  # (L,) float32, log_softmax(logits / T) of each token
    top_ids: np.ndarray  # (L, k) int32, the likeliest tokens at its place
    top_logprobs: np.ndarray  # (L, k) float32

    @classmethod
    def empty(cls, length: int, top_k: int) -> "TokenScores":
        """Return scores of 0."""
        shape = (length, top_k)
        return cls(np.zeros(length, np.float32), np.zeros(shape, np.int32), np.zeros(shape, np.float32))


class Trajectory(Struct, frozen=True):
    """Hold the token record of one episode, or of one branch of it. Index t always describes token t."""

    token_ids: np.ndarray  # (L,) int32
    behavior_logprobs: np.ndarray  # (L,) float32, 0 where the engine did not sample
    policy_versions: np.ndarray  # (L,) int32, NOT_SAMPLED on prompt and tool tokens
    loss_mask: np.ndarray  # (L,) bool, True on sampled tokens to train
    prompt_length: Count  # the first prompt_length tokens are the group's common prompt, or that of a branch
    reward: float  # what training learns from, shaped; NaN: the episode ended before it was scored
    unshaped_reward: float  # see Grade.reward; NaN likewise
    truncated: bool  # the token budget, the context or the run ended it, and not the policy or the env
    reward_parts: dict[str, float] = {}  # see Grade.parts
    reward_error: str = ""  # see Grade.error
    branch: Count = 0  # of an episode whose record forked: 0 begins an episode, 1, 2, … are further branches of it
    measures: dict[str, float] = {}  # by which the env described the episode, at branch 0
    teacher: TokenScores | None = None  # of its sampled tokens, by a teacher that is an engine

    @property
    def num_sampled(self) -> int:
        """Return how many tokens the policy sampled, in the loss or not."""
        return int((self.policy_versions != NOT_SAMPLED).sum())


class TrajectoryGroup(Struct, frozen=True):
    """Hold the G episodes of one problem when the group ended: finished and rewarded, or lost with what it had."""

    group_id: Count  # serial number of the admission, from 0
    problem: Problem
    trajectories: tuple[Trajectory, ...]  # (G,), or more with branches; none, if it was lost before its first token
    dispatch_version: Count  # loaded_version when it was admitted
    dispatch_time: float  # clock seconds
    arrival_version: Count  # the trainer's version when it ended
    arrival_time: float

    @property
    def episodes(self) -> list[list[Trajectory]]:
        """Return the branches of each episode."""
        episodes: list[list[Trajectory]] = []
        for trajectory in self.trajectories:
            if trajectory.branch == 0:
                episodes.append([])
            episodes[-1].append(trajectory)
        return episodes


class Batch(Struct, frozen=True):
    """Hold what step `version` consumes: P groups, none with a token older than the staleness bound or its lag."""

    version: int  # the trainer's version v before the step
    groups: tuple[TrajectoryGroup, ...]  # (P,)


class TrainedTokens(Struct, frozen=True):
    """Hold what a step computed of the T loss tokens of its batch: one trajectory's after the other's, in its order.

    `current_logprobs` are those of the forward that computed the token's loss. Its weights have made the updates of the
    step's earlier minibatches, and not yet that of the token's own.
    """

    advantages: np.ndarray  # (T,) float32
    per_token: bool  # whether they differ from token to token; else a trajectory has one
    current_logprobs: np.ndarray | None = None  # (T,) float32, NaN where the trajectory was left out
    proximal_logprobs: np.ndarray | None = None  # (T,) likewise; None: the objective needs none


class StepWaits(Struct, frozen=True):
    """Say how long the trainer waited before a step, and for what, in clock seconds."""

    groups: float = 0.0  # fewer groups had finished than a step consumes
    bound: float = 0.0  # enough had finished, but a late group had to come first, or the engines were too far behind
    device: float = 0.0  # engines had the device that both sides share

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.groups + self.bound + self.device


class StepResult(Struct, frozen=True):
    """Report one finished training step."""

    version: int  # v + 1
    metrics: dict[str, MetricValue]
    tokens: TrainedTokens | None = None  # None: the run records no trajectories


class WeightUpdate(Struct, frozen=True):
    """Say where published weights are. They are complete there when this exists."""

    version: int
    path: str = ""  # file: a directory that `from_pretrained` loads; ipc: one of handles; memory: one with the config
    transport: Transport = "file"
    state: dict[str, Any] | None = None  # name -> tensor: memory, or what an engine has received; is never sent
    checksums: dict[str, str] = {}  # with sync.check, name -> sha256 in the engine's dtype


class StartingVersions(Struct, frozen=True):
    """Say which versions a run begins with: the trainer with `version`, the engines with the oldest."""

    model: str  # directory of `version`; above version 0 it is a checkpoint, with the optimizer's state
    version: int = 0
    older: dict[int, str] = {}  # version -> directory: what engines with an exact lag have yet to serve
    base: str = ""  # directory of version 0, if a reference reads it

    @property
    def oldest(self) -> int:
        """Return the version that the engines begin with."""
        return min(self.older, default=self.version)

    @property
    def served(self) -> str:
        """Return the directory of the oldest version."""
        return self.older.get(self.oldest, self.model)


class PauseParts(Struct, frozen=True):
    """Hold the seconds of the parts of one engine's pause. Their sum may be less than the pause."""

    drain: float = 0.0  # until it was told to stop, or had handed back every open request
    flush: float = 0.0  # until the prefix cache was dropped
    transfer: float = 0.0  # until the buckets of a broadcast were received and loaded
    load: float = 0.0  # until weights were read from a file, mapped, or copied from where they were received
    resume: float = 0.0  # until the engine could generate again


class SwapReport(Struct, frozen=True):
    """Report that the engines have loaded a version. Of several, the longest pause and its parts are reported."""

    version: int
    pause_seconds: float  # no token was generated for this long
    seconds: float  # from the request to the last replica's answer
    recomputed_tokens: int = 0  # of interrupted requests, prompts included: their cache was dropped
    parts: PauseParts = PauseParts()


class Accuracy(Struct, frozen=True):
    """Report the mean score of a version on the problems of a suite: of its parts `correct`, else of its rewards."""

    mean_reward: float
    problems: int
    version: int
    suite: str = "held_out"  # the recipe's own problems, or a task
    samples: int = 1  # episodes of each problem
    low: float | None = None  # 95 % interval of mean_reward, by bootstrap over problems; None: not known
    high: float | None = None
