"""Define the recipe's sections about a run as a whole: its deadlines, virtual costs and output."""

from typing import Literal

from arl.config.section import Cost, FilePath, NonNegative, Positive, Seconds, Section

SHUTDOWN = 10.0  # seconds of a process that was asked to exit, before it is killed
MARGIN = 10.0  # seconds between the deadline of a process that knows more and the one around it
LONGEST_PAUSE = 3600.0  # seconds for which all processes of a run may be stopped at any moment, and go on


class Deadlines(Section):
    """Bound every wait, in seconds. When a deadline passes, a message says who waited for whom.

    Most of them end the run. An engine that misses one is first restarted, as often as engine.max_restarts allows.
    """

    startup: Seconds = 900.0
    """A process, from its start until it is ready. On GPUs that includes compiling kernels and recording graphs, for
    all engine servers at once. A process that dies is noticed at once, so a long deadline costs little."""
    step: Seconds = 1800.0
    """One training step, and the wait for a batch, which counts from the last group that ended: longer than the longest
    episode takes. The first batch waits for a whole episode: 27,000 tokens at 50 tokens a second are 540 seconds."""
    swap: Seconds = 60.0
    """One weight publication and one swap."""
    generate: Seconds = 600.0
    """An engine that produces nothing for an open request: it is killed, and started again."""
    reward: Seconds = 10.0
    """Scoring one response. A call that takes longer is killed, and made once more: see reward.on_error."""
    stop: Seconds = 300.0
    """From the first Ctrl-C or SIGTERM until the step in progress has ended and a checkpoint is complete. A run that
    takes longer ends without that checkpoint."""

    # What follows from these. A process whose deadline lies within one of another process ends its own wait first,
    # because it knows more. In one process arl.clock.outer_deadline sees to that.

    @property
    def shutdown(self) -> float:
        """Return the seconds of a process that was asked to exit, before it is killed."""
        return SHUTDOWN

    @property
    def blocked_broadcast(self) -> float:
        """Return when a rank gives up a broadcast that does not move: half of `swap`.

        So engines that wait for a dead one answer before their own commands end, and are not taken for dead as well.
        """
        return self.swap / 2

    @property
    def evaluation(self) -> float:
        """Return when a version that is measured during training is left out; its engine has the lowest priority."""
        return self.startup + 2 * self.step

    @property
    def swap_and_restart(self) -> float:
        """Return the longest time of a swap: an engine falls silent, is restarted, and loads the weights."""
        return self.swap + self.startup + self.swap

    @property
    def blocked_buffer(self) -> float:
        """Return when a rank that waits for memory of older versions prints why: before the controller ends its step.

        So the controller's message shows which version is still needed. The rank itself waits on, because a controller
        that is stopped frees no version and blames nobody when it goes on.
        """
        return 0.9 * self.step

    @property
    def collective(self) -> float:
        """Return when a rank gives up a collective: long after the controller has ended the step and named who hangs.

        Torch's clocks cannot be moved, so all ranks may be stopped for LONGEST_PAUSE in the middle of a collective.
        """
        return self.step + LONGEST_PAUSE

    @property
    def first_message(self) -> float:
        """Return when a rank stops waiting for a controller that has never sent anything.

        That comes when the controller has given up the other ranks, or was stopped for LONGEST_PAUSE meanwhile.
        """
        return self.startup + LONGEST_PAUSE

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
    """Set what each operation takes under `world: virtual`, in virtual seconds, to imitate other hardware.

    The defaults imitate the quickstart on a laptop. An engine pass takes engine_pass + decode_token · rows that
    decode + prefill_token · prompt tokens; a training step takes train_step + trained_token · loss tokens.
    """

    engine_pass: Cost = 1e-3
    """One pass of one replica, whatever it holds."""
    decode_token: Cost = 20e-6
    """Each request that decodes a token in a pass."""
    prefill_token: Cost = 20e-6
    """Each token of a new prompt in a pass, shared prompts once."""
    train_step: Cost = 30e-3
    """One training step, whatever it holds."""
    trained_token: Cost = 20e-6
    """Each loss token of a step."""
    snapshot: Cost = 0.5e-3
    """The copy of the weights after a step, during which the trainer waits."""
    publish: Cost = 5e-3
    """Writing a snapshot where engines can load it, one after the other, while the trainer goes on."""
    load: Cost = 5e-3
    """Loading published weights into one replica, which is paused meanwhile."""
    reward: Cost = 0.2e-3
    """One call of the reward function; reward.workers calls are made at a time."""


class Output(Section):
    """Say what a run leaves behind."""

    directory: FilePath = "runs"
    """The run directory is <directory>/<name>; a run of that name is never overwritten: the next is <name>-2."""
    checkpoint_every: NonNegative | None = None
    """Steps between checkpoints, from which a killed run resumes; the last step always has one. 0: only the last.
    null: 20, and in world virtual only the last, because there a checkpoint is an event of the schedule."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints that are kept; older ones are removed when a newer one is complete."""
    trajectories: bool = True
    """Write every trajectory that was trained or lost to Parquet, with its fate."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Mirror metrics.jsonl to Weights & Biases; online goes offline, and says so, where there is no network.
    wandb's own variables WANDB_PROJECT, WANDB_RUN_GROUP and WANDB_TAGS say where the run appears: docs/tracking.md."""
    trackers: tuple[str, ...] = ()
    """More trackers: `tensorboard`, or `module:attribute`, called with an arl.metrics.base.TrackedRun."""
    samples_every: NonNegative = 20
    """Steps between tables of four episodes that trackers are shown, wandb too; 0: none. `arl samples` needs none."""
