"""Define every metric once, by formula and unit. A test fails on one logged but not defined, or never logged.

B episodes of the step's batch; v is the version before the step; Δ is "since the previous step's end". An episode is
one trajectory, or several where its record forked.
An episode is right if the part `correct` of its reward is ≥ 0.5; without such a part, if its unshaped reward is.
"""

from collections.abc import Mapping

# One line of metrics.jsonl. A list named …/histogram counts by age, [n_age0, n_age1, …]. Any other list has one number
# for each of AGE_BUCKETS, None where the bucket has no token.
Record = dict[str, float | list[int] | list[float | None]]
AGE_BUCKETS = ("0", "1", "2", "3-4", "5-8", "9-16", "17+")  # of tokens, in versions
FIRST_AGES = (0, 1, 2, 3, 5, 9, 17)  # of each bucket; the last has no end

METRICS = {  # name -> formula [unit]
    # ---- which step
    "step": "v + 1: training steps finished [steps]",
    "policy_version": "the trainer's version after the step; equals step [versions]",
    "time_s": "clock time since the run's first admission [s]",
    "epochs": "problems handed out or skipped so far / training problems [epochs]",
    "curriculum/skipped": "training problems that data.curriculum skips in this epoch / all of them [fraction]",
    # ---- what was rolled out
    "reward/generated_mean": "mean over the scored episodes of groups that ended, Δ, before the filter [reward]",
    "reward/errors": "scored episodes that got 0 because grading failed, in groups that ended, Δ [episodes]",
    "reward/wait_seconds": "mean over graded groups, Δ, from the last episode to the grades; none in replays [s]",
    "reward/trained_mean": "mean over B of the episode reward: after the filter [reward]",
    "reward/trained_std": "standard deviation over B of the episode reward: after the filter [reward]",
    "length/mean": "mean over B of sampled tokens [tokens]",
    "length/p50": "median over B of sampled tokens [tokens]",
    "length/p99": "99th percentile over B of sampled tokens [tokens]",
    "length/max": "max over B of sampled tokens [tokens]",
    "length/right_mean": "mean of sampled tokens over the right trajectories of B; absent if none is [tokens]",
    "length/wrong_mean": "mean of sampled tokens over the wrong trajectories of B; absent if none is [tokens]",
    "truncated": "trajectories that the budget or the context ended, not the policy or the env / B [fraction]",
    # ---- groups that ended, Δ, before the filter: shares of those whose episodes were all scored; absent if none was
    "groups/all_right": "groups of right episodes only / groups [fraction]",
    "groups/all_wrong": "groups without a right episode / groups [fraction]",
    "groups/equal_rewards": "groups of equal rewards, from which GRPO learns nothing / groups [fraction]",
    "groups/rejection_rate": "groups that the filter or the env rejected / all that ended, Δ [fraction]",
    # ---- how old it was
    "staleness/max": "max over B of staleness, the oldest token_age of a trajectory [versions]",
    "staleness/mean": "mean over B of staleness [versions]",
    "token_age/mean": "mean over loss tokens of v − policy_version [versions]",
    "token_age/histogram": "loss tokens of age 0, 1, …, up to staleness/max [tokens]",
    "token_age/stale_fraction": "loss tokens with age ≥ 1 / loss tokens [fraction]",
    "versions/spanning_fraction": "trajectories sampled by ≥ 2 versions / those with a loss token [fraction]",
    "dispatch_age/mean": "mean over groups of v − dispatch_version [versions]",
    "queue_age/mean": "mean over groups of v − arrival_version: steps it waited in the buffer [versions]",
    # ---- how much, how fast
    "tokens/generated": "audit/tokens_generated, Δ [tokens]",
    "tokens/trained": "loss tokens of the batch, zero advantages included [tokens]",
    "tokens/trained_total": "sum of tokens/trained since the start [tokens]",
    "throughput/trained_tokens_per_s": "tokens/trained / Δ time [tokens/s]",
    "idle/trainer": "time the trainer waited for its batch / Δ time [fraction]",
    "idle/engine": "1 − time with a request open and no pause / Δ time [fraction]",
    "time/proximal_s": "proximal pass of the step [s]",
    "time/critic_s": "the critic's updates; its forward before them is in time/proximal_s [s]",
    "time/halves_s": "the passes of grad_cosine/stale_fresh, in steps that measure it [s]",
    "time/train_s": "minibatches of the step: forward, backward, optimizer [s]",
    "hardware/mfu": "hardware/tflops / the peak of the device's data sheet, where that is known [fraction]",
    "hardware/tflops": "6 · multiply-adds of computed tokens and scored rows / time / ranks [TFLOP/s]",
    "hardware/memory_gb": "most memory a rank ever used: allocated on its GPU, or resident on a CPU [GB]",
    "groups/failed": "groups lost to a failed episode, since the start [groups]",
    "groups/rejected": "groups rejected by the filter or the env, since the start [groups]",
    "groups/dropped": "groups lost otherwise, like those dropped as late, since the start [groups]",
    "engines/restarts": "engines that were lost and replaced, since the start [restarts]",
    # ---- which groups are trained (arl/metrics/audit.py): since the start, means over groups of a group's mean
    "audit/length_generated": "mean length of the groups that ended, finished or lost [tokens]",
    "audit/length_trained": "mean length of the groups that were trained [tokens]",
    "audit/length_rejected": "mean length of the groups that the filter or the env rejected [tokens]",
    "audit/length_failed": "mean length of the groups that failed: a lower bound [tokens]",
    "audit/length_dropped": "mean length of the groups that were dropped: a lower bound [tokens]",
    "audit/reward_generated": "mean reward of the groups that ended and were scored [reward]",
    "audit/reward_trained": "mean reward of the groups that were trained [reward]",
    "audit/reward_rejected": "mean reward of the groups that were rejected although scored [reward]",
    "audit/reward_failed": "mean reward of the groups that failed although scored [reward]",
    "audit/reward_dropped": "mean reward of the groups that were dropped although scored [reward]",
    "audit/groups_in_flight": "admitted − trained − lost: running, or finished and in the buffer [groups]",
    # ---- the ledger: sampled tokens since the start; generated is the sum of the other five
    "audit/tokens_generated": "of groups that ended, and of the ended episodes of groups that run [tokens]",
    "audit/tokens_trained": "of trained groups, tokens without loss included [tokens]",
    "audit/tokens_rejected": "of groups that the filter or the env rejected [tokens]",
    "audit/tokens_failed": "of groups that failed [tokens]",
    "audit/tokens_dropped": "of groups lost otherwise, and of episodes that a resumed run began anew [tokens]",
    "audit/tokens_in_flight": "of finished groups in the buffer, and of ended episodes of running ones [tokens]",
    # ---- waits; what is not named here, by the times or by the pauses is unexplained
    "time/step_s": "Δ time [s]",
    "time/pack_s": "from the choice of the batch to the answers of all ranks − the longest that a rank was busy [s]",
    "groups/generation_s": "mean over groups of arrival − dispatch: episodes and their grades [s]",
    "groups/queue_s": "mean over groups of the start of the step − arrival [s]",
    "wait/groups_s": "the trainer waited because fewer than P groups had finished, Δ [s]",
    "wait/bound_s": "the trainer waited although P groups had finished: for a late group or engines far behind, Δ [s]",
    "wait/device_s": "the trainer waited for its turn of the device, in mode collocated, Δ [s]",
    "wait/gate_s": "no request was open and no group might start, Δ; may overlap sync/paused_s [s]",
    # ---- weight movement
    "sync/swaps": "swaps that ended, Δ [swaps]",
    "sync/paused_s": "sum of their pauses, Δ [s]",
    "sync/recomputed_tokens": "tokens whose KV swaps dropped, under engine.kv_policy recompute, Δ [tokens]",
    "sync/blocking_seconds": "the trainer's snapshot copy after the step; with rollout.lag also its wait in line [s]",
    "sync/seconds": "last swap: from the call until every engine serves the version [s]",
    "sync/pause_seconds": "last swap: the longest that an engine generated nothing; the next five are its parts [s]",
    "sync/drain_seconds": "until it was told to stop; collocated: until its open requests were handed back [s]",
    "sync/flush_seconds": "until its prefix cache was dropped [s]",
    "sync/transfer_seconds": "until the buckets of a broadcast were received and loaded [s]",
    "sync/load_seconds": "until weights were read from a file, mapped, or copied from where they lie [s]",
    "sync/resume_seconds": "until it could generate again [s]",
    # ---- the objective (docs/algorithms.md); under gspo, a token has its trajectory's ratio and weight
    "loss": "sum over minibatches of the objective's loss / minibatches",
    "ratio/mean": "mean over computed loss tokens of the ratio u: π_θ/π_prox, under naive ppo π_θ/π_behav",
    "ratio/max": "largest u of a computed loss token",
    "ratio/clip_fraction": "computed loss tokens whose clipped term was chosen / computed ones: up + down [fraction]",
    "ratio/clip_fraction_up": "computed loss tokens with A > 0 (cispo: any) and u > 1 + ε_high / all [fraction]",
    "ratio/clip_fraction_down": "computed loss tokens with A < 0 (cispo: any) and u < 1 − ε_low / all [fraction]",
    "ratio/dual_clip_fraction": "computed loss tokens with A < 0 and u > objective.dual_clip / all [fraction]",
    "behavior_weight/mean": "mean over computed loss tokens of the weight in the loss; absent if it is off",
    "behavior_weight/capped_fraction": "computed loss tokens outside of [low, high] / computed ones [fraction]",
    "behavior_weight/uncapped_mean": "mean over computed loss tokens of w = π_prox/π_behav",
    "behavior_weight/max": "largest w of a computed loss token",
    "behavior_weight/effective_sample_size": "(Σ w)² / (n Σ w²) over n computed loss tokens [fraction]",
    "kl/behavior_proximal": "mean of w − 1 − log w over computed loss tokens: KL(π_behav ‖ π_prox) [nats]",
    "kl/proximal_current": "mean of u − 1 − log u over computed loss tokens: KL(π_prox ‖ π_θ) [nats]",
    "kl/behavior_current": "mean of r − 1 − log r over computed loss tokens, r = π_θ/π_behav: KL(π_behav ‖ π_θ) [nats]",
    "kl/reference": "mean of k3 over computed loss tokens: KL(π_θ ‖ π_ref), with objective.reference [nats]",
    "kl/teacher": "with objective.teacher, mean over computed loss tokens of its divergence; top_k 0: of k3 [nats]",
    # ---- the same for the computed loss tokens of each age v − policy_version: one number for each of AGE_BUCKETS
    "by_age/tokens": "computed loss tokens [tokens]",
    "by_age/ratio": "mean of u",
    "by_age/clip_up": "tokens with A > 0 and u > 1 + ε_high / tokens [fraction]",
    "by_age/clip_down": "tokens with A < 0 and u < 1 − ε_low / tokens [fraction]",
    "by_age/behavior_weight": "mean of w, uncapped",
    "by_age/effective_sample_size": "(Σ w)² / (n Σ w²) over the n tokens, uncapped [fraction]",
    "by_age/kl_behavior_proximal": "mean of w − 1 − log w [nats]",
    "by_age/kl_proximal_current": "mean of u − 1 − log u [nats]",
    "by_age/kl_behavior_current": "mean of r − 1 − log r, r = π_θ/π_behav [nats]",
    "by_age/kl_reference": "mean of k3: KL(π_θ ‖ π_ref) [nats]",
    "by_age/kl_teacher": "mean of the divergence from the teacher [nats]",
    # of current/behavior = mismatch (of engine and trainer) · staleness · update: see train.ratio_parts_every
    "by_age/log_mismatch": "mean of log π_sampled − log π_behav, π_sampled the version that sampled the token [nats]",
    "by_age/log_staleness": "mean of log π_v − log π_sampled [nats]",
    "by_age/log_update": "mean of log π_θ − log π_v [nats]",
    "by_age/k3_mismatch": "mean of r − 1 − log r, r = π_sampled/π_behav [nats]",
    "by_age/k3_staleness": "mean of r − 1 − log r, r = π_v/π_sampled [nats]",
    "by_age/k3_update": "mean of r − 1 − log r, r = π_θ/π_v [nats]",
    # ---- updates
    "entropy": "mean entropy of π_θ at computed loss tokens [nats]",
    "grad_norm": "mean over minibatches of the gradient norm before clipping",
    # of the gradient before clipping and AdamW's first moment before the update; left out where either is 0
    "grad_cosine/previous": "mean over minibatches of the cosine of the gradient and the gradients before it",
    # of the first minibatch, cut between two ages as evenly as possible; where both halves have a gradient
    "grad_cosine/stale_fresh": "cosine of the gradients of its stale and its fresh half; see train.halves_every",
    "train/skipped_updates": "minibatches whose loss or gradient was not finite; left out of these means [updates]",
    "train/loss_scale": "factor of the loss for the next update; only with train.dtype float16",
    "learning_rate": "of the step's last minibatch",
    "advantage/zero_fraction": "trajectories with advantage exactly 0, which need no forward pass / B; without a "
    "critic, and unless a teacher is alone [fraction]",
    "critic/loss": "with train.critic: mean over minibatches of its loss",
    "critic/explained_variance": "1 − Var(R − V) / Var(R) over loss tokens, V before the step; absent if R is constant",
    "critic/value_mean": "mean of V over the step's loss tokens [reward]",
    "critic/clip_fraction": "loss tokens at which the clipped loss was larger / all; only with train.critic.clip "
    "[fraction]",
    "critic/grad_norm": "mean over minibatches of the norm of the critic's gradient before clipping",
    "packing/efficiency": "tokens in micro-batches / (capacity · micro-batches) [fraction]",
    "packing/balance": "FLOPs of the largest micro-batch of all ranks, summed over m / mean FLOPs of a rank",
    "packing/saved_fraction": "1 − computed tokens / tokens of the unshared, unfiltered batch [fraction]",
    # ---- evaluation, in records of their own
    "eval/held_out/accuracy": "mean reward on held-out problems at eval.temperature; of several sources, the mean of "
    "eval/held_out/<source>/accuracy [fraction]",
    "eval/held_out/problems": "problems in that mean [problems]",
}

