"""Define every metric once, by formula and unit. A test fails on one logged but not defined, or never logged.

B trajectories of the step's batch; v is the version before the step; Δ is "since the previous step's end".
An episode is right if the part `correct` of its reward is ≥ 0.5; without such a part, if its unshaped reward is.
"""

from collections.abc import Mapping
from typing import NamedTuple

# One line of metrics.jsonl. A list named …/histogram counts by age, [n_age0, n_age1, …]. Any other list has one number
# for each of AGE_BUCKETS, None where the bucket has no token.
Record = dict[str, float | list[int] | list[float | None]]
AGE_BUCKETS = ("0", "1", "2", "3-4", "5-8", "9-16", "17+")  # of tokens, in versions
FIRST_AGES = (0, 1, 2, 3, 5, 9, 17)  # of each bucket; the last has no end


class Metric(NamedTuple):
    """Define one metric."""

    unit: str
    formula: str


METRICS: dict[str, Metric] = {
    # ---- which step
    "step": Metric("steps", "v + 1: training steps finished"),
    "policy_version": Metric("versions", "the trainer's version after the step; equals step"),
    "time_s": Metric("s", "clock time since the run's first admission"),
    "epochs": Metric("epochs", "problems handed out so far / training problems"),
    # ---- what was rolled out
    "reward/generated_mean": Metric(
        "reward", "mean over the scored episodes of groups that ended, Δ: before the filter; absent if none ended"
    ),
    "reward/errors": Metric("episodes", "scored episodes that got 0 because grading failed, in groups that ended, Δ"),
    "reward/wait_seconds": Metric(
        "s",
        "mean over graded groups of the time from the end of their last episode to their grades, Δ; absent in replays",
    ),
    "reward/trained_mean": Metric("reward", "mean over B of the episode reward: after the filter"),
    "reward/trained_std": Metric("reward", "standard deviation over B of the episode reward: after the filter"),
    "length/mean": Metric("tokens", "mean over B of sampled tokens"),
    "length/p50": Metric("tokens", "median over B of sampled tokens"),
    "length/p99": Metric("tokens", "99th percentile over B of sampled tokens"),
    "length/max": Metric("tokens", "max over B of sampled tokens"),
    "length/right_mean": Metric("tokens", "mean of sampled tokens over the right trajectories of B; absent if none is"),
    "length/wrong_mean": Metric("tokens", "mean of sampled tokens over the wrong trajectories of B; absent if none is"),
    "truncated": Metric("fraction", "trajectories that the budget or the context ended, not the policy or the env / B"),
    # ---- groups that ended, Δ, before the filter: shares of those whose episodes were all scored; absent if none was
    "groups/all_right": Metric("fraction", "groups of right episodes only / groups"),
    "groups/all_wrong": Metric("fraction", "groups without a right episode / groups"),
    "groups/mixed": Metric("fraction", "groups with right and wrong episodes / groups"),
    "groups/pass_at_g": Metric("fraction", "groups with a right episode / groups: pass@G"),
    "groups/equal_rewards": Metric("fraction", "groups of equal rewards, from which GRPO learns nothing / groups"),
    "groups/rejection_rate": Metric("fraction", "groups that the filter or the env rejected / all that ended, Δ"),
    # ---- how old it was
    "staleness/max": Metric("versions", "max over B of staleness, the oldest token_age of a trajectory"),
    "staleness/mean": Metric("versions", "mean over B of staleness"),
    "token_age/mean": Metric("versions", "mean over loss tokens of v − policy_version"),
    "token_age/histogram": Metric("tokens", "loss tokens of age 0, 1, …, up to staleness/max"),
    "token_age/stale_fraction": Metric("fraction", "loss tokens with age ≥ 1 / loss tokens"),
    "versions/spanning_fraction": Metric(
        "fraction", "trajectories sampled by two or more versions / trajectories of B with a loss token"
    ),
    "dispatch_age/mean": Metric("versions", "mean over groups of v − dispatch_version"),
    "dispatch_age/max": Metric("versions", "max over groups of v − dispatch_version"),
    "dispatch_age/histogram": Metric("groups", "groups with v − dispatch_version = 0, 1, …"),
    "queue_age/mean": Metric("versions", "mean over groups of v − arrival_version: steps it waited in the buffer"),
    "queue_age/max": Metric("versions", "max over groups of v − arrival_version"),
    "queue_age/histogram": Metric("groups", "groups with v − arrival_version = 0, 1, …"),
    # ---- how much, how fast
    "tokens/generated": Metric("tokens", "audit/tokens_generated, Δ"),
    "tokens/trained": Metric("tokens", "loss tokens of the batch, zero advantages included"),
    "tokens/generated_total": Metric("tokens", "sum of tokens/generated since the start"),
    "tokens/trained_total": Metric("tokens", "sum of tokens/trained since the start"),
    "throughput/trained_tokens_per_s": Metric("tokens/s", "tokens/trained / Δ time"),
    "idle/trainer": Metric("fraction", "time the trainer waited for its batch / Δ time"),
    "idle/engine": Metric("fraction", "1 − time with a request open and no pause / Δ time"),
    "time/proximal_s": Metric("s", "proximal pass of the step"),
    "time/halves_s": Metric("s", "the passes of grad_cosine/stale_fresh, in steps that measure it"),
    "time/train_s": Metric("s", "minibatches of the step: forward, backward, optimizer"),
    "hardware/mfu": Metric(
        "fraction", "hardware/tflops / the peak of the device's data sheet; absent where that is unknown, as on CPUs"
    ),
    "hardware/tflops": Metric(
        "TFLOP/s", "6 · multiply-adds of the step's minibatches, computed tokens and scored rows only / time / ranks"
    ),
    "hardware/memory_gb": Metric("GB", "most memory a rank ever used: allocated on its GPU, or resident on a CPU"),
    "groups/failed": Metric("groups", "groups lost to a failed episode, since the start"),
    "groups/rejected": Metric("groups", "groups rejected by the filter or the env, since the start"),
    "groups/dropped": Metric("groups", "groups lost otherwise, like those dropped as late, since the start"),
    "engines/restarts": Metric("restarts", "engines that were lost and replaced, since the start"),
    # ---- which groups are trained (arl/metrics/audit.py): since the start, means over groups of a group's mean
    "audit/length_generated": Metric("tokens", "mean length of the groups that ended, finished or lost"),
    "audit/length_trained": Metric("tokens", "mean length of the groups that were trained"),
    "audit/length_rejected": Metric("tokens", "mean length of the groups that the filter or the env rejected"),
    "audit/length_failed": Metric("tokens", "mean length of the groups that failed: a lower bound"),
    "audit/length_dropped": Metric("tokens", "mean length of the groups that were dropped: a lower bound"),
    "audit/reward_generated": Metric("reward", "mean reward of the groups that ended and were scored"),
    "audit/reward_trained": Metric("reward", "mean reward of the groups that were trained"),
    "audit/reward_rejected": Metric("reward", "mean reward of the groups that were rejected although scored"),
    "audit/reward_failed": Metric("reward", "mean reward of the groups that failed although scored"),
    "audit/reward_dropped": Metric("reward", "mean reward of the groups that were dropped although scored"),
    "audit/groups_in_flight": Metric("groups", "admitted − trained − lost: running, or finished and in the buffer"),
    # ---- the ledger: sampled tokens since the start; generated is the sum of the other five
    "audit/tokens_generated": Metric(
        "tokens",
        "of groups that ended, and of the ended episodes of groups that run; an episode ends when its env returns or "
        "raises, a group that is dropped counts with what it had at that moment",
    ),
    "audit/tokens_trained": Metric("tokens", "of trained groups, tokens without loss included"),
    "audit/tokens_rejected": Metric("tokens", "of groups that the filter or the env rejected"),
    "audit/tokens_failed": Metric("tokens", "of groups that failed"),
    "audit/tokens_dropped": Metric(
        "tokens",
        "of groups that were lost otherwise, like those dropped as late, and of ended episodes that a resumed run had "
        "to begin anew, with sync.interrupt false",
    ),
    "audit/tokens_in_flight": Metric(
        "tokens", "of finished groups in the buffer, and of ended episodes of running ones"
    ),
    # ---- waits; what is not named here, by the times or by the pauses is unexplained
    "time/step_s": Metric("s", "Δ time"),
    "time/pack_s": Metric(
        "s",
        "ranks were idle for the packing: from the choice of the batch to the answers of all ranks, less the longest "
        "time that a rank was busy, from its first micro-batch on",
    ),
    "groups/generation_s": Metric("s", "mean over groups of arrival − dispatch: episodes and their grades"),
    "groups/queue_s": Metric("s", "mean over groups of the start of the step − arrival"),
    "wait/groups_s": Metric("s", "the trainer waited because fewer than P groups had finished, Δ"),
    "wait/bound_s": Metric(
        "s",
        "the trainer waited although P groups had finished: for a late group that had to come first, or without a "
        "bound for engines that were too many versions behind, Δ",
    ),
    "wait/device_s": Metric("s", "the trainer waited for its turn of the device, in mode collocated, Δ"),
    "wait/gate_s": Metric(
        "s",
        "no request was open and no group might start, by the staleness gate, the lag or max_groups, Δ; with "
        "sync.interrupt false also while episodes wait for a swap, which sync/paused_s counts as well",
    ),
    # ---- weight movement
    "sync/swaps": Metric("swaps", "swaps that ended, Δ"),
    "sync/paused_s": Metric("s", "sum of their pauses, Δ"),
    "sync/recomputed_tokens": Metric(
        "tokens", "prompts and answers so far of requests that swaps interrupted, under engine.kv_policy recompute, Δ"
    ),
    "sync/versions_behind": Metric("versions", "mean over time of the trainer's version − the engines', Δ"),
    "sync/blocking_seconds": Metric(
        "s", "the trainer's snapshot copy after the step; with rollout.lag, and its wait for a place in line"
    ),
    "sync/seconds": Metric("s", "last swap: from the call until every engine serves the version"),
    "sync/pause_seconds": Metric(
        "s", "last swap: the longest time for which an engine generated no token; the next five are parts of that"
    ),
    "sync/drain_seconds": Metric("s", "until its open requests were handed back, or stopped in place"),
    "sync/flush_seconds": Metric("s", "until its prefix cache was dropped"),
    "sync/transfer_seconds": Metric("s", "until weights were received, by an engine that does so within the pause"),
    "sync/load_seconds": Metric("s", "until weights were read from a file, mapped, or copied from where they lie"),
    "sync/resume_seconds": Metric("s", "until it could generate again"),
    # ---- the objective (docs/algorithms.md); under gspo, a token has its trajectory's ratio and weight
    "loss": Metric("", "sum over minibatches of the objective's loss / minibatches"),
    "ratio/mean": Metric("", "mean over computed loss tokens of the ratio u: π_θ/π_prox, under naive ppo π_θ/π_behav"),
    "ratio/max": Metric("", "largest u of a computed loss token"),
    "ratio/clip_fraction": Metric(
        "fraction", "computed loss tokens whose clipped term was chosen / computed loss tokens: up + down"
    ),
    "ratio/clip_fraction_up": Metric("fraction", "computed loss tokens with A > 0 and u > 1 + ε_high / computed ones"),
    "ratio/clip_fraction_down": Metric("fraction", "computed loss tokens with A < 0 and u < 1 − ε_low / computed ones"),
    "ratio/dual_clip_fraction": Metric(
        "fraction", "computed loss tokens with A < 0 and u > objective.dual_clip / computed ones; absent without that"
    ),
    "behavior_weight/mean": Metric("", "mean over computed loss tokens of the weight in the loss; absent if it is off"),
    "behavior_weight/capped_fraction": Metric(
        "fraction", "computed loss tokens with w > cap / computed loss tokens; absent if the weight is off"
    ),
    "behavior_weight/uncapped_mean": Metric("", "mean over computed loss tokens of w = π_prox/π_behav"),
    "behavior_weight/max": Metric("", "largest w of a computed loss token"),
    "behavior_weight/effective_sample_size": Metric("fraction", "(Σ w)² / (n Σ w²) over n computed loss tokens"),
    "kl/behavior_proximal": Metric("nats", "mean of w − 1 − log w over computed loss tokens: KL(π_behav ‖ π_prox)"),
    "kl/proximal_current": Metric("nats", "mean of u − 1 − log u over computed loss tokens: KL(π_prox ‖ π_θ)"),
    "kl/behavior_current": Metric(
        "nats", "mean of r − 1 − log r over computed loss tokens, r = π_θ/π_behav of each token: KL(π_behav ‖ π_θ)"
    ),
    # ---- the same for the computed loss tokens of each age v − policy_version: one number for each of AGE_BUCKETS
    "by_age/tokens": Metric("tokens", "computed loss tokens"),
    "by_age/ratio": Metric("", "mean of u"),
    "by_age/clip_up": Metric("fraction", "tokens with A > 0 and u > 1 + ε_high / tokens"),
    "by_age/clip_down": Metric("fraction", "tokens with A < 0 and u < 1 − ε_low / tokens"),
    "by_age/behavior_weight": Metric("", "mean of w, uncapped"),
    "by_age/effective_sample_size": Metric("fraction", "(Σ w)² / (n Σ w²) over the n tokens, uncapped"),
    "by_age/kl_behavior_proximal": Metric("nats", "mean of w − 1 − log w"),
    "by_age/kl_proximal_current": Metric("nats", "mean of u − 1 − log u"),
    "by_age/kl_behavior_current": Metric("nats", "mean of r − 1 − log r, r = π_θ/π_behav"),
    # ---- updates
    "entropy": Metric("nats", "mean entropy of π_θ at computed loss tokens"),
    "grad_norm": Metric("", "mean over minibatches of the gradient norm before clipping"),
    "grad_cosine/previous": Metric(
        "",
        "mean over minibatches of the cosine between the gradient before clipping and AdamW's first moment before the "
        "update, the decayed mean of the gradients before it; left out where either is 0, as in the first update",
    ),
    "grad_cosine/stale_fresh": Metric(
        "",
        "cosine between the gradients of the stale and the fresh half of the first minibatch's computed loss tokens, "
        "cut between two ages as evenly as possible; every train.halves_every steps, where both have a gradient",
    ),
    "train/skipped_updates": Metric(
        "updates", "minibatches whose loss or gradient was not finite: left out of weights and of these means"
    ),
    "train/loss_scale": Metric("", "factor of the loss for the next update; only with train.dtype float16"),
    "learning_rate": Metric("", "of the step's last minibatch"),
    "advantage/zero_fraction": Metric(
        "fraction", "trajectories with advantage exactly 0, which need no forward pass / B"
    ),
    "packing/efficiency": Metric("fraction", "tokens in micro-batches / (capacity · micro-batches)"),
    "packing/balance": Metric(
        "", "sum over m of the FLOPs of the largest micro-batch m of a rank, for which all wait / mean FLOPs of a rank"
    ),
    "packing/saved_fraction": Metric("fraction", "1 − computed tokens / tokens of the unshared, unfiltered batch"),
    # ---- evaluation, in records of their own
    "eval/held_out/accuracy": Metric("fraction", "mean reward on held-out problems at eval.temperature"),
    "eval/held_out/problems": Metric("problems", "problems in that mean"),
}

