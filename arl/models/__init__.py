"""Load models, make tiny ones, and compute the attention of both training and generation."""

from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # processes that load a model write to a log
