"""Define the recipe's section about the learning side."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from arl.config.section import (
    Environment,
    Fraction,
    FractionBelowOne,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
    Steps,
    Tokens,
    validate_environment,
)


class Train(Section):
    """Configure the learning side."""

    steps: Steps = 60
    """Versions to produce, at most."""
    tokens: Tokens | None = None
    """Loss tokens after which the run ends: the step that reaches them is the last. null: after `steps`. With it, runs
    are compared at the same number of trained tokens. `decay_to` still refers to `steps`."""
    minibatches: Positive = 4
    """Optimizer updates per step; must divide problems_per_step."""
    learning_rate: PositiveFloat = 1e-6
    """Peak. Published runs of 0.6B to 1.5B parameters take 1e-6 to 2e-5; a tiny model takes 1e-4 or more."""
    ramp_steps: NonNegative = 0
    """Optimizer updates in which the learning rate rises linearly to its peak."""
    decay_to: Fraction = 1.0
    """Share of the peak that is left at the last update; 1: constant."""
    decay: Literal["linear", "cosine"] = "linear"
    """The way there."""
    betas: tuple[FractionBelowOne, FractionBelowOne] = (0.9, 0.99)
    """AdamW's decay of its mean gradient and of its mean squared gradient, per update."""
    eps: PositiveFloat = 1e-8
    """AdamW's addition to the root of the mean squared gradient."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decay of the weights, per unit of learning rate."""
    decayed: Literal["all", "matrices"] = "all"
    """Weights that decay. all: every one, as in AReaL and verl, whose weight_decay means this. matrices: those of
    linear layers; norms, biases and embeddings, and a head that shares its weight with the embedding, do not."""
    clip_norm: PositiveFloat = 1.0
    """Gradient norm bound."""
    halves_every: NonNegative = 0
    """Steps between two measurements of `grad_cosine/stale_fresh`, which take two forward and backward passes of a
    minibatch and change nothing; 0: none."""
    ranks: Positive = 1
    """FSDP2 world size."""
    min_ranks: Positive | None = None
    """The least world size with which `arl train --resume` goes on where fewer GPUs are left than `ranks` and the
    engines need: it takes the largest that fits, a multiple of `shard_ranks`. null: `ranks`."""
    shard_ranks: Positive | None = None
    """Ranks that share one copy of the weights, neighbors such as one node's; must divide ranks. none: those of a node
    where each node has equally many, else all of them."""
    reshard: bool = False
    """Free a block's weights after each use and reduce its gradient after each micro-batch: least memory. false: one
    all-gather and one reduce-scatter an update, with whole weights and gradients on each rank in between."""
    checkpointing: Literal["none", "selective", "full"] = "none"
    """Activations kept for the backward: all; of linear layers and attention; of block boundaries. Others are
    computed again."""
    compile: bool = False
    """torch.compile for each block. Cannot be combined with `checkpointing: selective`, because the operations whose
    results it keeps no longer exist after compilation."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute type; auto: bfloat16 on GPUs, float32 on CPUs. float16 has eight times finer numbers than bfloat16, so
    engine and trainer agree better (arXiv 2510.26788), and a smaller range: the loss is scaled, and updates whose
    gradient overflows are skipped. Master weights, reductions and optimizer states are float32."""
    head: Literal["auto", "float32"] = "auto"
    """Precision of the logits, in the trainer and in the engines. auto: that of `dtype`; in bfloat16 a logit of 16 to
    32 is rounded by up to 0.06, more than the clip of some objectives. float32: the product of the output head stays in
    float32 until log-probabilities are taken. Engine and trainer agree better; chunks of logits are shorter."""
    deterministic: bool = False
    """Compute the same update to the last bit from the same weights and the same batch, on the same GPUs and versions
    of torch and NCCL. On a GPU the gradients of shared prompts otherwise add up in another order each time. What it
    costs has not been measured. Which version samples which token remains a matter of timing. `world: virtual`
    always computes so."""
    capacity: Tokens = 16_384
    """Packed tokens per micro-batch; must hold the longest trajectory."""
    packing: Literal["balanced", "algorithm1", "fixed"] = "balanced"
    """How micro-batches are filled. balanced: what is left of each group, spread by FLOPs over as few as possible.
    algorithm1: single sequences, as in AReaL's Algorithm 1, at least `packing_count` micro-batches for each minibatch
    and rank. fixed: `packing_count` sequences each, in the order of the batch: no dynamic batching."""
    packing_count: Positive = 1
    """k_min of `packing: algorithm1`; sequences per micro-batch of `packing: fixed`."""
    threads: Positive | None = None
    """CPU threads of one rank; none: a fair share of the cores."""
    environment: Environment = Field(default_factory=dict)
    """Environment variables of the trainer ranks, added to those of `arl train`."""

    def is_done(self, version: int, tokens: int) -> bool:
        """Return whether a run ends with `version`, after training so many tokens."""
        return version >= self.steps or (self.tokens is not None and tokens >= self.tokens)

    @field_validator("environment")
    @classmethod
    def _not_reserved(cls, environment: Environment) -> Environment:
        return validate_environment("train.environment", environment)

    @model_validator(mode="after")
    def _validate(self) -> "Train":
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"train.weight_decay {self.weight_decay:g}: an update multiplies the weights by 1 - learning_rate x "
                f"weight_decay, which must be more than 0; give less than {1 / self.learning_rate:g}, or lower "
                f"train.learning_rate {self.learning_rate:g}"
            )
        if self.shard_ranks is not None and self.ranks % self.shard_ranks:
            raise ValueError(f"train.shard_ranks {self.shard_ranks} must divide train.ranks {self.ranks}")
        if self.min_ranks is not None and self.min_ranks > self.ranks:
            raise ValueError(f"train.min_ranks {self.min_ranks}: must not be more than train.ranks {self.ranks}")
        if self.packing == "balanced" and self.packing_count != 1:
            raise ValueError(f"train.packing_count {self.packing_count}: only with train.packing algorithm1 or fixed")
        if self.compile and self.checkpointing == "selective":
            raise ValueError("train.checkpointing selective: not with train.compile; use full or none")
        return self
