# SPDX-License-Identifier: Apache-2.0
"""Jagged nested tensors: each sequence as it would be alone, with the ragged structure of the query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cynosure

sdpa: Any = cynosure.scaled_dot_product_attention
torch_sdpa: Any = torch.nn.functional.scaled_dot_product_attention


def jagged(lengths: tuple[int, ...], heads: int, width: int) -> Any:
    """[B, j, heads, width] that wants a gradient."""
    parts = [torch.randn(n, heads, width) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def alike(x: Any, heads: int, width: int) -> Any:
    """As `jagged`, with the same ragged structure as x."""
    values = torch.randn(x.values().shape[0], heads, width)
    return torch.nested.nested_tensor_from_jagged(values, x.offsets()).detach().requires_grad_()


def inputs(lengths_q: tuple[int, ...], lengths_k: tuple[int, ...] | None, heads: int, kv_heads: int) -> tuple[Any, ...]:
    q = jagged(lengths_q, heads, 8)
    k = alike(q, kv_heads, 8) if lengths_k is None else jagged(lengths_k, kv_heads, 8)
    return q, k, alike(k, kv_heads, 16)


def alone(q: Any, k: Any, v: Any, **kwargs: Any) -> list[Tensor]:
    """The sequences one by one, [L, H, Ev] each."""
    found = []
    for parts in zip(q.unbind(), k.unbind(), v.unbind(), strict=True):
        heads_first = [x.transpose(0, 1)[None] for x in parts]
        found.append(torch_sdpa(*heads_first, **kwargs)[0].transpose(0, 1))
    return found


CASES: dict[str, tuple[Any, ...]] = {
    "self": ((3, 5, 1), None, 2, 2),
    "cross": ((3, 2, 5), (2, 4, 7), 2, 2),
    "empty": ((3, 0, 5), (2, 4, 7), 4, 2),
    "empty both": ((3, 0, 5), (2, 0, 7), 4, 2),
    "no keys": ((3, 2, 5), (2, 0, 7), 4, 1),
}


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_as_alone(what: str, causal: bool) -> None:
    q, k, v = inputs(*CASES[what])
    expected = torch.cat(alone(q, k, v, is_causal=causal, enable_gqa=True))
    dout = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (q, k, v), dout)
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    of_sdpa = sdpa(*heads_first, is_causal=causal, enable_gqa=True).transpose(1, 2)
    for out in (of_sdpa, cynosure.attention(q, k, v, causal=causal, align="top_left")):
        assert out.is_nested
        assert out.shape[1] == q.shape[1]
        torch.testing.assert_close(out.values(), expected)
        for found, reference in zip(torch.autograd.grad(out.values(), (q, k, v), dout), wanted, strict=True):
            torch.testing.assert_close(found.values(), reference.values(), rtol=1e-4, atol=1e-5)


def test_the_output_adds_to_the_input() -> None:
    q = jagged((3, 5, 1), 2, 8)
    residual = q + cynosure.attention(q, q, q)
    torch.testing.assert_close(residual.values(), q.values() + torch.cat(alone(q, q, q)))


def test_lse() -> None:
    q, k, v = inputs((3, 2, 5), (2, 4, 7), 2, 2)
    out, lse = cynosure.attention(q, k, v, return_lse=True, lse_grad=True)
    assert lse.shape == (3, 2, q.shape[1])
    for x, a, b in zip(lse.unbind(), q.unbind(), k.unbind(), strict=True):
        torch.testing.assert_close(x, torch.einsum("ihd,jhd->hij", a, b).mul(8**-0.5).logsumexp(-1))
    dlse = torch.randn_like(lse.values())
    found = torch.autograd.grad([out.values(), lse.values()], (q, k), [torch.zeros_like(out.values()), dlse])
    scores = [
        torch.einsum("ihd,jhd->hij", a, b).mul(8**-0.5).logsumexp(-1)
        for a, b in zip(q.unbind(), k.unbind(), strict=True)
    ]
    wanted = torch.autograd.grad(torch.cat(scores, 1), (q, k), dlse)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x.values(), y.values(), rtol=1e-4, atol=1e-5)


def test_dropout_repeats_with_its_seed() -> None:
    q = jagged((3, 5, 1), 2, 8)
    heads_first = q.transpose(1, 2)
    torch.manual_seed(1)
    first = sdpa(heads_first, heads_first, heads_first, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(sdpa(heads_first, heads_first, heads_first, dropout_p=0.5).values(), first.values())
    seed = torch.tensor([1, 2])
    out = cynosure.attention(q, q, q, dropout_p=0.5, dropout_seed=seed)
    assert torch.equal(cynosure.attention(q, q, q, dropout_p=0.5, dropout_seed=seed).values(), out.values())
    assert not torch.equal(cynosure.attention(q, q, q, dropout_p=0.5).values(), out.values())


FEATURES: dict[str, dict[str, Any]] = {
    "window": {"window_size": (2, 0)},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0])},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25])},
    "scale": {"scale": 0.3},
    "unfused": {"backend": "unfused"},
    "bound": {"max_seqlen_q": 9, "max_seqlen_k": 9},
}


@pytest.mark.parametrize("what", FEATURES)
def test_features_as_in_thd(what: str) -> None:
    q, k, v = inputs((3, 2, 5), (2, 4, 7), 2, 2)
    cu_q, cu_k = q.offsets().int(), k.offsets().int()
    expected = cynosure.attention(
        q.values(), k.values(), v.values(), layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **FEATURES[what]
    )
    assert torch.equal(cynosure.attention(q, k, v, **FEATURES[what]).values(), expected)


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_compiled(compiled: Any, compiler: str) -> None:
    def function(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return cynosure.attention(q, k, v, causal=True), sdpa(*heads_first, dropout_p=0.5, enable_gqa=True)

    run = torch.compile(function, fullgraph=True, backend=compiler)
    for lengths in ((3, 5, 1), (2, 9, 4), (7, 7, 2, 2)):
        args = inputs(lengths, None, 4, 2)
        torch.manual_seed(0)
        expected = function(*args)
        torch.manual_seed(0)
        found = run(*args)
        for x, y in zip(found, expected, strict=True):
            assert x.is_nested
            assert torch.equal(x.values(), y.values())
        gradients = [torch.autograd.grad([x.values().sum() for x in out], args) for out in (found, expected)]
        for x, y in zip(*gradients, strict=True):
            torch.testing.assert_close(x.values(), y.values())


def test_no_more_graphs_than_a_sum_needs(compiled: Any) -> None:
    functions: tuple[Callable[[Any], Any], ...] = (lambda x: x + x, lambda x: cynosure.attention(x, x, x))
    counts = []
    for function in functions:
        torch._dynamo.reset()
        run = compiled(function)
        for lengths in ((3, 5, 1), (2, 9, 4), (7, 7, 2, 2), (4, 1, 1, 1, 8)):
            run(jagged(lengths, 2, 8))
        counts.append(run.graphs)
    assert counts[1] <= counts[0]


ERRORS: dict[str, Callable[[Any], Any]] = {
    "q: got rank 4, jagged in dim 2": lambda x: cynosure.attention(*(x.transpose(1, 2),) * 3),
    "q: got a tensor that is not nested": lambda x: cynosure.attention(torch.randn(3, 5, 2, 8), x, x),
    "v: got a tensor that is not nested": lambda x: cynosure.attention(x, x, torch.randn(3, 5, 2, 8)),
    "seqlens_k: given with nested tensors": lambda x: cynosure.attention(
        x, x, x, seqlens_k=torch.zeros(3, dtype=torch.int32)
    ),
    "attn_mask: given with nested tensors": lambda x: cynosure.attention(
        x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool)
    ),
    "attn_mask: given with nested tensors, expected None": lambda x: sdpa(*(x.transpose(1, 2),) * 3, torch.ones(5, 5)),
    "query: got rank 4, jagged in dim 1": lambda x: sdpa(x, x, x),
    "key: got a tensor that is not nested": lambda x: sdpa(x.transpose(1, 2), *(torch.randn(3, 2, 5, 8),) * 2),
    "layout torch.strided": lambda x: sdpa(*(torch.nested.nested_tensor(list(x.unbind())).transpose(1, 2),) * 3),
    "with holes": lambda x: cynosure.attention(
        *(
            torch.nested.narrow(
                torch.randn(3, 6, 2, 8), 1, torch.tensor([0, 1, 2]), torch.tensor([3, 2, 4]), layout=torch.jagged
            ),
        )
        * 3
    ),
}


@pytest.mark.parametrize("message", ERRORS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_errors(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ERRORS[message](jagged((3, 5, 1), 2, 8))


@pytest.mark.parametrize("function", [cynosure.attention, sdpa])
def test_sequences_of_v_are_those_of_k(function: Callable[..., Any]) -> None:
    def of(offsets: list[int]) -> Any:
        x = torch.nested.nested_tensor_from_jagged(torch.randn(9, 4, 8), torch.tensor(offsets))
        return x.transpose(1, 2) if function is sdpa else x

    k, other, same = of([0, 3, 3, 8, 9]), of([0, 4, 5, 8, 9]), of([0, 3, 3, 8, 9])
    with pytest.raises((ValueError, RuntimeError), match=r"^v.*: its sequences are not those of k"):
        function(k, k, other)
    function(k, k, same)  # equal offsets in another tensor


def test_gradients_of_gradients() -> None:
    def second(x: Any) -> Tensor:
        out = cynosure.attention(x, x, x, causal=True, backend="unfused")
        (grad,) = torch.autograd.grad((out.values() ** 2).sum(), x, create_graph=True)
        (result,) = torch.autograd.grad((grad.values() ** 2).sum(), x)
        return torch.cat(list(result.unbind()))

    def alone(part: Tensor) -> Tensor:
        x = part.detach()[None].requires_grad_()
        out = cynosure.attention(x, x, x, causal=True, backend="unfused")
        (grad,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
        return torch.autograd.grad((grad**2).sum(), x)[0][0]

    x = torch.nested.nested_tensor_from_jagged(torch.randn(9, 2, 8).double(), torch.tensor([0, 3, 8, 9]))
    x.requires_grad_()
    torch.testing.assert_close(second(x), torch.cat([alone(part) for part in x.unbind()]))

    y = torch.nested.nested_tensor_from_jagged(torch.randn(9, 2, 8), torch.tensor([0, 3, 8, 9])).requires_grad_()
    out = cynosure.attention(y, y, y, backend="cpu")
    (grad,) = torch.autograd.grad(out.values().sum(), y, create_graph=True)
    with pytest.raises(RuntimeError, match='backend="unfused"'):
        grad.values().sum().backward()
