# SPDX-License-Identifier: Apache-2.0
"""attention and what torch has around it: second derivatives, torch.func, DTensor, FSDP, FLOPs, autocast, export."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case, make
from checks import BACKENDS, call, kept_by_dropout
from reference import attend
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

import cynosure

OURS = [name for name in BACKENDS if name in ("cpu", "unfused")]
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_variables(clean_environment: pytest.MonkeyPatch) -> None:
    """The environment asks for nothing here."""


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


# --- second derivatives

_SMALL = Case(dtype="float64", sq=4, sk=6, dqk=3, dv=2)
SECOND = [
    _SMALL,
    replace(_SMALL, causal=True, heads=6, kv_heads=2, lse="grad"),
    replace(_SMALL, layout="sbhd", causal=True, align="top_left", sq=6, sk=4, scale=0.7),
    replace(_SMALL, layout="bhsd", window=(2, 1), softcap=1.5, alibi="bh"),
    replace(_SMALL, layout="thd", batch=4, lengths="empty", causal=True, sinks="same", lse="grad", dropout=0.3),
    replace(_SMALL, layout="thd", batch=3, lengths="tail", bias="1hss", alibi=""),
    replace(_SMALL, batch=3, lengths="some", causal=True, lse="grad", poison=True),
    replace(_SMALL, bias="bhss", mask="additive:b1ss", mask_grad=True, sinks="same", softcap=2.0, lse="grad"),
    replace(_SMALL, bias="1h1s", mask="bool:b1ss", masked_rows=True, lse="grad", alibi=""),
    replace(_SMALL, alibi="h", dropout=0.4, heads=4, kv_heads=1),
    replace(_SMALL, dropout=1.0),
]


@pytest.mark.parametrize("case", SECOND, ids=str)
def test_second_derivatives_of_unfused(case: Case) -> None:
    """Against the derivatives of the definition; those of the LSE's gradient, too."""
    inputs = make(case)
    keep = kept_by_dropout(inputs, "unfused")

    def twice(leaves: dict[str, Tensor], results: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        incoming = [
            g.to(out.dtype).requires_grad_() for g, out in zip((inputs.dout, inputs.dlse), results, strict=False)
        ]
        first = torch.autograd.grad(
            results, wanted, incoming, create_graph=True, allow_unused=True, materialize_grads=True
        )
        total = sum((g * torch.linspace(-1, 1, g.numel(), dtype=g.dtype).view(g.shape)).sin().sum() for g in first)
        assert isinstance(total, Tensor)
        second = torch.autograd.grad(total, [*wanted, *incoming], allow_unused=True, materialize_grads=True)
        return first, second

    ours, theirs = inputs.copy(), inputs.copy()
    found = call(inputs.arguments(ours), backend="unfused")
    expected = attend(inputs, theirs, keep)[: 2 if case.lse else 1]
    for one, other in zip(twice(ours, found if case.lse else (found,)), twice(theirs, expected), strict=True):
        for x, y in zip(one, other, strict=True):
            assert_close(x, y.to(x.dtype), rtol=1e-6, atol=1e-6)


def test_gradgradcheck_with_every_term() -> None:
    q, k, v = (torch.randn(2, n, h, 3, dtype=torch.float64, requires_grad=True) for n, h in ((3, 4), (5, 2), (5, 2)))
    bias = torch.randn(1, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.randn(2, 1, 1, 5, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    seed = torch.tensor([3, 4])

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor, sinks: Tensor) -> Any:
        more: dict[str, Any] = {"softcap": 2.0, "window_size": (2, 1), "dropout_p": 0.3, "dropout_seed": seed}
        return cynosure.attention(
            q, k, v, attn_bias=bias, attn_mask=mask, sinks=sinks, seqlens_k=int32(5, 2), backend="unfused", **more
        )

    assert torch.autograd.gradcheck(function, (q, k, v, bias, mask, sinks))
    assert torch.autograd.gradgradcheck(function, (q, k, v, bias, mask, sinks))


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("case", [replace(case, dtype="float32") for case in (*SECOND, replace(_SMALL, sk=0))], ids=str)
def test_create_graph_leaves_first_derivatives_as_they_are(case: Case, backend: str) -> None:
    inputs = make(case)
    leaves = inputs.copy()
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    result = call(inputs.arguments(leaves), backend=backend)
    results = result if case.lse else (result,)
    incoming = [inputs.dout, inputs.dlse][: len(results)]
    plain = torch.autograd.grad(results, wanted, incoming, retain_graph=True)
    for x, y in zip(torch.autograd.grad(results, wanted, incoming, create_graph=True), plain, strict=True):
        assert x.dtype == y.dtype
        if backend == "cpu":
            assert torch.equal(x, y)
        assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_create_graph_under_autocast_is_not_rounded() -> None:
    q = torch.randn(2, 5, 2, 8, requires_grad=True)
    out = cynosure.attention(q, q, q, backend="unfused").sum()
    plain = torch.autograd.grad(out, q, retain_graph=True)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = torch.autograd.grad(out, q, create_graph=True)[0]
    assert_close(again, plain)


# --- torch.func


def _samples(term: Any, dim: int | None, i: int) -> Any:
    return term if dim is None else term.select(dim, i)


_TERMS: dict[str, tuple[Tensor, int | None]] = {
    "attn_bias": (torch.randn(1, 4, 5, 6), None),
    "attn_bias of each sequence": (torch.randn(2, 1, 1, 6), None),
    "attn_bias of each sample": (torch.randn(2, 4, 5, 6, 3), 4),
    "attn_bias of each sample alone": (torch.randn(3, 1, 1, 1, 6), 0),
    "attn_mask": (torch.rand(2, 1, 5, 6) > 0.3, None),
    "attn_mask of each sample": (torch.rand(3, 1, 1, 5, 6) > 0.3, 0),
    "alibi_slopes": (torch.rand(4), None),
    "alibi_slopes of each sequence": (torch.rand(2, 4), None),
    "alibi_slopes of each sample": (torch.rand(4, 3), 1),
    "alibi_slopes of each sample and sequence": (torch.rand(3, 2, 4), 0),
    "sinks": (torch.randn(4), None),
    "sinks of each sample": (torch.randn(4, 3), 1),
    "seqlens_k": (int32(6, 2), None),
    "seqlens_k of each sample": (torch.tensor([[1, 2], [3, 4], [6, 0]], dtype=torch.int32), 0),
}


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", _TERMS)
def test_vmap_and_gradients_of_each_sample(name: str, shared: bool, backend: str) -> None:
    term, dim = _TERMS[name]
    q, k, v = torch.randn(3, 2, 5, 4, 8), torch.randn(3, 2, 6, 2, 8), torch.randn(3, 2, 6, 2, 8)
    kv_dim = None if shared else 0
    k, v = (k[0], v[0]) if shared else (k, v)

    def function(q: Tensor, k: Tensor, v: Tensor, term: Tensor) -> Any:
        given: dict[str, Any] = {name.split()[0]: term}
        return cynosure.attention(q, k, v, return_lse=True, backend=backend, **given)

    dims = (0, kv_dim, kv_dim, dim)
    found = torch.vmap(function, in_dims=dims)(q, k, v, term)
    single = [tuple(_samples(t, d, i) for t, d in zip((q, k, v, term), dims, strict=True)) for i in range(3)]
    for i in range(3):
        for x, y in zip(found, function(*single[i]), strict=True):
            assert_close(x[i], y)

    wanted = (0, 1, 2, 3) if name.startswith(("attn_bias", "sinks")) else (0, 1, 2)

    def loss(*tensors: Tensor) -> Tensor:
        out, lse = function(*tensors)
        return out.sin().sum() + lse.clamp(min=-9).sin().sum()  # type: ignore[no-any-return]

    each = torch.vmap(torch.func.grad(loss, argnums=wanted), in_dims=dims)(q, k, v, term)
    for i in range(3):
        leaves = [t.clone().requires_grad_(t.is_floating_point() and j in wanted) for j, t in enumerate(single[i])]
        expected = torch.autograd.grad(loss(*leaves), [leaves[j] for j in wanted])
        for x, y in zip(each, expected, strict=True):
            assert_close(x[i], y, rtol=1e-4, atol=1e-5)

    # the other way round, and by ordinary autograd
    def total(*tensors: Tensor) -> Tensor:
        return torch.vmap(loss, in_dims=dims)(*tensors).sum()

    leaves = [t.clone().requires_grad_(j in wanted) for j, t in enumerate((q, k, v, term))]
    plain = torch.autograd.grad(total(*leaves), [leaves[j] for j in wanted])
    for x, y, j in zip(torch.func.grad(total, argnums=wanted)(q, k, v, term), plain, wanted, strict=True):
        assert_close(x, y, rtol=1e-4, atol=1e-5)
        of_each = each[wanted.index(j)]
        summed = of_each.sum(0) if dims[j] is None else of_each.movedim(0, dims[j])
        assert_close(x, summed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd", "thd"])
def test_nested_vmap(layout: str, backend: str) -> None:
    shape = {"bshd": (2, 5, 4, 8), "sbhd": (5, 2, 4, 8), "bhsd": (2, 4, 5, 8), "thd": (7, 4, 8)}[layout]
    ends = int32(0, 3, 3, 6)
    cu: dict[str, Any] = {"cu_seqlens_q": ends, "cu_seqlens_k": ends} if layout == "thd" else {}
    q = torch.randn(3, 2, *shape)

    def function(q: Tensor) -> Tensor:
        return cynosure.attention(q, q, q, layout=layout, causal=True, backend=backend, **cu)  # type: ignore[no-any-return]

    expected = torch.stack([torch.stack([function(x) for x in of_each]) for of_each in q])
    assert_close(torch.vmap(torch.vmap(function))(q), expected)
    assert_close(torch.vmap(torch.vmap(function, in_dims=1, out_dims=1))(q.movedim(1, 2)), expected.movedim(1, 2))
    assert_close(torch.vmap(torch.vmap(function), chunk_size=2)(q), expected)
    grads = torch.vmap(torch.vmap(torch.func.grad(lambda q: function(q).sin().sum())))(q)
    leaf = q.clone().requires_grad_()
    total = torch.stack([function(leaf[i, j]).sin().sum() for i in range(3) for j in range(2)]).sum()
    assert_close(grads, torch.autograd.grad(total, leaf)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", OURS)
def test_jacrev_and_higher_reverse_derivatives(backend: str) -> None:
    q, k, v = (torch.randn(1, 3, 2, 4) for _ in range(3))

    def function(q: Tensor) -> Any:
        return cynosure.attention(q, k, v, causal=True, return_lse=True, backend=backend)

    expected = torch.autograd.functional.jacobian(function, q)
    for x, y in zip(torch.func.jacrev(function)(q), expected, strict=True):
        assert_close(x, y)

    def loss(q: Tensor) -> Tensor:
        return function(q)[0].sin().sum()  # type: ignore[no-any-return]

    twice = torch.func.jacrev(torch.func.grad(loss))
    if backend == "unfused":
        assert_close(twice(q), torch.autograd.functional.hessian(loss, q))
    else:
        with pytest.raises(RuntimeError, match=r'backend="unfused"'):
            twice(q)


@pytest.mark.parametrize("backend", OURS)
def test_forward_mode_is_refused(backend: str) -> None:
    q = torch.randn(1, 3, 2, 4)

    def function(q: Tensor) -> Tensor:
        return cynosure.attention(q, q, q, backend=backend)  # type: ignore[no-any-return]

    for run in (
        lambda: torch.func.jvp(function, (q,), (q,)),
        lambda: torch.func.jacfwd(function)(q),
        lambda: torch.func.hessian(lambda q: function(q).sum())(q),
    ):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            run()
    with forward_ad.dual_level():
        for grad in (False, True):
            dual = forward_ad.make_dual(q.clone().requires_grad_(grad), q)
            with pytest.raises(NotImplementedError, match="forward-mode"):
                function(dual)
        function(q)  # not a dual tensor


@pytest.mark.parametrize("backend", OURS)
def test_dropout_follows_vmaps_randomness(backend: str) -> None:
    q = torch.randn(1, 6, 2, 4).expand(3, -1, -1, -1)[:, None]

    def function(q: Tensor) -> Tensor:
        return cynosure.attention(q, q, torch.ones_like(q), dropout_p=0.5, backend=backend)  # type: ignore[no-any-return]

    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(function)(q)
    same = torch.vmap(function, randomness="same")(q)
    assert torch.equal(same[0], same[1])
    different = torch.vmap(function, randomness="different")(q)
    assert not torch.equal(different[0], different[1])
    seed = torch.tensor([1, 2])
    seeded = torch.vmap(lambda q: cynosure.attention(q, q, q, dropout_p=0.5, dropout_seed=seed, backend=backend))(q)
    alone = cynosure.attention(q[1], q[1], q[1], dropout_p=0.5, dropout_seed=seed, backend=backend)
    assert_close(seeded[1], alone)


def test_errors_under_vmap_are_those_of_one_sample() -> None:
    with pytest.raises(ValueError, match="q: rank 3, need 4"):
        torch.vmap(lambda q: cynosure.attention(q, q, q))(torch.randn(3, 5, 4, 8))


def _calling(function: Function) -> Function:
    """A frame of its own for torch to trace."""
    return lambda x: function(x)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_transforms(compiled: Any, compiler: str) -> None:
    def loss(q: Tensor) -> Tensor:
        return cynosure.attention(q, q, q, causal=True).sin().sum()  # type: ignore[no-any-return]

    def attend_alone(q: Tensor) -> Tensor:
        return cynosure.attention(q, q, q, causal=True)  # type: ignore[no-any-return]

    q = torch.randn(3, 2, 5, 4, 8)
    functions: tuple[tuple[Function, Tensor], ...] = (
        (torch.func.grad(loss), q[0]),
        (torch.vmap(attend_alone), q),
        (torch.vmap(torch.func.grad(loss)), q),
    )
    for function, x in functions:
        run = torch.compile(_calling(function), fullgraph=True, backend=compiler)
        assert_close(run(x), function(x))


# --- FLOPs, autocast, meta tensors, subclasses


def _flops(function: Function, backward: bool = False) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        out = function()
        if backward:
            out.sum().backward()
    return int(counter.get_total_flops())


def test_flops_are_counted_as_torch_counts_its_own() -> None:
    q = torch.randn(2, 32, 4, 16, requires_grad=True)
    k, v = torch.randn(2, 8, 2, 16), torch.randn(2, 8, 2, 24)
    product = 2 * 2 * 4 * 32 * 32 * 16
    assert _flops(lambda: cynosure.attention(q, q, q, causal=True)) == 2 * product
    assert _flops(lambda: cynosure.attention(q, q, q), backward=True) == 7 * product
    assert _flops(lambda: cynosure.attention(q, k, v)) == 2 * 2 * 4 * 32 * 8 * (16 + 24)
    first = q.transpose(1, 2)
    assert _flops(lambda: cynosure.attention(first, first, first, layout="bhsd")) == 2 * product
    x, cu = torch.randn(10, 4, 16), int32(0, 3, 8)
    ragged: dict[str, Any] = {"layout": "thd", "cu_seqlens_q": cu, "cu_seqlens_k": cu}
    assert _flops(lambda: cynosure.attention(x, x, x, **ragged)) == 4 * (9 + 25) * 4 * 16
    meta = torch.empty(2, 32, 4, 16, device="meta", requires_grad=True)
    assert _flops(lambda: cynosure.attention(meta, meta, meta), backward=True) == 7 * product
    x, cu = x.to("meta"), cu.to("meta")
    ragged |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 5, "max_seqlen_k": 6}
    assert _flops(lambda: cynosure.attention(x, x, x, **ragged)) == 4 * 2 * 5 * 6 * 4 * 16


def test_flops_whatever_is_imported_and_made_first() -> None:
    """A counter that is made, or at work, before the first call knows the formulas all the same."""
    code = """
import torch, cynosure
q = torch.randn(2, 32, 4, 16)
if "before" in ORDER:
    cynosure.attention(q, q, q)
from torch.utils.flop_counter import FlopCounterMode
counter = FlopCounterMode(display=False)
if "between" in ORDER:
    cynosure.attention(q, q, q)
with counter:
    cynosure.attention(q, q, q)
assert counter.get_total_flops() == 2 * 2 * 2 * 4 * 32 * 32 * 16, counter.get_total_flops()
"""
    for order in ("", "before", "between"):
        run = [sys.executable, "-c", f"ORDER = {order!r}\n{code}"]
        process = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
        assert process.returncode == 0, process.stderr


def test_nothing_imports_the_counter_or_dtensor_for_us() -> None:
    code = """
import sys, torch, cynosure
q = torch.randn(2, 3, 4, 16, requires_grad=True)
cynosure.attention(q, q, q).sum().backward()
torch.vmap(cynosure.attention)(q[None], q[None], q[None])
assert "torch.utils.flop_counter" not in sys.modules and "torch.distributed.tensor" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr


def test_autocast_and_devices_that_have_none() -> None:
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 4, 8).half(), torch.randn(2, 5, 4, 8).bfloat16()
    meta = torch.empty(2, 5, 4, 8, device="meta", requires_grad=True)
    run = torch.compile(lambda q: cynosure.attention(q, q, q), backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cynosure.attention(q, k, v).dtype == torch.bfloat16
        assert cynosure.attention(q, k, v, sinks=torch.randn(4)).dtype == torch.bfloat16
        assert cynosure.attention(k, k, k, sinks=torch.randn(4).half()).dtype == torch.bfloat16
        assert cynosure.attention(*(x.double() for x in (q, k, v))).dtype == torch.float64
        assert cynosure.attention(meta, meta, meta).dtype == torch.float32
        assert run(q).dtype == torch.bfloat16
        assert run(meta).dtype == torch.float32
    assert run(q).dtype == torch.float32
    cynosure.attention(meta, meta, meta, causal=True).sum().backward()
    assert meta.grad is not None


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 5, 4, 8, requires_grad=True)
        cynosure.attention(q, q, q, dropout_p=0.3).sum().backward()
        assert q.grad is not None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert cynosure.attention(q, q, q).dtype == torch.bfloat16


def test_opcheck_of_every_operator() -> None:
    from cynosure import _operators

    ops = torch.ops.cynosure
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 2, 8), torch.randn(2, 7, 2, 6)
    word = cynosure.Settings.current().word
    options = _operators.TRAINING | _operators.RETURN_LSE | _operators.SINKS_GRAD | _operators.BIAS_GRAD
    bias, sinks = torch.randn(1, 4, 5, 7), torch.randn(4)
    rest = (options, word, bias, None, None, sinks, None, int32(7, 3), None, -1, -1, -1, -1, 1.0, 0.0, 0.0)
    torch.library.opcheck(ops.attention_forward.default, (q, k, v, *rest))
    out, lse = ops.attention_forward.default(q, k, v, *rest)
    torch.library.opcheck(ops.attention_backward.default, (out, lse, q, k, v, out, lse, *rest))
    plain = (_operators.TRAINING, word)
    torch.library.opcheck(ops.attention_forward.output, (q, k, v, 0, word))
    torch.library.opcheck(ops.attention_forward.plain, (q, k, v, *plain))
    out, lse = ops.attention_forward.plain(q, k, v, *plain)
    torch.library.opcheck(ops.attention_backward.plain, (out, q, k, v, out, lse, *plain))
    leaf = q.clone().requires_grad_()
    torch.library.opcheck(ops.attention.default, (leaf, k, v, word, True), {"attn_bias": bias, "return_lse": True})
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(ops.draw_seed.default, (q,), test_utils=checks)


def test_subclasses_have_gradients() -> None:
    class Tagged(Tensor):
        pass

    plain = torch.randn(2, 5, 4, 8, requires_grad=True)
    expected = torch.autograd.grad(cynosure.attention(plain, plain, plain).sin().sum(), plain)[0]
    for other in (plain.detach().as_subclass(Tagged), torch.nn.Parameter(plain.detach())):
        leaf = other.requires_grad_()
        for graph in (False, True):
            found = torch.autograd.grad(cynosure.attention(leaf, leaf, leaf).sin().sum(), leaf, create_graph=graph)[0]
            assert_close(found.as_subclass(Tensor), expected)


def test_saved_tensor_hooks() -> None:
    q = torch.randn(2, 5, 4, 8, requires_grad=True)
    expected = torch.autograd.grad(cynosure.attention(q, q, q).sin().sum(), q)[0]
    with torch.autograd.graph.save_on_cpu():
        for backend in OURS:
            out = cynosure.attention(q, q, q, backend=backend).sin().sum()
            assert_close(torch.autograd.grad(out, q, create_graph=True)[0], expected)


# --- export


class _Dense(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (3, 4, 8)).unbind(2)
        return cynosure.attention(q, k, v, causal=True)  # type: ignore[no-any-return]


class _Ragged(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, cu: Tensor) -> Tensor:
        return cynosure.attention(  # type: ignore[no-any-return]
            q, k, k, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True
        )


class _Terms(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, bias: Tensor, lengths: Tensor) -> Any:
        return cynosure.attention(
            q, k, k, attn_bias=bias, seqlens_k=lengths, window_size=(5, 2), return_lse=True, softcap=3.0
        )


def _exported(name: str) -> tuple[torch.nn.Module, tuple[Tensor, ...], Any, list[tuple[Tensor, ...]]]:
    dim = torch.export.Dim
    batch, length = dim("batch", min=1, max=64), dim("length", min=1, max=4096)
    tokens, ends, keys = dim("tokens", min=2, max=4096), dim("ends", min=2, max=64), dim("keys", min=1, max=4096)
    randn = torch.randn
    if name == "dense":
        others: list[tuple[Tensor, ...]] = [(randn(1, 1, 32),), (randn(5, 33, 32),), (randn(2, 64, 32),)]
        return _Dense(), (randn(3, 10, 32),), ({0: batch, 1: length},), others
    if name == "ragged":
        others = [(randn(20, 4, 8), randn(20, 2, 8), int32(0, 3, 10, 10, 20))]
        shapes: Any = ({0: tokens}, {0: tokens}, {0: ends})
        return _Ragged(), (randn(10, 4, 8), randn(10, 2, 8), int32(0, 3, 10)), shapes, others
    given = (randn(3, 10, 4, 8), randn(3, 12, 4, 8), randn(1, 4, 1, 12), int32(3, 4, 5))
    others = [(randn(2, 5, 4, 8), randn(2, 6, 4, 8), randn(1, 4, 1, 6), int32(3, 4))]
    return _Terms(), given, ({0: batch, 1: length}, {0: batch, 1: keys}, {3: keys}, {0: batch}), others


@pytest.mark.parametrize("name", ["dense", "ragged", "terms"])
def test_export_with_dynamic_sizes(compiled: Any, tmp_path: Path, name: str) -> None:
    """No size is specialised, the least of 1 included; the program lowers to the raw operator, and to a package."""
    module, given, shapes, others = _exported(name)
    with torch.no_grad():
        program = torch.export.export(module.eval(), given, dynamic_shapes=shapes)
        assert "cynosure.attention.default" in program.graph_module.code
        assert "attention_forward" in program.run_decompositions().graph_module.code
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
        for other in others:
            expected = module(*other)
            assert_close(program.module()(*other), expected)
            assert_close(loaded(*other), expected)


def test_export_of_an_unbacked_batch(compiled: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, which: Tensor) -> Tensor:
            y = x[which]
            return cynosure.attention(y, y, y)  # type: ignore[no-any-return]

    x, which = torch.randn(6, 5, 4, 8), torch.tensor([True, False, True, True, False, True])
    program = torch.export.export(Module(), (x, which))
    assert torch.equal(program.module()(x, ~which), Module()(x, ~which))


# --- processes: DTensor, FSDP, tensor parallelism, forks


def _dtensor_cases() -> list[tuple[str, int, dict[str, Any], bool]]:
    """(layout, key heads, arguments, whether tensors among them are DTensors)."""
    cases: list[tuple[str, int, dict[str, Any], bool]] = [
        (layout, heads, {"causal": True}, True) for layout in ("bshd", "sbhd", "bhsd") for heads in (4, 2, 1)
    ]
    terms: list[dict[str, Any]] = [
        {"seqlens_q": int32(3, 5), "seqlens_k": int32(7, 2)},
        {"attn_bias": torch.randn(1, 4, 5, 7)},
        {"attn_bias": torch.randn(2, 1, 1, 7), "sinks": torch.randn(4)},
        {"attn_mask": torch.randn(2, 4, 1, 1)},
        {"attn_mask": torch.rand(2, 1, 5, 7) > 0.3, "alibi_slopes": torch.rand(4)},
        {"alibi_slopes": torch.rand(2, 4)},
    ]
    cases += [("bshd", 2, term, parallel) for term in terms for parallel in (False, True)]
    cases += [("thd", 2, {"cu_seqlens_q": int32(0, 2, 5), "cu_seqlens_k": int32(0, 3, 7)}, False)]
    return [*cases, ("bshd", 4, {"dropout_p": 0.5, "dropout_seed": torch.tensor([1, 2])}, True)]


def _attend(layout: str, names: list[str], tensors: list[Any], others: dict[str, Any]) -> Any:
    terms = dict(zip(names, tensors[3:], strict=True))
    return cynosure.attention(*tensors[:3], layout=layout, return_lse=True, **{**others, **terms})


def _check_dtensors(rank: int, mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    for layout, kv_heads, arguments, parallel in _dtensor_cases():
        order = {"b": 2, "d": 8}
        q, k, v = (
            torch.randn([{"h": heads, "s": rows, "t": rows, **order}[letter] for letter in layout])
            for rows, heads in ((5, 4), (7, kv_heads), (7, kv_heads))
        )
        names = [n for n in arguments if n in ("attn_bias", "attn_mask", "sinks")]
        names = [n for n in names if arguments[n].is_floating_point()]
        whole = [x.clone().requires_grad_() for x in (q, k, v, *(arguments[n] for n in names))]
        expected = _attend(layout, names, whole, arguments)
        wanted = torch.autograd.grad(expected[0].sin().sum() + expected[1].sin().sum(), whole)
        for axis in ("b", "h", ""):
            if axis and axis not in layout:
                continue
            placement = Shard(layout.index(axis)) if axis else Replicate()
            of_kv = Replicate() if kv_heads == 1 and axis == "h" else placement

            parts: list[Any] = [
                distribute_tensor(x.detach(), mesh, [at]).requires_grad_()
                for x, at in zip(whole[:3], (placement, of_kv, of_kv), strict=True)
            ]
            terms = {n: x.detach().requires_grad_() for n, x in zip(names, whole[3:], strict=True)}
            terms = {**arguments, **terms}
            if parallel:
                terms = {
                    n: distribute_tensor(x.detach(), mesh, [Replicate()]).requires_grad_(n in names)
                    if isinstance(x, Tensor)
                    else x
                    for n, x in terms.items()
                }
            parts += [terms[n] for n in names]
            found = _attend(layout, names, parts, terms)
            assert "dropout_p" in arguments or found[0].placements == (placement,)
            for x, y in zip(found, expected, strict=True):
                assert_close(x.full_tensor(), y)
            grads = torch.autograd.grad(found[0].sin().sum() + found[1].sin().sum(), parts)
            for x, y in zip(grads, wanted, strict=True):
                assert_close(x.full_tensor() if isinstance(x, DTensor) else x, y, rtol=1e-4, atol=1e-5)


def _check_dtensors_further(rank: int, mesh: Any) -> None:
    """Without gradients; drawn dropout; compiled; second derivatives; laid out otherwise."""
    from torch.distributed.tensor import Shard, distribute_tensor

    q = torch.randn(2, 5, 4, 8)
    by_head = distribute_tensor(q, mesh, [Shard(2)])
    with torch.no_grad():
        assert cynosure.attention(by_head, by_head, by_head).placements == (Shard(2),)
    torch.manual_seed(5)
    drawn = cynosure.attention(q, q, q, dropout_p=0.5)
    torch.manual_seed(5)
    assert_close(cynosure.attention(by_head, by_head, by_head, dropout_p=0.5).full_tensor(), drawn)

    def loss(q: Any, backend: str) -> Any:
        return cynosure.attention(q, q, q, causal=True, backend=backend).sin().sum()

    found: Any
    expected: Any
    for backend in OURS:
        leaf: Any = by_head.detach().requires_grad_()
        plain = q.clone().requires_grad_()
        found, expected = (torch.autograd.grad(loss(x, backend), x, create_graph=True)[0] for x in (leaf, plain))
        assert_close(found.full_tensor(), expected)
        if backend == "unfused":
            found, expected = (torch.autograd.grad(g.sin().sum(), x)[0] for g, x in ((found, leaf), (expected, plain)))
            assert_close(found.full_tensor(), expected)
        leaf = by_head.detach().requires_grad_()
        compiled: Any = torch.compile(loss, fullgraph=True, backend="aot_eager")(leaf, backend)
        assert_close(compiled.full_tensor(), loss(plain, backend))
    for shard in (0, 1):  # of keys by sequences, of everything by rows: laid out anew
        other = distribute_tensor(q, mesh, [Shard(shard)])
        first = by_head if shard == 0 else other
        found = cynosure.attention(first, other, other, causal=True)
        assert_close(found.full_tensor(), cynosure.attention(q, q, q, causal=True))


class _Projected(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = torch.nn.Linear(32, 32), torch.nn.Linear(32, 16), torch.nn.Linear(32, 16)
        self.o = torch.nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, 8)) for layer in (self.q, self.k, self.v))
        return self.o(cynosure.attention(q, k, v, causal=True).flatten(2))  # type: ignore[no-any-return]


def _check_parallel_modules(rank: int, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def model() -> _Projected:
        torch.manual_seed(0)
        return _Projected()

    torch.manual_seed(1)
    x = torch.randn(4, 5, 32)
    alone = model()
    expected = alone(x)
    expected.square().mean().backward()
    wanted = [p.grad for p in alone.parameters()]

    sharded = model()
    fully_shard(sharded, mesh=mesh)
    sharded(x[rank * 2 : rank * 2 + 2]).square().mean().backward()
    for p, grad in zip(sharded.parameters(), wanted, strict=True):
        assert isinstance(p.grad, DTensor)
        assert_close(p.grad.full_tensor(), grad, rtol=1e-4, atol=1e-6)

    for local in (True, False):  # attention of plain tensors, and of DTensors
        parallel = model()
        plan = {name: ColwiseParallel(use_local_output=local) for name in "qkv"}
        parallelize_module(parallel, mesh, {**plan, "o": RowwiseParallel(use_local_output=local)})
        out: Any = parallel(x)
        out = out if local else out.full_tensor()
        assert_close(out, expected)
        out.square().mean().backward()
        for p, grad in zip(parallel.parameters(), wanted, strict=True):
            assert isinstance(p.grad, DTensor)
            assert_close(p.grad.full_tensor(), grad, rtol=1e-4, atol=1e-6)


def _on_each_rank(rank: int, port: int, check: Function, failures: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    try:
        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
        dist.init_process_group("gloo", rank=rank, world_size=2)
        torch.manual_seed(0)
        check(rank, init_device_mesh("cpu", (2,)))
        dist.destroy_process_group()
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
        raise


@pytest.mark.parametrize("check", [_check_dtensors, _check_dtensors_further, _check_parallel_modules])
def test_two_processes(check: Function) -> None:
    import torch.multiprocessing as multiprocessing

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    ranks = [context.Process(target=_on_each_rank, args=(rank, port, check, failures)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    hung = [process for process in ranks if process.is_alive()]
    for process in hung:
        process.kill()
    assert failures.empty(), failures.get()
    assert not hung
    assert all(process.exitcode == 0 for process in ranks)


def test_sharding_keeps_groups_whole() -> None:
    """Key heads may be sharded only so that each part has as many, whatever dimensions of the mesh do it."""
    from cynosure._integrations import _divides

    class Mesh:
        def __init__(self, *sizes: int) -> None:
            self.sizes, self.ndim = sizes, len(sizes)

        def size(self, i: int) -> int:
            return self.sizes[i]

    assert _divides(Mesh(2), 2)
    assert _divides(Mesh(2, 2), 2)  # the two together would have more parts than heads, which torch refuses
    assert _divides(Mesh(2, 4), 8)
    assert not _divides(Mesh(2), 3)
    assert not _divides(Mesh(2, 2), 6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_after_threads_have_worked() -> None:
    """A child has torch's pool only as torch leaves it: one thread, as data loaders set it."""
    code = """
import os, signal, sys, torch, cynosure
torch.set_num_threads(3)
q = torch.randn(2, 200, 4, 32, requires_grad=True)
out = cynosure.attention(q, q, q, causal=True)
out.sum().backward()
child = os.fork()
if child == 0:
    signal.alarm(60)
    torch.set_num_threads(1)
    x = q.detach().clone().requires_grad_()
    again = cynosure.attention(x, x, x, causal=True)
    again.sum().backward()
    cynosure.attention(x, x, x, backend="unfused")
    names = {entry.decision.backend.name for entry in cynosure.ledger()}
    good = torch.equal(again, out) and torch.equal(x.grad, q.grad) and names == {"cpu", "unfused"}
    os._exit(0 if good else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