SOURCE_METRICS = {  # of each of several sources, as source/<name>/share; those of nothing are left out
    "share": "groups of the source in the batch / groups of the batch [fraction]",
    "reward": "mean of the episode reward over its trajectories in B [reward]",
    "right": "right trajectories / its trajectories in B [fraction]",
    "length": "mean of sampled tokens over its trajectories in B [tokens]",
    "token_age": "mean over its loss tokens in B of v − policy_version [versions]",
    "staleness_max": "max of staleness over its trajectories in B [versions]",
    "epochs": "its problems handed out or skipped so far / its training problems [epochs]",
    "skipped": "curriculum/skipped of the source [fraction]",
}

AXES = ("step", "policy_version", "time_s", "epochs", "tokens/trained_total")
OF_OBJECTIVE = "objective/"  # begins the names of what a user's objective logs, which it defines itself
OF_PART = "reward/"  # begins reward/<part>: mean over the trajectories of B whose reward names that part, unweighted
OF_ENV = "env/"  # begins env/<name>: mean over the episodes of B to which the env gave that measure, as in env/turns
OF_EVALUATION = "eval/"  # begins eval/<suite>/…: every suite has what held_out has
OF_SOURCE = "source/"  # begins source/<name>/…: the SOURCE_METRICS of each source, where a recipe mixes several
BY_AGE = "by_age/"  # begins the names of lists with one number for each of AGE_BUCKETS
MEASURED = frozenset(f"time/{part}_s" for part in ("pack", "proximal", "halves", "train", "critic")) | {
    "hardware/mfu",
    "hardware/tflops",
    "hardware/memory_gb",
}
# A metric that is undefined for a step is left out of its record: under naive ppo there is no behavior weight, with all
# advantages 0 no token was computed, with all updates skipped there is no loss, without loss tokens there is no age,
# without a wrong episode they have no length.


def is_defined(name: str) -> bool:
    """Return whether arl defines a metric, or says who does."""
    if name.startswith(OF_SOURCE):
        return name.rpartition("/")[2] in SOURCE_METRICS
    return name in METRICS or name.startswith((OF_OBJECTIVE, OF_PART, OF_ENV, OF_EVALUATION))


def number(record: Mapping[str, float | list[int] | list[float | None]], name: str) -> float:
    """Return a metric that is one number."""
    value = record[name]
    assert not isinstance(value, list), f"{name} is a list"
    return value
