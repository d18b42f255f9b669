"""Compare the kernels with PyTorch and with the machine's ceilings, in time and memory: `arl bench kernels`.

    ceilings: one matrix product of a chunk, one copy of all logits
    policy loss, forward and backward, from hidden states    floor 6·T·V·D FLOPs
    log-probability without gradient, from hidden states     floor 2·T·V·D FLOPs
    log-probability from given logits                        floor: the logits moved once; with backward, three times

Each is called once to compile, on a GPU once to measure its memory, and then in turn with the others. All compute the
same decoupled PPO loss.
"""

import statistics
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from arl.kernels.linear_logprob import linear_logprob
from arl.kernels.linear_policy_loss import RowLoss, linear_policy_loss
from arl.kernels.logprob import packed_logprob, packed_logprob_ref
from arl.metrics.console import stderr_display
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import TokenColumns

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
Call = Callable[[], Any]


class Head(Struct, frozen=True):
    """Hold random inputs of one shape."""

    hidden: Tensor  # (T, D)
    weight: Tensor  # (V, D)
    targets: Tensor  # (T,)
    row_loss: RowLoss

    @property
    def product(self) -> float:
        """Return the FLOPs of hidden @ weightᵀ."""
        return 2.0 * len(self.hidden) * self.weight.numel()

    def loss(self, logprob: Tensor) -> Tensor:
        """Return the objective's loss of all rows at once. It does not read the entropy."""
        unread = logprob.detach()
        return self.row_loss(logprob, unread, slice(0, len(self.hidden)))[0]


