"""Models: loading, tiny ones made on the spot, and the attention both training and generation go through."""

from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # processes that load a model write to a log
