# SPDX-License-Identifier: Apache-2.0
"""attention inside torch: one graph, checkpointing, transforms, meta and nested tensors, DTensor, forks, threads."""

from __future__ import annotations

import copy
import functools
import io
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import Case, make
from checks import BACKENDS, Ran, call, threads
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import cynosure

OURS = [name for name in BACKENDS if name in ("cpu", "unfused")]
COMPILERS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def _no_variables(clean_environment: pytest.MonkeyPatch) -> None:
    """The environment asks for nothing here."""


def qkv(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_(grad) for _ in range(3))
    return q, k, v


def gradients(out: Tensor, inputs: tuple[Tensor, ...], seed: int = 5) -> tuple[Tensor, ...]:
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(out.dtype)
    return torch.autograd.grad(out, inputs, dout)


def gradients_by_backward(out: Tensor, seed: int = 5) -> None:
    """As `gradients`, left in `.grad` (reentrant checkpointing has no other way)."""
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(out.dtype)
    out.backward(dout)


def equal(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# --- one graph: the same numbers from every compiler

FEATURES = [
    Case(),
    Case(dtype="bfloat16", causal=True, heads=6, kv_heads=2, sq=9, sk=21, dqk=24, dv=40),
    Case(layout="bhsd", bias="1hss", softcap=3.0, sinks="same", window=(5, 2)),
    Case(layout="sbhd", mask="bool:b1ss", masked_rows=True, alibi="bh", align="top_left", causal=True),
    Case(layout="thd", lengths="empty", batch=4, sinks="float32", causal=True, lse="grad"),
    Case(mask="additive:11ss", mask_grad=True, bias="bhss", bias_float32=True, dtype="float16", lse="grad"),
    Case(lengths="some", batch=3, dropout=0.3, scale=0.3),
    Case(strides="transposed", sq=33, sk=7),
    Case(strides="odd", sq=1, sk=50),
]


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("case", FEATURES, ids=str)
def test_every_compiler_gives_what_eager_gives(compiled: Any, case: Case, compiler: str, backend: str) -> None:
    inputs = make(case)

    def function(leaves: dict[str, Tensor]) -> Any:
        result = call(inputs.arguments(leaves), backend=backend)
        return result if case.lse else (result,)

    def both_ways(run: Callable[..., Any]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        leaves = inputs.copy()
        outputs = run(leaves)
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        incoming = [inputs.dout, inputs.dlse][: len(outputs)]
        return tuple(x.detach() for x in outputs), torch.autograd.grad(outputs, wanted, incoming)

    expected = both_ways(function)
    with Ran() as found:
        out = both_ways(torch.compile(function, fullgraph=True, backend=compiler))
    assert found.only == backend
    for x, y in zip(out[0] + out[1], expected[0] + expected[1], strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y), f"largest difference {float((x - y).abs().max())}"


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("alias", ["q is k is v", "q is k", "k is v"])
def test_aliased_inputs(compiled: Any, alias: str, compiler: str, backend: str) -> None:
    names = {"q is k is v": "xxx", "q is k": "xxy", "k is v": "xyy"}[alias]

    def function(x: Tensor, y: Tensor) -> Tensor:
        q, k, v = ({"x": x, "y": y}[name] for name in names)
        return cynosure.attention(q, k, v, causal=True, backend=backend)  # type: ignore[no-any-return]

    x, y, _ = qkv(2, 9, 4, 16)
    separate = [{"x": x, "y": y}[name].detach().clone().requires_grad_() for name in names]
    apart = gradients(cynosure.attention(*separate, causal=True, backend=backend), tuple(separate))
    wanted = {"x": x, "y": y}
    inputs = tuple(wanted[name] for name in dict.fromkeys(names))
    sums = [sum(g for g, n in zip(apart, names, strict=True) if n == name) for name in dict.fromkeys(names)]
    for run in (function, torch.compile(function, fullgraph=True, backend=compiler)):
        for found, expected in zip(gradients(run(x, y), inputs), sums, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_model_around_it_under_inductor(compiled: Any) -> None:
    """Projections and a residual, so that inductor fuses, pads and reorders around the operator."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.into(torch.nn.functional.gelu(x)).unflatten(-1, (3, 4, 8)).unbind(2)
            return x + self.out(cynosure.attention(q, k, v, causal=True).flatten(2))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    block = Block()
    x = torch.randn(2, 17, 32, requires_grad=True)
    everything = (x, *block.parameters())
    expected = block(x)
    out = torch.compile(block, fullgraph=True)(x)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(gradients(out, everything), gradients(expected, everything), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


# --- how many graphs


def lengths(count: int, seed: int = 0, least: int = 2) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < count:
        pairs[(rng.randint(least, 6), rng.choice((rng.randint(least, 40), 16, 32, 64)))] = None
    return list(pairs)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return cynosure.attention(q, k, v, causal=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("grad", [False, True])
def test_one_graph_over_64_marked_lengths(compiled: Any, grad: bool) -> None:
    run = compiled(attend)
    for batch, length in lengths(64):
        inputs = qkv(batch, length, 2, 8, grad=grad)
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(x, 1)
        assert torch.equal(run(*inputs), attend(*inputs))
    assert run.graphs == 1


@pytest.mark.parametrize("grad", [False, True])
def test_two_graphs_over_64_lengths_by_default(compiled: Any, grad: bool) -> None:
    run = compiled(attend)
    for batch, length in lengths(64):
        inputs = qkv(batch, length, 2, 8, grad=grad)
        assert torch.equal(run(*inputs), attend(*inputs))
    assert run.graphs <= 2


def test_one_graph_over_lengths_of_queries_and_keys(compiled: Any) -> None:
    """Sq and Skv on their own, both alignments, a window and all lengths ragged: nothing branches on a length."""

    def function(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        a = cynosure.attention(q, k, k, causal=True, window_size=(7, 0))
        return a, cynosure.attention(q, k, k, window_size=(4, 3), align="top_left")

    run = torch.compile(function, fullgraph=True, backend=(counter := _counter()), dynamic=True)
    for batch, sq in lengths(32):
        q, k = torch.randn(batch, sq, 4, 8), torch.randn(batch, (sq * 7) % 45 + 2, 2, 8)
        assert equal(run(q, k), function(q, k))
    assert counter.frame_count <= 2  # dynamic=True still tells equal sizes apart


def _counter() -> Any:
    from torch._dynamo.testing import CompileCounter

    return CompileCounter()


def test_one_graph_over_ragged_batches(compiled: Any) -> None:
    def function(x: Tensor, cu: Tensor) -> Tensor:
        return cynosure.attention(  # type: ignore[no-any-return]
            x, x, x, layout="thd", causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu
        )

    run = compiled(function)
    rng = random.Random(1)
    for _ in range(24):
        cuts = sorted(rng.randint(0, 50) for _ in range(rng.randint(2, 8)))
        x, cu = torch.randn(cuts[-1] + 2, 2, 8), torch.tensor([0, *cuts], dtype=torch.int32)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(cu, 0)
        assert torch.equal(run(x, cu), function(x, cu))
    assert run.graphs == 1


def test_max_seqlen_as_a_number_that_changes(compiled: Any) -> None:
    def function(x: Tensor, cu: Tensor, longest: int) -> Tensor:
        return cynosure.attention(  # type: ignore[no-any-return]
            x, x, x, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest, max_seqlen_k=longest
        )

    run = compiled(function)
    x = torch.randn(60, 2, 8)
    for longest in range(20, 40, 2):
        cu = torch.tensor([0, longest, 60], dtype=torch.int32)
        assert torch.equal(run(x, cu, max(longest, 60 - longest)), function(x, cu, max(longest, 60 - longest)))
    assert run.graphs <= 2


def test_sizes_of_one_cost_what_a_multiply_costs(compiled: Any) -> None:
    run, multiply = compiled(attend), compiled(lambda q, k, v: q * k * v)
    pairs = [(1, 1), (1, 7), (7, 1), *lengths(12, least=1)]
    for batch, length in pairs:
        inputs = qkv(batch, length, 2, 8, grad=False)
        multiply(*inputs)
        assert torch.equal(run(*inputs), attend(*inputs))
    assert run.graphs <= multiply.graphs


def test_no_guard_names_a_length(compiled: Any) -> None:
    """With lengths marked dynamic and every feature that reads them: what torch guards is 2 <= size at most."""
    x = torch.randn(3, 10, 2, 8)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(x, 1)
    explained = torch._dynamo.explain(lambda q: cynosure.attention(q, q, q, causal=True, window_size=(4, 0)))(x)
    assert explained.graph_break_count == 0
    shape_guards = [
        str(code)
        for guard in explained.out_guards
        if guard.create_fn_name() == "SHAPE_ENV"
        for code in guard.code_list or ()
    ]
    for code in shape_guards:
        assert all(bad not in code for bad in ("%", "//", "== 10", "== 3")), shape_guards


def test_eager_cost_of_lengths_is_bounded() -> None:
    """Each distinct decision is one entry of the ledger; lengths alone make no flood of them."""
    before = len(cynosure.ledger())
    for length in range(2, 200):
        q = torch.zeros(1, length, 1, 8)
        cynosure.attention(q, q, q)
    assert len(cynosure.ledger()) - before <= 200


# --- settings: a changed variable takes effect at the next call


def test_variables_flipped_set_and_unset(
    compiled: Any, many_graphs: None, clean_environment: pytest.MonkeyPatch
) -> None:
    run = compiled(attend)
    inputs = qkv(2, 9, 2, 8)

    def used() -> str:
        with Ran() as found:
            gradients(run(*inputs), inputs)
        return found.only

    assert used() == "cpu"
    assert run.graphs == 1
    clean_environment.setenv("CYNOSURE_BACKEND", "unfused")
    assert used() == "unfused"
    assert run.graphs == 2
    clean_environment.setenv("CYNOSURE_BACKEND", "cpu")
    assert used() == "cpu"
    assert run.graphs == 3
    clean_environment.setenv("CYNOSURE_BACKEND", "unfused")
    assert used() == "unfused"
    clean_environment.delenv("CYNOSURE_BACKEND")
    assert used() == "cpu"
    assert run.graphs == 3  # flipping back reuses
    clean_environment.setenv("NVTE_UNFUSED_ATTN", "0")
    assert used() == "cpu"
    assert run.graphs == 4
    clean_environment.setenv("CYNOSURE_BACKEND", "unfused")
    with pytest.raises(Exception, match="unfused is required and switched off"):
        run(*inputs)
    clean_environment.delenv("NVTE_UNFUSED_ATTN")
    assert used() == "unfused"
    clean_environment.setenv("SOME_OTHER_VARIABLE", "1")
    graphs = run.graphs
    assert used() == "unfused"
    assert run.graphs == graphs


def test_determinism_and_precision_flags(compiled: Any, many_graphs: None) -> None:
    run = compiled(attend)
    inputs = qkv(2, 9, 2, 8, grad=False)
    expected = run(*inputs)
    torch.use_deterministic_algorithms(True)
    assert torch.equal(run(*inputs), expected)
    assert run.graphs == 2
    torch.use_deterministic_algorithms(False)
    assert torch.equal(run(*inputs), expected)
    assert run.graphs == 2


def test_the_instruction_set_is_a_setting(compiled: Any, clean_environment: pytest.MonkeyPatch) -> None:
    run = compiled(attend)
    inputs = qkv(2, 40, 2, 64, grad=False)
    expected = run(*inputs)
    clean_environment.setenv("CYNOSURE_CPU_ISA", "generic")
    torch.testing.assert_close(run(*inputs), expected)
    assert torch.equal(run(*inputs), attend(*inputs))
    assert run.graphs == 2
    clean_environment.delenv("CYNOSURE_CPU_ISA")
    assert torch.equal(run(*inputs), expected)
    assert run.graphs == 2


def test_eager_follows_variables_at_each_call(clean_environment: pytest.MonkeyPatch) -> None:
    inputs = qkv(2, 9, 2, 8)
    for value, name in ((None, "cpu"), ("unfused", "unfused"), ("prefer(unfused)", "unfused"), (None, "cpu")):
        if value is None:
            clean_environment.delenv("CYNOSURE_BACKEND", raising=False)
        else:
            clean_environment.setenv("CYNOSURE_BACKEND", value)
        with Ran() as found:
            attend(*inputs)
        assert found.only == name


def test_backward_takes_what_forward_took(clean_environment: pytest.MonkeyPatch) -> None:
    """The settings of a call go with it: a variable flipped in between does not split it."""
    for backend in OURS:
        inputs = qkv(2, 9, 2, 8)
        out = cynosure.attention(*inputs, backend=backend)
        clean_environment.setenv("CYNOSURE_BACKEND", "unfused" if backend == "cpu" else "cpu")
        with Ran() as found:
            gradients(out, inputs)
        assert found.only == backend
        clean_environment.delenv("CYNOSURE_BACKEND")


# --- checkpointing


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("compiler", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_activation_checkpointing(compiled: Any, dropout: float, compiler: str | None, reentrant: bool) -> None:
    if compiler and reentrant:
        pytest.skip("torch traces only the other kind")

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cynosure.attention(q, k, v, causal=True, dropout_p=dropout)  # type: ignore[no-any-return]

    def checkpointed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(function, q, k, v, use_reentrant=reentrant)

    inputs = qkv(2, 9, 2, 8)
    torch.manual_seed(4)
    expected = function(*inputs)
    wanted = gradients(expected, inputs)
    run = torch.compile(checkpointed, fullgraph=True, backend=compiler) if compiler else checkpointed
    torch.manual_seed(4)
    out = run(*inputs)
    assert torch.equal(out, expected)
    gradients_by_backward(out)
    assert equal(tuple(x.grad for x in inputs if x.grad is not None), wanted)


def test_checkpointing_computes_forward_again() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(attend, q, k, v, use_reentrant=False)

    inputs = qkv(2, 9, 2, 8)
    with Ran() as found:
        gradients(function(*inputs), inputs)
    assert found.counts["cpu"] == 3  # forward, forward again, backward


@pytest.mark.parametrize("compiler", [None, "aot_eager"])
def test_selective_checkpointing_names_our_operator(compiled: Any, compiler: str | None) -> None:
    """A policy that saves our operator: its forward runs once."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen: list[Any] = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        ours = op == torch.ops.cynosure.attention_forward.default
        seen.append(op) if ours else None
        return CheckpointPolicy.MUST_SAVE if ours else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(lambda q, k, v: attend(q.sin(), k, v), q, k, v, use_reentrant=False, context_fn=contexts)

    inputs = qkv(2, 9, 2, 8)
    expected = gradients(attend(inputs[0].sin(), *inputs[1:]), inputs)
    run = torch.compile(function, fullgraph=True, backend=compiler) if compiler else function
    with Ran() as found:
        found_gradients = gradients(run(*inputs), inputs)
    for x, y in zip(found_gradients, expected, strict=True):
        torch.testing.assert_close(x, y)
    assert seen
    assert found.counts["cpu"] == 2  # forward once, backward once


# --- dropout


@pytest.mark.parametrize("backend", OURS)
def test_dropout_is_replayed_from_a_seed(compiled: Any, backend: str) -> None:
    inputs = qkv(2, 20, 4, 8)
    seed = torch.tensor([11, 22])

    def function(seed: Tensor) -> Tensor:
        return cynosure.attention(  # type: ignore[no-any-return]
            *inputs, dropout_p=0.3, dropout_seed=seed, backend=backend
        )

    out = function(seed)
    wanted = gradients(out, inputs)
    torch.manual_seed(0)
    again = function(seed.clone())
    assert torch.equal(again, out)
    assert equal(gradients(again, inputs), wanted)
    assert not torch.equal(function(torch.tensor([12, 22])), out)
    assert not torch.equal(function(torch.tensor([11, 23])), out)
    run = torch.compile(function, fullgraph=True, backend="inductor")
    assert torch.equal(run(seed), out)
    assert equal(gradients(run(seed), inputs), wanted)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("backend", OURS)
def test_drawn_dropout_is_the_same_compiled(compiled: Any, backend: str, compiler: str) -> None:
    inputs = qkv(2, 20, 4, 8)

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        first = cynosure.attention(q, k, v, dropout_p=0.3, backend=backend)
        return first, cynosure.attention(q, k, v, dropout_p=0.3, backend=backend)

    torch.manual_seed(9)
    expected = function(*inputs)
    state = torch.get_rng_state()
    assert not torch.equal(*expected)  # each call draws its own
    torch.manual_seed(9)
    run = torch.compile(function, fullgraph=True, backend=compiler)
    out = run(*inputs)
    assert equal(out, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert equal(gradients(out[0], inputs), gradients(expected[0], inputs))
    assert not torch.equal(run(*inputs)[0], out[0])


def test_no_dropout_draws_nothing() -> None:
    inputs = qkv(2, 20, 4, 8)
    state = torch.get_rng_state()
    attend(*inputs)
    cynosure.attention(*inputs, dropout_p=0.5, dropout_seed=torch.tensor([1, 2]))
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_rate() -> None:
    q, v = torch.zeros(4, 100, 4, 8), torch.ones(4, 100, 4, 1)
    for p in (0.1, 0.5, 0.9):
        for backend in OURS:
            out = cynosure.attention(q, q, v, dropout_p=p, dropout_seed=torch.tensor([3, 4]), backend=backend)
            assert out.mean().item() == pytest.approx(1.0, abs=0.05)
            kept = out.std().item() ** 2 * 100 * (1 - p) / p  # of a binomial
            assert kept == pytest.approx(1.0, abs=0.15)


# --- torch.func, opcheck, double backward, autocast


@pytest.mark.parametrize("backend", OURS)
def test_func_grad_and_vjp(backend: str) -> None:
    inputs = qkv(2, 9, 2, 8)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cynosure.attention(q, k, v, causal=True, backend=backend).square().sum()  # type: ignore[no-any-return]

    expected = torch.autograd.grad(loss(*inputs), inputs)
    detached = tuple(x.detach() for x in inputs)
    for found, wanted in zip(torch.func.grad(loss, argnums=(0, 1, 2))(*detached), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    value, pull = torch.func.vjp(loss, *detached)  # type: ignore[misc]
    torch.testing.assert_close(value, loss(*inputs).detach())
    for found, wanted in zip(pull(torch.ones(())), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", OURS)
def test_func_vmap(backend: str) -> None:
    q, k, v = qkv(3, 2, 9, 2, 8, grad=False)
    bias = torch.randn(1, 2, 9, 9)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cynosure.attention(q, k, v, causal=True, attn_bias=bias, backend=backend)  # type: ignore[no-any-return]

    expected = torch.stack([function(q[i], k[i], v[i]) for i in range(3)])
    torch.testing.assert_close(torch.vmap(function)(q, k, v), expected)
    shared = torch.stack([function(q[i], k[0], v[0]) for i in range(3)])
    torch.testing.assert_close(torch.vmap(function, in_dims=(0, None, None))(q, k[0], v[0]), shared)
    other = torch.vmap(function, in_dims=(2, 0, 0), out_dims=1)(q.movedim(0, 2), k, v)
    torch.testing.assert_close(other, expected.movedim(0, 1))


@pytest.mark.parametrize("backend", OURS)
def test_func_gradients_of_each_sample(backend: str) -> None:
    q, k, v = qkv(3, 1, 9, 2, 8, grad=False)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cynosure.attention(q, k, v, causal=True, backend=backend).square().sum()  # type: ignore[no-any-return]

    found = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    for i in range(3):
        expected = torch.func.grad(loss, argnums=(0, 1, 2))(q[i], k[i], v[i])
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x[i], y)


@pytest.mark.parametrize(
    "case",
    [
        Case(sq=5, sk=7),
        Case(layout="bhsd", causal=True, heads=6, kv_heads=2, dqk=8, dv=24),
        Case(layout="sbhd", bias="1hss", mask="additive:b1ss", mask_grad=True, sinks="same", lse="grad"),
        Case(layout="thd", lengths="some", window=(3, 1)),
        Case(dropout=0.5, softcap=2.0, dtype="bfloat16"),
        Case(gradients=False, mask="bool:111s", alibi="h"),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", OURS)
def test_opcheck_of_the_raw_operators(monkeypatch: pytest.MonkeyPatch, case: Case, backend: str) -> None:
    """With the arguments that real calls give them, forward and backward."""
    from cynosure import _operators

    seen: dict[str, tuple[Any, ...]] = {}

    def recording(name: str, operator: Any) -> Callable[..., Any]:
        def record(*args: Any) -> Any:
            seen[name] = args
            return operator(*args)

        return record

    for name in ("raw_forward", "raw_backward"):
        monkeypatch.setattr(_operators, name, recording(name, getattr(_operators, name)))
    inputs = make(case)
    result = call(inputs.arguments(), backend=backend)
    out, lse = result if case.lse else (result, None)
    if case.gradients:
        torch.autograd.backward([out], [inputs.dout]) if lse is None else torch.autograd.backward(
            [out, lse], [inputs.dout, inputs.dlse]
        )
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    plain: Any = [x.detach() if isinstance(x, Tensor) else x for x in seen["raw_forward"]]
    torch.library.opcheck(torch.ops.cynosure.attention_forward.default, plain, test_utils=checks)
    if case.gradients:
        plain = [x.detach() if isinstance(x, Tensor) else x for x in seen["raw_backward"]]
        torch.library.opcheck(torch.ops.cynosure.attention_backward.default, plain, test_utils=checks)


def test_opcheck_of_the_surface_operator() -> None:
    q, k, v = qkv(2, 9, 2, 8)
    word = cynosure.Settings.current().word
    torch.library.opcheck(torch.ops.cynosure.attention.default, (q, k, v, word, True))


def test_double_backward_on_unfused() -> None:
    q, k, v = (torch.randn(1, 3, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Any:
        return cynosure.attention(q, k, v, attn_bias=bias, sinks=sinks, softcap=2.0, causal=True, backend="unfused")

    assert torch.autograd.gradcheck(function, (q, k, v, bias, sinks))
    assert torch.autograd.gradgradcheck(function, (q, k, v, bias, sinks))


def test_double_backward_elsewhere_names_unfused() -> None:
    q, k, v = qkv(2, 9, 2, 8)
    out = cynosure.attention(q, k, v, backend="cpu")
    grad = torch.autograd.grad(out.square().sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError, match=r'backend="unfused"'):
        torch.autograd.grad(grad.square().sum(), q)


def test_a_second_derivative_is_never_zero_in_silence() -> None:
    """Also where a first derivative was taken with create_graph and only part of it is used."""
    q, k, v = qkv(2, 9, 2, 8)
    out = cynosure.attention(q, k, v, backend="cpu")
    grads = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)
    for grad in grads:
        assert grad.requires_grad
    with pytest.raises(RuntimeError, match=r'backend="unfused"'):
        torch.stack([grad.square().sum() for grad in grads]).sum().backward()


@pytest.mark.parametrize("backend", OURS)
def test_backward_twice_through_a_kept_graph(backend: str) -> None:
    inputs = qkv(2, 9, 2, 8)
    out = cynosure.attention(*inputs, backend=backend)
    first = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    assert equal(first, torch.autograd.grad(out.sum(), inputs))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.sum(), inputs)


def test_saved_tensors_changed_in_place_are_noticed() -> None:
    q, k, v = qkv(2, 9, 2, 8)
    x = q * 1
    out = cynosure.attention(x, k, v)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("which", ["q", "k", "v", "qk", "kv", "bias", "sinks"])
@pytest.mark.parametrize("backend", OURS)
def test_only_the_gradients_that_are_wanted(which: str, backend: str) -> None:
    tensors = dict(zip("qkv", qkv(2, 9, 2, 8, grad=False), strict=True))
    more = {"bias": torch.randn(1, 2, 9, 9), "sinks": torch.randn(2)}
    wanted = [which] if which in more else list(which)
    everything = {**tensors, **more}

    def run(names: list[str]) -> tuple[Tensor, ...]:
        leaves = {name: x.detach().clone().requires_grad_(name in names) for name, x in everything.items()}
        q, k, v = (leaves[name] for name in "qkv")
        out = cynosure.attention(q, k, v, attn_bias=leaves["bias"], sinks=leaves["sinks"], backend=backend)
        return gradients(out, tuple(leaves[name] for name in names))

    everywhere = dict(zip(everything, run(list(everything)), strict=True))
    assert equal(run(wanted), tuple(everywhere[name] for name in wanted))


@pytest.mark.parametrize("compiler", [None, "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_autocast_as_sdpa(compiled: Any, dtype: torch.dtype, compiler: str | None) -> None:
    q, k, v = qkv(2, 9, 2, 8, dtype=dtype)
    mask = torch.randn(9, 9).to(dtype)

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cynosure.attention(q, k, v, attn_mask=mask[None, None])  # type: ignore[no-any-return]

    def drop_in(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return cynosure.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)

    for function in (ours, drop_in):
        run = torch.compile(function, fullgraph=True, backend=compiler) if compiler else function
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected, out = sdpa(q, k, v), run(q, k, v)
        assert out.dtype == expected.dtype
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=3e-2)
        for found, x in zip(gradients(out, (q, k, v)), (q, k, v), strict=True):
            assert found.dtype == x.dtype
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            assert run(q, k, v).dtype == dtype


def test_grad_modes() -> None:
    inputs = qkv(2, 9, 2, 8)
    expected = attend(*inputs).detach()
    with torch.no_grad():
        assert torch.equal(attend(*inputs), expected)
        assert not attend(*inputs).requires_grad
    with torch.inference_mode():
        out = attend(*inputs)
        assert out.is_inference()
        assert torch.equal(out, expected)
    inference = torch.inference_mode()(lambda: tuple(x * 1 for x in inputs))()
    assert torch.equal(attend(*(x.clone() for x in inference)), expected)
    with torch.no_grad():
        assert torch.equal(attend(*inference), expected)


# --- kinds of tensors


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd", "thd"])
def test_meta_tensors_have_the_shapes_and_strides_of_real_ones(layout: str) -> None:
    case = Case(layout=layout, heads=6, kv_heads=2, sq=9, sk=13, dqk=8, dv=24, lse="grad", bias="1hss", sinks="same")
    inputs = make(case)
    real = call(inputs.arguments())
    leaves = {name: x.detach().to("meta").requires_grad_() for name, x in inputs.leaves.items()}
    arguments = {name: x.to("meta") if isinstance(x, Tensor) else x for name, x in inputs.arguments(leaves).items()}
    meta = call(arguments)
    for found, expected in zip(meta, real, strict=True):
        assert found.device.type == "meta"
        assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
    wanted = torch.autograd.grad(real, list(inputs.leaves.values()), [inputs.dout, inputs.dlse])
    for found, expected in zip(
        torch.autograd.grad(meta, list(leaves.values()), [inputs.dout.to("meta"), inputs.dlse.to("meta")]),
        wanted,
        strict=True,
    ):
        assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)


def test_jagged_nested_tensors_are_ragged_batches(compiled: Any) -> None:
    parts = [torch.randn(n, 4, 8) for n in (5, 1, 9)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)  # [3, j, 4, 8]
    tokens = torch.cat(parts).requires_grad_()
    cu = torch.tensor([0, 5, 6, 15], dtype=torch.int32)
    expected = cynosure.attention(tokens, tokens, tokens, layout="thd", causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for run in (cynosure.attention, torch.compile(cynosure.attention, fullgraph=True, backend="aot_eager")):
        out = run(nested, nested, nested, causal=True)
        assert out.is_nested
        assert torch.equal(out.values(), expected)
        grad = torch.autograd.grad(out.values().sum(), nested)[0]
        wanted = torch.autograd.grad(expected.sum(), tokens, retain_graph=True)[0]
        torch.testing.assert_close(grad.values(), wanted)


def test_jagged_nested_tensors_in_sdpa() -> None:
    parts = [torch.randn(n, 4, 8) for n in (5, 1, 9)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    out = cynosure.scaled_dot_product_attention(nested, nested, nested, is_causal=True)
    for x, part in zip(out.unbind(), parts, strict=True):
        alone = part.transpose(0, 1)
        torch.testing.assert_close(
            x, torch.nn.functional.scaled_dot_product_attention(alone, alone, alone, is_causal=True)
        )


def test_parameters_and_subclasses() -> None:
    class Tagged(Tensor):
        pass

    inputs = qkv(2, 9, 2, 8)
    expected = attend(*inputs)
    assert torch.equal(attend(*(torch.nn.Parameter(x.detach()) for x in inputs)), expected)
    tagged = attend(*(x.as_subclass(Tagged) for x in inputs))
    assert torch.equal(tagged.as_subclass(Tensor), expected)


def test_flop_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    inputs = qkv(2, 32, 4, 16)
    heads_first = tuple(x.detach().transpose(1, 2).requires_grad_() for x in inputs)

    def count(function: Callable[..., Tensor], arguments: tuple[Tensor, ...], backward: bool) -> int:
        with FlopCounterMode(display=False) as counter:
            out = function(*arguments)
            if backward:
                out.sum().backward()
        return int(counter.get_total_flops())

    products = 2 * 2 * 4 * 32 * 32 * 16  # of one matmul of scores
    assert count(cynosure.attention, inputs, False) == 2 * products
    assert count(cynosure.attention, inputs, True) in (6 * products, 7 * products)
    expected = count(torch.nn.functional.scaled_dot_product_attention, heads_first, False)
    assert count(cynosure.attention, inputs, False) == expected
    assert count(cynosure.scaled_dot_product_attention, heads_first, False) == expected


def test_deepcopy_and_pickle_around_it(compiled: Any) -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sinks = torch.nn.Parameter(torch.randn(2))
            self.backend = cynosure.prefer("unfused")

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return cynosure.attention(q, k, v, sinks=self.sinks, backend=self.backend)  # type: ignore[no-any-return]

    module = Module()
    inputs = qkv(2, 9, 2, 8)
    expected = module(*inputs)
    assert torch.equal(copy.deepcopy(module)(*inputs), expected)
    assert copy.deepcopy(module.backend) == pickle.loads(pickle.dumps(module.backend)) == module.backend
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other = Module()
    other.load_state_dict(torch.load(buffer))
    assert torch.equal(other(*inputs), expected)
    assert torch.equal(torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")(*inputs), expected)
    assert pickle.loads(pickle.dumps(cynosure.attention)) is cynosure.attention


def test_export(compiled: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return cynosure.attention(q, k, v, causal=True, window_size=(6, 0))  # type: ignore[no-any-return]

    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=4096)
    inputs = qkv(3, 10, 2, 8, grad=False)
    shapes = ({0: batch, 1: length},) * 3
    program = torch.export.export(Module(), inputs, dynamic_shapes=shapes)
    others = qkv(5, 33, 2, 8, grad=False)
    assert torch.equal(program.module()(*others), Module()(*others))
    text = program.run_decompositions().graph_module.code
    assert "attention_forward" in text
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    assert torch.equal(torch.export.load(buffer).module()(*others), Module()(*others))


# --- processes and threads


@pytest.mark.parametrize("backend", OURS)
def test_equal_bits_for_any_number_of_threads(backend: str) -> None:
    cases = [
        Case(batch=1, heads=2, sq=300, sk=500, dqk=64, dv=64, causal=True, bias="11ss", sinks="same", lse="grad"),
        Case(batch=3, heads=6, kv_heads=2, sq=130, sk=200, dqk=40, dv=24, dtype="bfloat16", mask="additive:b1ss"),
        Case(batch=5, heads=4, kv_heads=1, sq=90, sk=90, layout="thd", lengths="empty", dropout=0.2),
        Case(batch=1, heads=1, kv_heads=1, sq=1, sk=3000, dqk=128, dv=128),
    ]
    for case in cases:
        inputs = make(replace(case, heads=max(case.heads, case.kv_heads)))
        results = []
        for count in (1, 2, 3):
            with threads(count):
                leaves = inputs.copy()
                result = call(inputs.arguments(leaves), backend=backend)
                outputs = result if isinstance(result, tuple) else (result,)
                wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
                grads = torch.autograd.grad(outputs, wanted, [inputs.dout, inputs.dlse][: len(outputs)])
                results.append((*outputs, *grads))
        if backend == "cpu":  # its own kernels promise this; the other is torch's operators
            assert equal(results[0], results[1]), case
            assert equal(results[0], results[2]), case
        else:
            for other in results[1:]:
                for x, y in zip(results[0], other, strict=True):
                    torch.testing.assert_close(x, y)


def test_runs_repeat_bit_for_bit() -> None:
    inputs = qkv(2, 200, 4, 32)
    first = (attend(*inputs), *gradients(attend(*inputs), inputs))
    for _ in range(5):
        assert equal((attend(*inputs), *gradients(attend(*inputs), inputs)), first)


def test_many_python_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(seed: int) -> bool:
        g = torch.Generator().manual_seed(seed)
        q = torch.randn(1, 8 + seed % 5, 2, 8, generator=g, requires_grad=True)
        out = cynosure.attention(q, q, q, causal=True, backend=OURS[seed % len(OURS)])
        expected = cynosure.attention(q, q, q, causal=True, backend="unfused")
        grad = torch.autograd.grad(out.sum(), q)[0]
        return bool(torch.allclose(out, expected, atol=1e-5)) and bool(torch.isfinite(grad).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_after_use() -> None:
    """A child of a process whose pool, caches and ledger have been used (a data loader's worker, say)."""
    code = """
import os, sys, torch, cynosure
q = torch.randn(2, 200, 4, 32, requires_grad=True)
out = cynosure.attention(q, q, q, causal=True)
out.sum().backward()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        x = q.detach().clone().requires_grad_()
        again = cynosure.attention(x, x, x, causal=True)
        again.sum().backward()
        good = torch.equal(again, out) and torch.equal(x.grad, q.grad) and len(cynosure.ledger()) > 0
        os._exit(0 if good else 1)
    children.append(child)
sys.exit(any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr


def test_data_loader_workers() -> None:
    class Data(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            q = torch.full((1, 5, 2, 8), float(index))
            return cynosure.attention(q, q, q)  # type: ignore[no-any-return]

    q = torch.randn(2, 200, 4, 32)
    cynosure.attention(q, q, q)
    loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="fork")
    for index, x in enumerate(loader):
        assert torch.equal(x[0], torch.full((1, 5, 2, 8), float(index)))


# --- DTensor


def _on_each_rank(rank: int, port: int, failures: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    try:
        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
        dist.init_process_group("gloo", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        torch.manual_seed(0)
        for layout, batch_axis, head_axis in (("bshd", 0, 2), ("bhsd", 0, 1), ("sbhd", 1, 2)):
            shape = {"bshd": (2, 9, 4, 8), "bhsd": (2, 4, 9, 8), "sbhd": (9, 2, 4, 8)}[layout]
            whole = [torch.randn(shape, requires_grad=True) for _ in range(3)]
            sinks = torch.randn(4, requires_grad=True)
            expected = cynosure.attention(*whole, layout=layout, causal=True, sinks=sinks)
            wanted = torch.autograd.grad(expected.square().sum(), (*whole, sinks))
            for placement, of_sinks in (
                (Shard(batch_axis), Replicate()),
                (Shard(head_axis), Shard(0)),
                (Replicate(), Replicate()),
            ):
                parts = [distribute_tensor(x.detach(), mesh, [placement]).requires_grad_() for x in whole]
                shared = distribute_tensor(sinks.detach(), mesh, [of_sinks]).requires_grad_()
                out = cynosure.attention(*parts, layout=layout, causal=True, sinks=shared)
                assert isinstance(out, DTensor), type(out)
                assert out.placements == (placement,), (out.placements, placement)
                torch.testing.assert_close(out.full_tensor(), expected)
                grads = torch.autograd.grad(out.square().sum(), (*parts, shared))
                for found, x in zip(grads, wanted, strict=True):
                    assert isinstance(found, DTensor)
                    torch.testing.assert_close(found.full_tensor(), x)
        dist.destroy_process_group()
    except BaseException as error:
        import traceback

        failures.put(f"rank {rank}: {error!r}\n{traceback.format_exc()}")
        raise


def test_dtensor_shards_batch_and_heads() -> None:
    import socket

    import torch.multiprocessing as multiprocessing

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    ranks = [context.Process(target=_on_each_rank, args=(rank, port, failures)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    hung = [rank for rank in ranks if rank.is_alive()]
    for rank in hung:
        rank.kill()
    assert failures.empty(), failures.get()
    assert not hung
    assert all(rank.exitcode == 0 for rank in ranks)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_policy_leaves_the_environments_contract(clean_environment: pytest.MonkeyPatch, compiled: bool) -> None:
    """A call that names a policy and no backend: CYNOSURE_BACKEND still holds."""
    clean_environment.setenv("CYNOSURE_BACKEND", "unfused")
    q = torch.randn(1, 5, 2, 8)

    def attend(q: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = cynosure.attention(q, q, q, policy="fastest")
        return out

    function = torch.compile(attend, fullgraph=True, backend="aot_eager") if compiled else attend
    with Ran() as ran:
        function(q)
    assert ran.only == "unfused"