def bench_kernels(rows: int, vocab: int, widths: list[int], repeats: int) -> dict[str, Any]:
    """Measure times, peaks and their part of the ceilings; bfloat16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if CUDA else torch.float32
    torch.set_num_threads(1)  # on a CPU the time of this process counts, whatever else runs
    from_hidden = {}
    for width in widths:
        from_hidden[str(width)] = _bench_head(_head(rows, vocab, width, dtype), repeats)
    return {
        "device": torch.cuda.get_device_name() if CUDA else "CPU, one thread, seconds of this process",
        "rows": rows,
        "vocab": vocab,
        "dtype": str(dtype).removeprefix("torch."),
        "from_hidden": from_hidden,
        "from_logits": _bench_logits(rows, vocab, dtype, repeats),
    }


def _head(rows: int, vocab: int, width: int, dtype: torch.dtype) -> Head:
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, device=DEVICE, dtype=dtype, requires_grad=True)
    unscaled = torch.randn(vocab, width, device=DEVICE, dtype=dtype)
    weight = (unscaled / width**0.5).requires_grad_()
    targets = torch.randint(vocab, (rows,), device=DEVICE)
    behavior = torch.randn(rows, device=DEVICE) * 0.1 - 10
    proximal = torch.randn(rows, device=DEVICE) * 0.1 - 10
    advantages = torch.randn(rows, device=DEVICE) * 0.1
    objective = DecoupledPPO(clip_low=0.2, clip_high=0.28, behavior_weight_cap=5.0)

    def row_loss(logprob: Tensor, entropy: Tensor, rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        tokens = TokenColumns(
            current_logprobs=logprob,
            entropy=entropy,
            proximal_logprobs=proximal[rows],
            behavior_logprobs=behavior[rows],
            advantages=advantages[rows],
            policy_versions=targets[rows],
            sequences=targets[rows],
            version=0,
        )
        loss, per_token = objective.loss(tokens)
        return loss, tuple(per_token.values())

    return Head(hidden, weight, targets, row_loss)


def _bench_head(head: Head, repeats: int) -> dict[str, Any]:
    inputs = (head.hidden, head.weight, head.targets)
    trained: dict[str, Call] = {
        "arl linear_policy_loss": lambda: linear_policy_loss(*inputs, head.row_loss)[0],
        "arl linear_logprob, then the objective": lambda: head.loss(linear_logprob(*inputs)[0]),
        "PyTorch, eager": lambda: head.loss(_eager(*inputs)[0]),
    }
    chunk = head.hidden[:4096].detach()
    calls: dict[str, Call] = {"matrix product": lambda: torch.mm(chunk, head.weight.detach().T)}
    for name, call in trained.items():
        calls[name] = _backward_of(call, [head.hidden, head.weight])
    measured = _measure(calls, repeats)
    chunk_flops = head.product * len(chunk) / len(head.hidden)
    ceiling = chunk_flops / measured.pop("matrix product")["seconds"]
    forward = {
        "arl linear_logprob": _without_gradient(linear_logprob, head),
        "PyTorch, eager": _without_gradient(_eager, head),
    }
    scored = _measure(forward, repeats)
    trained_rows = _rated(measured, 3 * head.product, "of_matmul_ceiling", ceiling)
    return {
        "matmul_tflops": round(ceiling / 1e12, 4),
        "policy_loss": trained_rows,
        "logprob_without_gradient": _rated(scored, head.product, "of_matmul_ceiling", ceiling),
    }


def _eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return packed_logprob_ref(hidden @ weight.T, targets)


def _bench_logits(rows: int, vocab: int, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    logits = torch.randn(rows, vocab, device=DEVICE, dtype=dtype, requires_grad=True)
    targets = torch.randint(vocab, (rows,), device=DEVICE)
    detached = logits.detach()
    nbytes = float(logits.numel() * logits.element_size())
    forward: dict[str, Call] = {"copy": detached.clone}
    both: dict[str, Call] = {}
    contestants = {"arl packed_logprob": packed_logprob, "PyTorch, eager": packed_logprob_ref}
    for name, function in contestants.items():
        forward[name] = partial(function, detached, targets)
        summed = partial(_summed, function, logits, targets)
        both[name] = _backward_of(summed, [logits])
    measured = _measure(forward, repeats)
    ceiling = 2 * nbytes / measured.pop("copy")["seconds"]
    return {
        "copy_gigabytes_per_second": round(ceiling / 1e9, 2),
        "forward": _rated(measured, nbytes, "of_copy_ceiling", ceiling),
        "forward_and_backward": _rated(_measure(both, repeats), 3 * nbytes, "of_copy_ceiling", ceiling),
    }


def _without_gradient(function: Callable[..., Any], head: Head) -> Call:
    return torch.no_grad()(lambda: function(head.hidden, head.weight, head.targets))


def _summed(function: Callable[..., tuple[Tensor, Tensor]], logits: Tensor, targets: Tensor) -> Tensor:
    return function(logits, targets)[0].sum()


def _backward_of(call: Call, inputs: list[Tensor]) -> Call:
    return lambda: torch.autograd.grad(call(), inputs)


def _rated(measured: dict[str, Any], floor: float, of: str, ceiling: float) -> dict[str, Any]:
    """Add to each row the part of the ceiling that the floor's work alone would be in that time."""
    rated: dict[str, Any] = {}
    for name, row in measured.items():
        rated[name] = row
        if isinstance(row, dict):
            rate = floor / row["seconds"]
            rated[name] = row | {of: round(rate / ceiling, 3)}
    return rated


def _measure(calls: dict[str, Call], repeats: int) -> dict[str, Any]:
    """Return a row for each call: seconds, and on a GPU the most bytes held beyond its inputs."""
    rows: dict[str, Any] = {}
    with stderr_display() as display:
        for name, call in calls.items():
            display.note(f"bench kernels: {name}")
            rows[name] = _first_call(call)
    measured = {name: row for name, row in rows.items() if isinstance(row, dict)}
    for _ in range(repeats):
        for name, row in measured.items():
            row["repeats"].append(_seconds(calls[name]))
    for row in measured.values():
        row["seconds"] = round(statistics.median(row["repeats"]), 6)
        row["repeats"] = [round(seconds, 6) for seconds in row["repeats"]]
    return rows


def _first_call(call: Call) -> dict[str, Any] | str:
    """Let it compile, then measure its memory on a GPU."""
    try:
        call()
    except torch.OutOfMemoryError:  # all logits at once are too many for some GPUs
        return "out of memory"
    memory = {"peak_bytes": _peak_bytes(call)} if CUDA else {}
    return {**memory, "repeats": []}


def _seconds(call: Call) -> float:
    if not CUDA:
        start = process_time()
        call()
        return process_time() - start
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _peak_bytes(call: Call) -> int:
    """Return the most bytes that a call holds at once beyond its inputs; gradients that it returns are part of it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before
