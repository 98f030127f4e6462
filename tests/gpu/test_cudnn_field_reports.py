# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802
"""What users met with cuDNN (pytorch, TransformerEngine, JAX, cudnn-frontend), on this GPU.

The result is right whatever runs, and where a known-fault row holds, cuDNN is not what runs.
"""

from __future__ import annotations

from typing import Any

import torch
from checks import Ran
from torch import Tensor

import cynosure


def made(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype).requires_grad_()


def both(q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None = None, **more: Any) -> tuple[list[Tensor], str]:
    """out and gradients by what is chosen, held to `unfused`; and what was chosen."""
    results, chosen = [], ""
    for backend in ("auto", "unfused"):
        with Ran() as ran:
            out = cynosure.attention(q, k, v, backend=backend, **more)
            gradient = torch.ones_like(out) if dout is None else dout
            results.append([out.detach(), *torch.autograd.grad(out, [q, k, v], gradient)])
        chosen = chosen or ran.only
    for x, y in zip(*results, strict=True):
        assert x.isfinite().all()
        assert float((x.float() - y.float()).norm()) <= 0.02 * float(y.float().norm()) + 1e-6
    return results[0], chosen


def chosen_for(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> str:
    return both(q, k, v, **more)[1]


def test_D1_a_mask_over_704_keys_and_small_lse() -> None:
    q, k, v = made(1, 704, 1, 64), made(1, 704, 1, 64), made(1, 704, 1, 64)
    with torch.no_grad():
        q[:], k[:] = 11.0, -1.4  # logits near -120
        q += torch.randn_like(q) * 0.1
    for mask in (torch.ones(1, 1, 704, 704, device="cuda", dtype=torch.bool), None):
        if mask is None:
            mask = torch.ones(704, 704, device="cuda", dtype=torch.bool).tril()[None, None]
        out = cynosure.attention(q, k, v, attn_mask=mask)
        gradients = torch.autograd.grad(out, [q, k, v], torch.ones_like(out))
        assert all(x.isfinite().all() for x in (out, *gradients))
    with Ran() as ran:
        cynosure.attention(q, k, v, attn_mask=mask).sum().backward()
    assert ran.only != "cudnn"


def test_D4_the_gradient_has_other_strides_than_the_output() -> None:
    q, k, v = (made(2, 128, 4, 64) for _ in range(3))
    dout = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    assert both(q, k, v, dout)[1] == "cudnn"
    expanded = torch.randn(1, device="cuda", dtype=torch.bfloat16).expand(2, 128, 4, 64)
    assert both(q, k, v, expanded)[1] == "cudnn"


def test_D5_lengths_that_are_no_multiple_of_128_in_three_memories() -> None:
    for shape, order in (
        ((1, 24, 261, 64), (0, 1, 2, 3)),
        ((1, 261, 24, 64), (0, 2, 1, 3)),
        ((261, 1, 24, 64), (1, 2, 0, 3)),
    ):
        q, k, v = (made(*shape).detach().permute(order).requires_grad_() for _ in range(3))
        assert chosen_for(q, k, v, layout="bhsd") == "cudnn"


def test_D6_a_batch_of_65536() -> None:
    q, k, v = made(65536, 1, 1, 8, dtype=torch.float16), *(made(65536, 2, 1, 8, dtype=torch.float16) for _ in range(2))
    mask = torch.rand(65536, 1, 1, 2, device="cuda") < 0.8
    mask[..., 0] = True
    assert chosen_for(q, k, v, attn_mask=mask) != "cudnn"


def test_D12_odd_lengths() -> None:
    for rows, keys in ((13, 17), (129, 255), (1, 7)):
        assert chosen_for(made(3, rows, 2, 64), *(made(3, keys, 2, 64) for _ in range(2))) == "cudnn"


def test_D13_a_float32_bias_beside_bfloat16() -> None:
    q, k, v = (made(8, 128, 4, 32) for _ in range(3))
    bias = torch.randn(1, 4, 128, 128, device="cuda")
    assert chosen_for(q, k, v, attn_bias=bias) == "cudnn"
    assert chosen_for(q, k, v, attn_bias=bias.to(torch.bfloat16)) == "cudnn"


def test_one_query_and_one_key() -> None:
    assert chosen_for(*(made(2, 1, 2, 64) for _ in range(3))) != "cudnn"


def test_G1_the_left_edge_of_a_window_belongs_to_it() -> None:
    q, k, v = (made(1, 64, 2, 64) for _ in range(3))
    for left in (0, 1, 5):
        assert chosen_for(q, k, v, causal=True, window_size=(left, 0)) == "cudnn"
