"""Compare the kernels with their peers and with the machine's ceilings, in time and memory: `arl bench kernels`.

    ceilings: one matrix product of a chunk, one copy of all logits
    policy loss, forward and backward, from hidden states    floor 6·T·V·D FLOPs
    log-probability without gradient, from hidden states     floor 2·T·V·D FLOPs
    log-probability from given logits                        floor: the logits moved once; with backward, three times

Each is called once to compile, on a GPU once to measure its memory, and then in turn with the others. Liger-Kernel
computes only a cross entropy, without entropy and objective. CCE has no entropy. All others compute the same decoupled
PPO loss.
"""

import importlib.util
import shutil
import statistics
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arl.kernels.linear_logprob import linear_logprob
from arl.kernels.linear_policy_loss import RowLoss, linear_policy_loss
from arl.kernels.logprob import packed_logprob, packed_logprob_ref
from arl.metrics.console import stderr_display
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import TokenColumns

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
COMPILED_CHUNK = 4096 if CUDA else 256  # rows
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


def bench_kernels(rows: int | None, vocab: int | None, widths: list[int] | None, repeats: int) -> dict[str, Any]:
    """Measure times, peaks and their part of the ceilings; bfloat16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if CUDA else torch.float32
    rows = rows or (32_768 if CUDA else 1024)
    vocab = vocab or (151_936 if CUDA else 32_768)
    widths = widths or ([1536, 4096] if CUDA else [512])
    torch.set_num_threads(1)  # on a CPU the time of this process counts, whatever else runs
    from_hidden = {str(width): _bench_head(_head(rows, vocab, width, dtype), repeats) for width in widths}
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
    objective = DecoupledPPO(clip_low=0.2, clip_high=0.28)

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
        return loss.sum(), tuple(per_token.values())

    return Head(hidden, weight, targets, row_loss)


def _bench_head(head: Head, repeats: int) -> dict[str, Any]:
    trained, absent = _trainers(head)
    inputs = [head.hidden, head.weight]
    chunk = head.hidden[:4096].detach()
    calls: dict[str, Call] = {"matrix product": lambda: torch.mm(chunk, head.weight.detach().T)}
    calls |= {name: _backward_of(call, inputs) for name, call in trained.items()}
    measured = _measure(calls, repeats)
    chunk_flops = head.product * len(chunk) / len(head.hidden)
    ceiling = chunk_flops / measured.pop("matrix product")["seconds"]
    forward = {
        "arl linear_logprob": _without_gradient(linear_logprob, head),
        "PyTorch, eager": _without_gradient(_eager, head),
    }
    scored = _measure(forward, repeats)
    return {
        "matmul_tflops": round(ceiling / 1e12, 4),
        "policy_loss": _rated(measured, 3 * head.product, "of_matmul_ceiling", ceiling) | absent,
        "logprob_without_gradient": _rated(scored, head.product, "of_matmul_ceiling", ceiling),
    }


def _trainers(head: Head) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the functions that compute a loss from hidden states, and why others cannot run here."""
    inputs = (head.hidden, head.weight, head.targets)
    trained: dict[str, Call] = {
        "arl linear_policy_loss": lambda: linear_policy_loss(*inputs, head.row_loss)[0],
        "arl linear_logprob, then the objective": lambda: head.loss(linear_logprob(*inputs)[0]),
        "PyTorch, eager": lambda: head.loss(_eager(*inputs)[0]),
    }
    absent: dict[str, str] = {}
    if CUDA or shutil.which("g++"):
        compiled = torch.compile(_eager, dynamic=False)
        trained["PyTorch, compiled chunks"] = lambda: head.loss(_in_chunks(compiled, *inputs))
    else:
        absent["PyTorch, compiled chunks"] = "no C++ compiler"
    peers = [("Liger-Kernel", "liger_kernel", _liger), ("CCE, exact", "cut_cross_entropy", _cce)]
    for name, module, make in peers:
        if not CUDA:
            absent[name] = "needs a GPU"
        elif importlib.util.find_spec(module) is None:
            absent[name] = "not installed"
        else:
            trained[name] = make(head)
    return trained, absent


def _eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return packed_logprob_ref(hidden @ weight.T, targets)


def _in_chunks(function: Callable[..., Any], hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute logprobs chunk by chunk. Logits of a chunk live only within it: the backward computes them again."""
    chunks = zip(torch.split(hidden, COMPILED_CHUNK), torch.split(targets, COMPILED_CHUNK), strict=True)
    return torch.cat([checkpoint(function, rows, weight, of, use_reentrant=False)[0] for rows, of in chunks])


def _liger(head: Head) -> Call:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)
    return lambda: loss(head.weight, head.hidden, head.targets)


def _cce(head: Head) -> Call:
    from cut_cross_entropy import linear_cross_entropy

    cross_entropy = partial(linear_cross_entropy, reduction="none", impl="cce", filter_eps=None)
    return lambda: head.loss(-cross_entropy(head.hidden, head.weight, head.targets).float())


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
        both[name] = _backward_of(partial(_summed, function, logits, targets), [logits])
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
    for row in measured.values():
        if isinstance(row, dict):
            row[of] = round(floor / row["seconds"] / ceiling, 3)
    return measured


def _measure(calls: dict[str, Call], repeats: int) -> dict[str, Any]:
    """Return a row for each call: seconds, and on a GPU the most bytes held beyond its inputs; a text if it failed."""
    rows: dict[str, Any] = {}
    with stderr_display() as display:
        for name, call in calls.items():
            display.note(f"bench kernels: {name}")
            rows[name] = _first_call(name, call)
    measured = {name: row for name, row in rows.items() if isinstance(row, dict)}
    for _ in range(repeats):
        for name, row in measured.items():
            row["repeats"].append(_seconds(calls[name]))
    for row in measured.values():
        row["seconds"] = round(statistics.median(row["repeats"]), 6)
        row["repeats"] = [round(seconds, 6) for seconds in row["repeats"]]
    return rows


def _first_call(name: str, call: Call) -> dict[str, Any] | str:
    """Let it compile, then measure its memory on a GPU; return why it fails, because that is a result as well."""
    try:
        call()
    except torch.OutOfMemoryError:  # all logits at once are too many for some GPUs
        return "out of memory"
    except Exception as error:  # a peer may be too old for this torch or this GPU
        if name.startswith("arl"):
            raise
        return f"fails: {error!r}"[:500]
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
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before
