"""`arl bench kernels` compares the kernels with their peers and with the machine's ceilings, in time and memory.

    ceilings: one matrix product of a chunk, one copy of all logits
    policy loss, forward and backward, from hidden states    floor 6·T·V·D FLOPs
    log-probability without gradient, from hidden states     floor 2·T·V·D FLOPs
    log-probability from given logits                        floor: the logits moved once; with backward, three times

Each is called once to compile, once to measure its memory, and then in turn with the others. Liger-Kernel computes
only a cross entropy, without entropy and objective. CCE has no entropy. All others compute the same decoupled PPO loss.
"""

import importlib.util
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from arl.bench import stderr_display
from arl.kernels.linear_logprob import linear_logprob
from arl.kernels.linear_policy_loss import linear_policy_loss
from arl.kernels.logprob import packed_logprob, packed_logprob_ref
from arl.kernels.policy_loss import RowLoss
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import TokenColumns

CUDA = torch.cuda.is_available()
COMPILED_CHUNK = 4096 if CUDA else 256  # rows
Call = Callable[[], Any]


class Head(Struct, frozen=True):
    """Random inputs of one shape."""

    hidden: Tensor  # (T, D)
    weight: Tensor  # (V, D)
    targets: Tensor  # (T,)
    row_loss: RowLoss

    @property
    def product(self) -> float:
        """FLOPs of hidden @ weightᵀ."""
        return 2.0 * len(self.hidden) * self.weight.numel()


def bench_kernels(rows: int, vocab: int, widths: list[int], repeats: int) -> dict[str, Any]:
    """Measure times, peaks and their part of the ceilings; bfloat16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if CUDA else torch.float32
    torch.set_num_threads(1)  # on a CPU the time of this process counts, whatever else runs
    return {
        "device": torch.cuda.get_device_name() if CUDA else "CPU, one thread, seconds of this process",
        "rows": rows,
        "vocab": vocab,
        "dtype": str(dtype).removeprefix("torch."),
        "from_hidden": {str(width): _bench_head(_head(rows, vocab, width, dtype), repeats) for width in widths},
        "from_logits": _bench_logits(rows, vocab, dtype, repeats),
    }


def _head(rows: int, vocab: int, width: int, dtype: torch.dtype) -> Head:
    device = "cuda" if CUDA else "cpu"
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, device=device, dtype=dtype, requires_grad=True)
    weight = (torch.randn(vocab, width, device=device, dtype=dtype) / width**0.5).requires_grad_()
    targets = torch.randint(vocab, (rows,), device=device)
    behavior, proximal, advantages = (torch.randn(rows, device=device) * 0.1 - shift for shift in (10, 10, 0))
    objective = DecoupledPPO(clip_low=0.2, clip_high=0.28, behavior_weight_cap=5.0)

    def row_loss(logprob: Tensor, rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        tokens = TokenColumns(
            current_logprobs=logprob,
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
    trained, absent = _trainers(head)
    chunk = head.hidden[: min(len(head.hidden), 4096)].detach()
    calls: dict[str, Call] = {"matrix product": lambda: torch.mm(chunk, head.weight.detach().T)}
    calls |= {name: _backward_of(call, [head.hidden, head.weight]) for name, call in trained.items()}
    measured = _measure(calls, repeats)
    ceiling = head.product * len(chunk) / len(head.hidden) / measured.pop("matrix product")["seconds"]
    forward = {"arl linear_logprob": linear_logprob, "PyTorch, eager": _eager}
    scored = _measure({n: _without_gradient(f, head) for n, f in forward.items()}, repeats)
    return {
        "matmul_tflops": round(ceiling / 1e12, 4),
        "policy_loss": _rated(measured, 3 * head.product, "of_matmul_ceiling", ceiling) | absent,
        "logprob_without_gradient": _rated(scored, head.product, "of_matmul_ceiling", ceiling),
    }


def _trainers(head: Head) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the functions that compute a loss from hidden states, and why others cannot run here."""
    inputs, everything, absent = (head.hidden, head.weight, head.targets), slice(0, len(head.hidden)), {}
    trained: dict[str, Call] = {
        "arl linear_policy_loss": lambda: linear_policy_loss(*inputs, head.row_loss)[0],
        "arl linear_logprob, then the objective": lambda: head.row_loss(linear_logprob(*inputs)[0], everything)[0],
        "PyTorch, eager": lambda: head.row_loss(_eager(*inputs)[0], everything)[0],
    }
    if CUDA or shutil.which("g++"):
        compiled = torch.compile(_eager, dynamic=False)
        trained["PyTorch, compiled chunks"] = lambda: head.row_loss(_in_chunks(compiled, *inputs), everything)[0]
    else:
        absent["PyTorch, compiled chunks"] = "no C++ compiler"
    for name, module, make in (("Liger-Kernel", "liger_kernel", _liger), ("CCE, exact", "cut_cross_entropy", _cce)):
        if not CUDA or importlib.util.find_spec(module) is None:
            absent[name] = "not installed" if CUDA else "needs a GPU"
        else:
            trained[name] = make(head)
    return trained, absent


