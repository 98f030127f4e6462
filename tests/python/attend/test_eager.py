# SPDX-License-Identifier: Apache-2.0
"""Plain eager calls: the same by the module _eager, which is bound to one torch, and by Python alone."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import cynosure
from cynosure import _operators
from cynosure.device import OPERATORS

WAYS = {"python": _operators._plain_in_python}
if _operators.eager is not None:
    WAYS["eager"] = _operators.eager.attention


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """attention and scaled_dot_product_attention with their plain calls going this way."""
    for module in ("cynosure._attention", "cynosure.sdpa"):
        monkeypatch.setattr(f"{module}.plain", WAYS[request.param])
    # The first call of a process, and the first after a variable has changed, takes the long way.
    q = torch.ones(1, 1, 1, 8)
    cynosure.attention(q, q, q)
    name: str = request.param
    return name


def qkv(*, heads: int = 2, kv_heads: int = 2, grad: bool = True) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 9, n, 16, requires_grad=grad) for n in (heads, kv_heads, kv_heads)]


def test_this_build_has_it() -> None:
    """A build from source is for the torch it runs with; without this the cost lines are not what they say."""
    built = sorted(OPERATORS.parent.glob("_eager_torch*"))
    if not built:
        pytest.skip("built without _eager")
    assert _operators.eager is not None or torch.__version__.split("+")[0] not in built[0].name


def test_node(way: str) -> None:
    out = cynosure.attention(*qkv(), causal=True)
    assert ("CynosureAttention" in out.grad_fn.name()) == (way == "eager")


def test_values_and_gradients(way: str) -> None:
    for causal in (False, True):
        q, k, v = qkv(heads=4)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=True
        ).transpose(1, 2)
        out = cynosure.attention(q, k, v, causal=causal)
        assert torch.allclose(out, expected, atol=1e-5)
        weight = torch.randn_like(out)
        for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (out, expected)), strict=True):
            assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("wanted", range(3))
def test_one_gradient_alone(way: str, wanted: int) -> None:
    inputs = qkv(grad=False)
    inputs[wanted].requires_grad_()
    cynosure.attention(*inputs).sum().backward()
    assert [x.grad is not None for x in inputs] == [i == wanted for i in range(3)]


def test_no_gradient(way: str) -> None:
    assert not cynosure.attention(*qkv(grad=False)).requires_grad
    with torch.no_grad():
        assert not cynosure.attention(*qkv()).requires_grad
    with torch.inference_mode():
        assert cynosure.attention(*qkv()).is_inference()


def test_second_derivatives(way: str) -> None:
    q, k, v = (x.detach().double()[:, :3].requires_grad_() for x in qkv())
    assert torch.autograd.gradgradcheck(lambda *x: cynosure.attention(*x, causal=True), (q, k, v))


def test_hooks_see_saved_tensors(way: str) -> None:
    packed: list[torch.Size] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t.shape)
        return t.clone()

    inputs = qkv()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = cynosure.attention(*inputs)
    assert len(packed) == 5  # q, k, v, out and the LSE
    out.sum().backward()
    assert all(x.grad is not None for x in inputs)


def test_backward_twice(way: str) -> None:
    inputs = qkv()
    out = cynosure.attention(*inputs).sum()
    first = torch.autograd.grad(out, inputs, retain_graph=True)
    second = torch.autograd.grad(out, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, inputs)


def test_changed_input_is_noticed(way: str) -> None:
    q, k, v = qkv()
    k = k * 1
    out = cynosure.attention(q, k, v).sum()
    with torch.no_grad():
        k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_memory_is_freed(way: str) -> None:
    q, k, v = qkv()
    out = cynosure.attention(q, k, v)
    node, saved = weakref.ref(q), out.sum()
    del q, out
    assert node() is not None  # the graph holds it
    del saved
    gc.collect()
    assert node() is None


def test_errors_have_their_types(way: str) -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"^k: "):
        cynosure.attention(q, k[:, :, :, :8], v)
    with pytest.raises(ValueError, match=r"^q: "):
        cynosure.attention(q.int().float()[0], k, v)
    with pytest.raises(TypeError, match=r"^v: "):
        cynosure.attention(q, k, 3)  # type: ignore[arg-type]


def test_errors_of_a_backward_have_their_types(way: str) -> None:
    """Also those that torch's engine carries through C++: of a mode of the user's, and our own."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "attention_backward" in str(func):
                raise KeyError("of the user's")
            return func(*args, **(kwargs or {}))

    out = cynosure.attention(*qkv()).sum()
    with Refusing(), pytest.raises(KeyError, match="of the user's"):  # type: ignore[no-untyped-call]
        out.backward()

    inputs = qkv()
    calls = []

    def unpack(t: Tensor) -> Tensor:  # the fourth saved tensor is the output
        calls.append(t)
        return t[:, :1] if len(calls) == 4 else t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        out = cynosure.attention(*inputs).sum()
    with pytest.raises(ValueError, match=r"^out: "):
        out.backward()


def test_modes_see_the_operators(way: str) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Function(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    inputs = qkv()
    with Function():
        cynosure.attention(*inputs)
    assert any("attention_forward" in name for name in seen)
    seen.clear()
    out = cynosure.attention(*inputs).sum()
    with Dispatch():  # type: ignore[no-untyped-call]
        out.backward()
    assert any("attention_backward" in name for name in seen)


def test_flops_of_a_backward_alone(way: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    out = cynosure.attention(*qkv()).sum()
    with FlopCounterMode(display=False) as counter:
        out.backward()
    assert counter.get_total_flops() == 5 * 2 * 2 * 2 * 9 * 9 * 16


def test_threads(way: str) -> None:
    """Forward and backward release the interpreter's lock, and share nothing."""
    inputs = qkv()
    expected = torch.autograd.grad(cynosure.attention(*inputs, causal=True).sum(), inputs)
    wrong: list[int] = []

    def work(n: int) -> None:
        mine = [x.detach().clone().requires_grad_() for x in inputs]
        for _ in range(50):
            found = torch.autograd.grad(cynosure.attention(*mine, causal=True).sum(), mine)
            if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_backward_is_in_the_ledger(way: str) -> None:
    out = cynosure.attention(*qkv()).sum()
    before = sum(entry.count for entry in cynosure.ledger())
    out.backward()
    assert sum(entry.count for entry in cynosure.ledger()) == before + 1


@pytest.mark.skipif(_operators.eager is None, reason="built without _eager")
def test_wrong_arguments_of_the_module() -> None:
    with pytest.raises(TypeError, match="expected q, k, v, options, settings"):
        _operators.eager.attention(1, 2)
    with pytest.raises(AttributeError):  # not tensors: the way through Python, whose errors `attention` knows
        _operators.eager.attention(1, 2, 3, 4, 5)
    q = torch.ones(1, 1, 1, 8)
    with pytest.raises((OverflowError, TypeError)):
        _operators.eager.attention(q, q, q, 1 << 80, 0)
