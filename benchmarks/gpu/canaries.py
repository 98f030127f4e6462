# SPDX-License-Identifier: Apache-2.0
"""Known faults that a route leads around, met on purpose: is each really there on this GPU, with these libraries?

    python benchmarks/gpu/canaries.py --out FILE

Each canary calls the library as torch does, past our rules, in a process of its own, since some end it. `there`: the
fault was seen; `not there`: the result was right; anything else says what happened instead. That a fault is not there
does not make its row wrong: it may need other sizes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

THERE, NOT_THERE = "there", "not there"
SECONDS = 60
AT_ONCE = 6


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """[B, H, S, D]"""
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_()


def by_cudnn(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> list[Tensor]:
    """Output and gradients by cuDNN alone."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(q, k, v, **more)
    gradients = torch.autograd.grad(out, [q, k, v], torch.ones_like(out))
    torch.cuda.synchronize()
    return [out.detach(), *gradients]


def finite(results: list[Tensor]) -> str:
    """NaN or infinity is the fault."""
    names = [name for name, x in zip(("out", "dq", "dk", "dv"), results, strict=True) if not x.isfinite().all()]
    return f"{THERE}: not finite in {', '.join(names)}" if names else NOT_THERE


def low_scores(keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits near -120, so that the LSE is below -88.7."""
    q, k, v = (made(1, 1, keys, 64) for _ in range(3))
    with torch.no_grad():
        q.normal_(11.0, 0.1)
        k.fill_(-1.4)
    return q, k, v


def mask_dq_nan() -> str:
    q, k, v = low_scores(704)
    return finite(by_cudnn(q, k, v, attn_mask=torch.ones(1, 1, 704, 704, device="cuda", dtype=torch.bool)))


def bias_dq_nan() -> str:
    q, k, v = low_scores(704)
    return finite(by_cudnn(q, k, v, attn_mask=torch.zeros(1, 1, 704, 704, device="cuda", dtype=torch.bfloat16)))


def mask_dq_nan_whole_128() -> str:
    """Beside the fault: whole blocks of 128 keys, which the row lets through."""
    q, k, v = low_scores(768)
    return finite(by_cudnn(q, k, v, attn_mask=torch.ones(1, 1, 768, 768, device="cuda", dtype=torch.bool)))


def one_query_dkv_nan() -> str:
    _, k, v = low_scores(128)
    q = made(1, 1, 1, 64)
    with torch.no_grad():
        q.normal_(11.0, 0.1)
    return finite(by_cudnn(q, k, v))


def cudnn_batch(batch: int) -> Callable[[], str]:
    def canary() -> str:
        q = made(batch, 1, 1, 8, dtype=torch.float16)
        k, v = (made(batch, 1, 2, 8, dtype=torch.float16) for _ in range(2))
        mask = torch.ones(batch, 1, 1, 2, device="cuda", dtype=torch.bool)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        torch.cuda.synchronize()
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            expected = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return NOT_THERE if torch.allclose(out, expected, atol=0.01) else f"{THERE}: wrong output"

    return canary


def flash_size(batch: int, heads: int) -> Callable[[], str]:
    def canary() -> str:
        q, k, v = (torch.randn(batch, 8, heads, 64, device="cuda", dtype=torch.float16) for _ in range(3))
        out = torch.ops.aten._flash_attention_forward(q, k, v, None, None, 8, 8, 0.0, False, False)[0]
        torch.cuda.synchronize()
        with sdpa_kernel(SDPBackend.MATH):
            expected = scaled_dot_product_attention(*(x[-1:, :, -8:].transpose(1, 2) for x in (q, k, v)))
        same = torch.allclose(out[-1:, :, -8:].transpose(1, 2), expected, atol=0.01)
        return NOT_THERE if same else f"{THERE}: wrong output"

    return canary


def plan_segfault() -> str:
    q, k, v = made(1, 1, 1, 64), made(1, 1, 128, 64), made(1, 1, 128, 64)
    return finite(by_cudnn(q, k, v))


def bias_gradient_int32() -> str:
    length = 33280
    q, k, v = (made(2, 1, length, 64) for _ in range(3))
    bias = torch.zeros(2, 1, length, length, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(q, k, v, attn_mask=bias)
    gradients = torch.autograd.grad(out, [q, k, v, bias], torch.ones_like(out))
    torch.cuda.synchronize()
    return finite([out.detach(), *gradients[:3]])


def graph_backward_261() -> str:
    """D5 in a replayed CUDA graph: 9.19 is past the interval of its rows."""
    q, k, v = (made(1, 24, 261, 64) for _ in range(3))
    expected = by_cudnn(q, k, v)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = scaled_dot_product_attention(q, k, v)
        found = [out, *torch.autograd.grad(out, [q, k, v], torch.ones_like(out))]
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    same = all(torch.allclose(x, y, atol=0.05) for x, y in zip(found, expected, strict=True))
    return NOT_THERE if same else f"{THERE}: wrong results"


def nan_behind_the_edge(backend: str) -> Callable[[], str]:
    """No fault of anybody's: whether NaN in a key that a causal mask hides reaches the rows that do not see it."""

    def canary() -> str:
        import cynosure

        q, k, v = (torch.randn(1, 64, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        seen = []
        for name, t in (("k", k), ("v", v)):
            bad = t.clone()
            bad[:, 40] = float("nan")
            given = {"k": k, "v": v, name: bad}
            out = cynosure.attention(q, given["k"], given["v"], causal=True, backend=backend)
            torch.cuda.synchronize()
            if not out[:, :40].isfinite().all():
                seen.append(name)
        return f"{THERE}: a NaN in {' and in '.join(seen)}" if seen else NOT_THERE

    return canary


# row or report: what is called
CANARIES: dict[str, Callable[[], str]] = {
    "fault.cudnn_mask_dq_nan": mask_dq_nan,
    "fault.cudnn_mask_dq_nan, beside it: 768 keys": mask_dq_nan_whole_128,
    "fault.cudnn_bias_dq_nan": bias_dq_nan,
    "fault.cudnn_one_query_dkv_nan": one_query_dkv_nan,
    "fault.cudnn_batch_65536": cudnn_batch(65536),
    "fault.cudnn_batch_65536, beside it: 65535": cudnn_batch(65535),
    "fault.aten_flash_batch_65536": flash_size(65536, 1),
    "fault.aten_flash_batch_65536, beside it: 65535": flash_size(65535, 1),
    "fault.aten_flash_heads_65536": flash_size(1, 65536),
    "fault.aten_flash_heads_65536, beside it: 65535": flash_size(1, 65535),
    "fault.cudnn_plan_segfault": plan_segfault,
    "fault.cudnn_bias_gradient_int32": bias_gradient_int32,
    "D5 in a CUDA graph": graph_backward_261,
    "NaN in a masked key reaches rows, cudnn": nan_behind_the_edge("cudnn"),
    "NaN in a masked key reaches rows, aten_flash": nan_behind_the_edge("aten_flash"),
    "NaN in a masked key reaches rows, unfused": nan_behind_the_edge("unfused"),
}


def tried(name: str) -> str:
    """One canary in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    if done.returncode < 0:
        return f"{THERE}: the process ended with signal {-done.returncode}"
    if done.returncode > 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line.partition(" ")[0]]
        return f"refused: {(errors or lines or ['?'])[-1][:300]}"
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=list(CANARIES))
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.one:
        print(CANARIES[options.one]())
        return
    found = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "canaries": {},
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, result in zip(CANARIES, pool.map(tried, CANARIES), strict=True):
            found["canaries"][name] = result
            print(f"{name}: {result}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
