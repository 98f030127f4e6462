# SPDX-License-Identifier: Apache-2.0
"""The same batches and shapes with torch's scaled_dot_product_attention: graphs and time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

import cynosure
from cynosure._demo.model import HEAD_DIM, HEADS, attend, longest_on
from cynosure._demo.stage import claim
from cynosure._demo.text import Batch
from cynosure._demo.training import Counted

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
_MANY = 64  # graphs that torch may compile for one function here, so that we can count them


# --- what a ragged batch costs with SDPA


def padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[B, H, S, D], S of the longest sequence. Causal, so what fills up the others has no effect."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def one_by_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """[T, H, D], a call a sequence: no padding."""
    parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    results = [padded(*[t.transpose(0, 1) for t in part]).transpose(0, 1) for part in parts]
    return torch.cat(results)


def ragged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
    """[T, H, D], one call."""
    return attend(q, k, v, cu, longest_on(q.device.type))


@dataclass(frozen=True)
class Frames:
    """Graphs that SDPA needs for batches, in each of two ways to write it."""

    batches: int
    padded: int
    one_by_one: int
    padding: float  # rows computed for each row that is there


def frames(batches: Sequence[Batch]) -> Frames:
    """Counts the graphs; nothing is generated for them."""
    with torch._dynamo.config.patch(recompile_limit=_MANY):
        padded_frames, split_frames = Counted("eager"), Counted("eager")
        pad_call = torch.compile(padded, fullgraph=True, backend=padded_frames)
        split_call = torch.compile(one_by_one, fullgraph=True, backend=split_frames)
        rows = tokens = 0
        for batch in batches:
            lengths = batch.lengths
            rows += len(lengths) * max(lengths)
            tokens += sum(lengths)
            x = torch.zeros(len(lengths), 1, max(lengths), 8)
            y = torch.zeros(sum(lengths), 1, 8)
            for size in (0, 2):
                torch._dynamo.mark_dynamic(x, size)
            pad_call(x, x, x)
            split_call(y, y, y, lengths)
    return Frames(len(batches), padded_frames.frames, split_frames.frames, rows / tokens)


# --- time


@dataclass(frozen=True)
class Contest:
    """Medians of one forward and backward, in seconds."""

    what: str
    ours: float
    theirs: dict[str, float]
    rounds: int


def _with_gradients(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Callable[[], None]:
    leaves = [t.detach().requires_grad_() for t in tensors]

    def run() -> None:
        function(*leaves).sum().backward()
        if leaves[0].device.type != "cpu":
            torch.cuda.synchronize()

    return run


def interleaved(what: str, contestants: dict[str, Callable[[], None]], seconds: float) -> Contest:
    """One call of each in turn, so that a busy machine is busy for all; the first is ours."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 5:
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(found) for name, found in times.items()}
    ours = next(iter(medians))
    return Contest(what, medians.pop(ours), medians, len(times[ours]))


def contests(batch: Batch, seconds: float, device: str = "cpu") -> list[Contest]:
    """A batch of the run, equal lengths, and one long sequence; the first checks that results agree."""
    lengths, cu = batch.lengths, batch.cu_seqlens.to(device)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    q, k, v = flat = [made(sum(lengths), HEADS, HEAD_DIM) for _ in range(3)]
    with torch.no_grad():
        difference = (ragged(q, k, v, cu) - one_by_one(q, k, v, lengths)).abs().max().item()
    claim(difference <= TOLERANCE[dtype], f"results differ from SDPA's by {difference:.1e}")
    filled = [
        torch.stack([pad(part, (0, 0, 0, 0, 0, max(lengths) - len(part))) for part in t.split(lengths)])
        .transpose(1, 2)
        .contiguous()
        for t in flat
    ]
    found = [
        interleaved(
            f"{len(lengths)} sequences of {min(lengths)} to {max(lengths)}, as trained",
            {
                "cynosure": _with_gradients(lambda q, k, v: ragged(q, k, v, cu), *flat),
                "padded": _with_gradients(padded, *filled),
                "one by one": _with_gradients(lambda q, k, v: one_by_one(q, k, v, lengths), *flat),
            },
            seconds,
        )
    ]
    for shape in ((8, HEADS, 256, HEAD_DIM), (1, 8, 2048, 64)):
        equal = [made(*shape) for _ in range(3)]
        found.append(
            interleaved(
                f"{shape[0]} of {shape[2]}, {shape[1]} heads of {shape[3]}",
                {
                    "cynosure": _with_gradients(
                        lambda q, k, v: cynosure.attention(q, k, v, layout="bhsd", causal=True), *equal
                    ),
                    "padded": _with_gradients(padded, *equal),
                },
                seconds,
            )
        )
    return found
