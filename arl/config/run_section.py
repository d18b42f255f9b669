"""Define the recipe's sections about a run as a whole: its deadlines, virtual costs and output."""

from typing import Literal

from arl.config.section import Cost, FilePath, NonNegative, Positive, Seconds, Section

SHUTDOWN = 10.0  # seconds of a process that was asked to exit, before it is killed
MARGIN = 10.0  # seconds between the deadline of a process that knows more and the one around it
LONGEST_PAUSE = 3600.0  # seconds for which all processes of a run may be stopped at any moment, and go on


class Deadlines(Section):
    """Bound every wait. When a deadline passes, a message says who waited for whom. Most of them end the run.

    An engine that misses one is first restarted, up to engine.max_restarts times.
    """

    startup: Seconds = 900.0
    """Start of a process until it is ready; on GPUs with compiling kernels and recording graphs, for all engine servers
    at once. A long one costs little, because a process that dies is noticed at once."""
    step: Seconds = 1800.0
    """One training step, and the wait for a batch, from the last group that ended. Longer than the longest episode:
    27,000 tokens at 50 a second take 540 seconds."""
    swap: Seconds = 60.0
    """One weight publication and one swap."""
    generate: Seconds = 600.0
    """Silence of an engine with an open request, before it is killed and restarted."""
    reward: Seconds = 10.0
    """Scoring one response, without the time it waits for a core. A longer call is killed and repeated once; see
    reward.on_error."""
    episode: Seconds = 600.0
    """Silence of an env: before, between and after the turns of the policy, each for itself. Then its group fails, and
    its problem may be tried again; see rollout.max_requeues."""
    stop: Seconds = 300.0
    """From the first Ctrl-C or SIGTERM until the current step has ended and its checkpoint is complete. Later, the run
    ends without that checkpoint."""

    # What follows from these. A process whose deadline lies within one of another process ends its own wait first,
    # because it knows more. In one process arl.clock.outer_deadline sees to that.

    @property
    def shutdown(self) -> float:
        """Return the seconds of a process that was asked to exit, before it is killed."""
        return SHUTDOWN

    @property
    def blocked_broadcast(self) -> float:
        """Return when a rank gives up a broadcast that does not move: half of `swap`.

        So engines that wait for one that has died in the first half of `swap` answer before their own commands end, and
        are not taken for dead as well.
        """
        return self.swap / 2

    @property
    def evaluation(self) -> float:
        """Return when a version that is measured beside a run is left out: so long after its start or its last answer.

        Its engine has the lowest priority.
        """
        return self.startup + self.step + MARGIN

    @property
    def swap_and_restart(self) -> float:
        """Return the longest time of a swap: an engine falls silent, is restarted, and loads the weights."""
        return self.swap + self.startup + self.swap

    @property
    def collective(self) -> float:
        """Return when a rank gives up a collective: long after the controller has ended the step and named who hangs.

        Torch's clocks cannot be moved, so all ranks may be stopped for LONGEST_PAUSE in the middle of a collective.
        """
        return self.step + LONGEST_PAUSE

    @property
    def ranks_stop(self) -> float:
        """Return when the controller stops waiting for ranks that exit, each of which has `shutdown` to publish."""
        return self.shutdown + MARGIN

    @property
    def engine_joined(self) -> float:
        """Return when `arl engines join` gives up: the controller gives up an engine first, and says why."""
        return self.startup + self.swap + MARGIN

    @property
    def engine_removed(self) -> float:
        """Return when `arl engines remove` gives up: the controller has ended the engine by then."""
        return self.swap + self.shutdown + self.swap + MARGIN


class VirtualCosts(Section):
    """Set what each operation takes under `world: virtual`. The defaults imitate the quickstart on a laptop.

    An engine pass takes engine_pass + decode_token · rows that decode + prefill_token · prompt tokens; a training step
    takes train_step + trained_token · loss tokens.
    """

    engine_pass: Cost = 1e-3
    """One pass of one replica."""
    decode_token: Cost = 20e-6
    """Each request that decodes a token in a pass."""
    prefill_token: Cost = 20e-6
    """Each new prompt token in a pass, shared prompts once."""
    train_step: Cost = 30e-3
    """One training step."""
    trained_token: Cost = 20e-6
    """Each loss token of a step."""
    snapshot: Cost = 0.5e-3
    """Copying the weights after a step, while the trainer waits."""
    publish: Cost = 5e-3
    """Writing a snapshot for the engines, one after the other, while the trainer goes on."""
    load: Cost = 5e-3
    """Loading published weights into one replica, which is paused."""
    reward: Cost = 0.2e-3
    """One call of the reward function; reward.workers run at a time."""


class Output(Section):
    """Say what a run leaves behind."""

    directory: FilePath = "runs"
    """Runs are in <directory>/<name>. An existing run is not overwritten: the next is <name>-2."""
    checkpoint_every: NonNegative | None = None
    """Steps between checkpoints, from which a killed run resumes; the last step always has one. 0: only the last. null:
    20, or 0 in world virtual, where checkpoints change the schedule."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints to keep."""
    trajectories: bool = True
    """Write every trajectory that was trained or lost to Parquet, with its fate."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Mirror metrics.jsonl to Weights & Biases; online goes offline without a network. WANDB_PROJECT, WANDB_RUN_GROUP
    and WANDB_TAGS apply: docs/tracking.md."""
    trackers: tuple[str, ...] = ()
    """More trackers: `tensorboard`, or `module:attribute` (arl.metrics.base.TrackedRun)."""
    samples_every: NonNegative = 20
    """Steps between tables of four episodes in trackers and wandb; 0: none. `arl samples` needs none."""