AXES = ("step", "policy_version", "time_s", "epochs", "tokens/generated_total", "tokens/trained_total")
OF_OBJECTIVE = "objective/"  # begins the names of what a user's objective logs, which it defines itself
OF_PART = "reward/"  # begins reward/<part>: mean over the trajectories of B whose reward names that part, unweighted
OF_EVALUATION = "eval/"
BY_AGE = "by_age/"  # begins the names of lists with one number for each of AGE_BUCKETS
MEASURED = frozenset(f"time/{part}_s" for part in ("pack", "proximal", "halves", "train")) | {
    "hardware/mfu",
    "hardware/tflops",
    "hardware/memory_gb",
}
# A metric that is undefined for a step is left out of its record: under naive ppo there is no behavior weight, with all
# advantages 0 no token was computed, with all updates skipped there is no loss, without loss tokens there is no age,
# without a wrong episode they have no length.


def is_defined(name: str) -> bool:
    """Return whether a metric is defined: here, by the user's objective, by a part of the reward, or for any suite."""
    if name.startswith(OF_EVALUATION):  # every suite has what held_out has
        _, _, metric = name.removeprefix(OF_EVALUATION).rpartition("/")
        return f"{OF_EVALUATION}held_out/{metric}" in METRICS
    return name in METRICS or name.startswith((OF_OBJECTIVE, OF_PART))


def part_metric(part: str) -> str:
    """Return the name under which a part of the reward is logged; one that arl itself logs gets an underscore."""
    name = f"{OF_PART}{part}"
    return f"{name}_" if name in METRICS else name


def number(record: Mapping[str, float | list[int] | list[float | None]], name: str) -> float:
    """Return a metric that is one number."""
    value = record[name]
    assert not isinstance(value, list), f"{name} is a list"
    return value
