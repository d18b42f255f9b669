"""Define the recipe's section about the model: where its weights come from."""

from pydantic import model_validator

from arl.config.section import FilePath, Positive, Section, Tokens


class TinyModel(Section):
    """Describe a Llama-shaped model that is made on the spot, with the vocabulary of the task."""

    hidden_size: Positive = 128
    """Width of the residual stream, D."""
    layers: Positive = 2
    """Decoder blocks."""
    heads: Positive = 4
    """Attention heads; must divide hidden_size."""
    intermediate_size: Positive = 384
    """Width of the feed-forward."""
    context: Tokens = 512
    """Longest sequence."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "TinyModel":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"model.tiny.hidden_size {self.hidden_size} must be a multiple of 2 x heads ({2 * self.heads})"
            )
        return self


class Model(Section):
    """Say where the weights come from: give exactly one of `path` and `tiny`."""

    path: FilePath | None = None
    """Directory or Hugging Face name of a causal language model with its tokenizer. NAME@REVISION pins a branch, a tag
    or a commit; a run records the commit in its recipe.yaml."""
    tiny: TinyModel | None = None
    """Make a small model instead; needs a task with its own vocabulary, and usually a warm-up."""

    @model_validator(mode="after")
    def _one_source(self) -> "Model":
        if (self.path is None) == (self.tiny is None):
            raise ValueError("model: give exactly one of model.path and model.tiny")
        return self