def _eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return packed_logprob_ref(hidden @ weight.T, targets)


def _in_chunks(function: Callable[..., Any], hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Logits of a chunk live only within it: the backward computes them again."""
    parts = zip(torch.split(hidden, COMPILED_CHUNK), torch.split(targets, COMPILED_CHUNK), strict=True)
    return torch.cat([checkpoint(function, h, weight, y, use_reentrant=False)[0] for h, y in parts])


def _liger(head: Head) -> Call:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)
    return lambda: loss(head.weight, head.hidden, head.targets)


def _cce(head: Head) -> Call:
    from cut_cross_entropy import linear_cross_entropy

    everything, options = slice(0, len(head.hidden)), {"reduction": "none", "impl": "cce", "filter_eps": None}
    return lambda: head.row_loss(
        -linear_cross_entropy(head.hidden, head.weight, head.targets, **options).float(), everything
    )[0]


def _bench_logits(rows: int, vocab: int, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    logits = torch.randn(rows, vocab, device="cuda" if CUDA else "cpu", dtype=dtype).requires_grad_()
    targets = torch.randint(vocab, (rows,), device=logits.device)
    detached, nbytes = logits.detach(), float(logits.numel() * logits.element_size())
    names = {"arl packed_logprob": packed_logprob, "PyTorch, eager": packed_logprob_ref}
    forward: dict[str, Call] = {name: partial(f, detached, targets) for name, f in names.items()}
    both = {name: _backward_of(partial(_summed, f, logits, targets), [logits]) for name, f in names.items()}
    measured = _measure({"copy": detached.clone} | forward, repeats)
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
    """Add the part of the ceiling that the floor's work alone would be in that time."""
    return {
        name: row | {of: round(floor / row["seconds"] / ceiling, 3)} if isinstance(row, dict) else row
        for name, row in measured.items()
    }


def _measure(calls: dict[str, Call], repeats: int) -> dict[str, Any]:
    """Median seconds of each call, all of them in turn, and the most bytes it held beyond its inputs."""
    rows: dict[str, Any] = {}
    with stderr_display() as display:
        for name, call in calls.items():
            display.note(f"bench kernels: {name}")
            try:
                call()
            except torch.OutOfMemoryError:  # a result: all logits at once are too many for some GPUs
                rows[name] = "out of memory"
            except Exception as error:  # likewise, of a peer that this torch or this GPU is too new for
                if name.startswith("arl"):
                    raise
                rows[name] = f"fails: {error!r}"[:500]
            else:
                rows[name] = {"peak_bytes": _peak_bytes(call), "repeats": []}
    measured = {name: row for name, row in rows.items() if isinstance(row, dict)}
    for _ in range(repeats):
        for name, row in measured.items():
            row["repeats"].append(_seconds(calls[name]))
    for row in measured.values():
        row["seconds"] = round(statistics.median(row["repeats"]), 6)
        row["repeats"] = [round(x, 6) for x in row["repeats"]]
    return rows


def _seconds(call: Call) -> float:
    if not CUDA:
        start = process_time()
        call()
        return process_time() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _peak_bytes(call: Call) -> int:
    """Gradients that the call returns are part of it."""
    if CUDA:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own news
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    held = peak = 0
    for _, size in sorted(_allocations(profiled.profiler.kineto_results.experimental_event_tree())):
        held += size
        peak = max(peak, held)
    return peak


def _allocations(events: list[Any]) -> Iterator[tuple[int, int]]:
    """(nanoseconds, bytes; negative when freed) of everything the CPU allocator did."""
    for event in events:
        if event.name == "[memory]":
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from _allocations(event.children)
