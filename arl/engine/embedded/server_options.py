"""Read the command line of a server of the embedded engine, and refuse what cannot be served before anything starts."""

import argparse
import math
import os
from typing import Any

import torch
from msgspec import Struct

from arl.data.model_limits import model_config
from arl.errors import InputError
from arl.launch.address import listening_address
from arl.launch.host_memory import free_memory
from arl.models.load import DTYPES
from arl.sync.weight_messages import MOST_VERSION

ROW_BYTES = 12  # of a token in a slot: its id, logprob and version
CACHED_TOKENS = 1024  # for which every slot must have room at least


class ServerOptions(Struct, frozen=True):
    """Hold the command line."""

    model: str
    host: str
    port: int
    slots: int
    dtype: str
    head: str
    threads: int
    stream_interval: int
    version: int
    broadcast_seconds: float

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def weight_dtype(self) -> str:
        """Return the name of the dtype that is served: on a GPU bfloat16 unless another is asked for."""
        best = "bfloat16" if torch.cuda.is_available() else "float32"
        return best if self.dtype == "auto" else self.dtype


def parse(arguments: list[str] | None) -> ServerOptions:
    """Read the command line; None: this process's own.

    Raises:
        InputError: a value cannot be served; says which can.
        SystemExit: it is no command line, as argparse has said.
    """
    parser = argparse.ArgumentParser("arl.engine.embedded.server", description="Serve the embedded engine over HTTP.")
    parser.add_argument("--model", required=True, help="directory with config.json and model.safetensors")
    parser.add_argument("--host", default=listening_address(), help="address to listen on")
    parser.add_argument("--port", type=int, default=30000, help="0: any free one, printed when ready")
    parser.add_argument("--slots", type=int, default=256, help="requests decoded together")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto", help="auto: bfloat16 on a GPU")
    parser.add_argument("--head", choices=("auto", "float32"), default="auto", help="precision of logits: train.head")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--stream-interval", type=int, default=16, help="tokens between two increments")
    parser.add_argument("--version", type=int, default=0, help="policy version of these weights")
    parser.add_argument(
        "--broadcast-seconds", type=float, default=60, help="after which a broadcast that does not move is given up"
    )
    options = ServerOptions(**vars(parser.parse_args(arguments)))
    _refuse_outside(options)
    _refuse_no_directory(options.model)
    _refuse_too_many_slots(options)
    return options


def _refuse_outside(options: ServerOptions) -> None:
    """Check every number against its range."""
    ranges = {
        "--port": (options.port, 0, 65_535),
        "--slots": (options.slots, 1, 2**31 - 1),
        "--threads": (options.threads, 1, 4096),
        "--stream-interval": (options.stream_interval, 1, 2**31 - 1),
        "--version": (options.version, 0, MOST_VERSION),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:
            raise InputError(f"{name} {value} must be from {least} to {most}")
    if not 0 < options.broadcast_seconds < math.inf:
        raise InputError(f"--broadcast-seconds {options.broadcast_seconds} must be a positive number")


def _refuse_no_directory(model: str) -> None:
    """Check that a path which exists is a directory; any other may be a Hugging Face name."""
    if os.path.exists(model) and not os.path.isdir(model):
        raise InputError(f"MODEL {model} is no directory: give the one that config.json and model.safetensors are in")


def _refuse_too_many_slots(options: ServerOptions) -> None:
    """Check that the memory has room for what the slots need to begin with."""
    config = model_config(options.model)
    context = config.max_position_embeddings
    cached = min(context, CACHED_TOKENS) * _cached_token_bytes(config, options.weight_dtype)
    rows = context * ROW_BYTES
    most = free_memory() // (rows + cached)
    if options.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        most = min(free_memory() // rows, free // cached)
    if options.slots > most:
        needed = options.slots * (rows + cached) / 1e9
        raise InputError(f"--slots {options.slots} need {needed:.1f} GB or more: the free memory has room for {most}")


def _cached_token_bytes(config: Any, dtype: str) -> int:
    """Return the bytes of a token's keys and values."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * DTYPES[dtype].itemsize)
