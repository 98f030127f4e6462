# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802  # the names carry the reports' IDs
"""Reports from the field about attention elsewhere, each as the test it should have been; named by their IDs.

Of sections A, C, E, F, G, H, I, J and L these do not apply on a CPU, or belong to another layer:

    A9   FP8 metadata: no FP8 yet.
    A15  a disable flag and the import of a broken extension: no optional extension runs on a CPU; the flag's part
         is here (disabled means not asked).
    C1, C3, C5  how fast grouped heads are: here only that they take the linear backend, never the quadratic one.
    C9   an allow-list of architectures: predicates are tested for each device in the tests of the rules.
    C15  "users cannot tell": here that `explain` says it for this very call.
    E9   flex attention's block mask, longer than S: no block masks; a mask of another size is refused.
    G5   FlashAttention 4's sentinel: no such backend here; here that -1 means unlimited everywhere.
    H1   FlashAttention 3's backward: no such backend here; here that forward and backward are judged together.
    H9   head dims that a CUDA kernel never validated: here that every head dim works.
    I5, I7, I9  other libraries' operators under fullgraph: the same calls in ours.
    L5   the unfused backend's quadratic mask: it is the reference and quadratic; here that `cpu` is linear.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case
from checks import BACKENDS, Ran, check
from torch import Tensor

import cynosure
from cynosure import attention

OURS = [name for name in BACKENDS if name in ("cpu", "unfused")]
backends = pytest.mark.parametrize("backend", OURS)


@pytest.fixture(autouse=True)
def _no_variables(clean_environment: pytest.MonkeyPatch) -> None:
    """The environment asks for nothing here."""


def qkv(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_(grad) for _ in range(3))
    return q, k, v


def python(code: str, *, environment: dict[str, str] | None = None, timeout: float = 100) -> str:
    """The output of a new process."""
    variables = {**os.environ, **(environment or {})}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, env=variables, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


# --- A: stale or wrong choice under compile and caches

A1 = """
import json, torch, cynosure
from torch._dynamo.utils import counters

@torch.compile(fullgraph=True)
def attend(q, k, v):
    return cynosure.attention(q, k, v, causal=True)

torch.manual_seed(0)
q, k, v = (torch.randn(2, 37, 4, 16, requires_grad=True) for _ in range(3))
out = attend(q, k, v)
out.sum().backward()
chosen = {e.decision.backend.name: e.forward + e.backward for e in cynosure.ledger()}
caches = {name: dict(counters[name]) for name in ("inductor", "aot_autograd")}
sums = {"out": out.double().sum().item(), "dq": q.grad.double().sum().item()}
print(json.dumps({"chosen": chosen, "caches": caches, **sums}))
"""


def test_A1_two_processes_share_one_compile_cache(tmp_path: Path) -> None:
    def run(backend: str | None) -> dict[str, Any]:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
        environment |= {"TORCHINDUCTOR_AUTOGRAD_CACHE": "1"} | ({"CYNOSURE_BACKEND": backend} if backend else {})
        found: dict[str, Any] = json.loads(python(A1, environment=environment).splitlines()[-1])
        return found

    first, other, again = run("cpu"), run("unfused"), run("cpu")
    assert first["chosen"] == {"cpu": 2}
    assert other["chosen"] == {"unfused": 2}
    assert again["chosen"] == {"cpu": 2}
    assert (again["out"], again["dq"]) == (first["out"], first["dq"])
    assert other["out"] == pytest.approx(first["out"], rel=1e-4, abs=1e-3)
    hits = json.dumps(again["caches"])
    assert re.search(r'"(fxgraph_cache_hit|autograd_cache_hit)": [1-9]', hits), f"the cache was never used: {hits}"


def test_A3_the_choice_is_an_argument_of_the_call(compiled: Any) -> None:
    """No context is needed inside the compiled region: the call names the backend, and two of them live together."""
    q, k, v = qkv(2, 9, 2, 8)
    run = compiled(lambda q, k, v: (attention(q, k, v, backend="cpu"), attention(q, k, v, backend="unfused")))
    with Ran() as found:
        first, second = run(q, k, v)
    assert found.counts == {"cpu": 1, "unfused": 1}
    torch.testing.assert_close(first, second)
    assert run.graphs == 1


@pytest.mark.parametrize("start", [None, "unfused"])
def test_A5_a_variable_is_guarded_present_or_absent(
    compiled: Any, clean_environment: pytest.MonkeyPatch, start: str | None
) -> None:
    q, k, v = qkv(2, 9, 2, 8)
    run = compiled(lambda q, k, v: attention(q, k, v))
    for value in (start, "cpu", None, "unfused", None):
        if value is None:
            clean_environment.delenv("CYNOSURE_BACKEND", raising=False)
        else:
            clean_environment.setenv("CYNOSURE_BACKEND", value)
        with Ran() as found:
            run(q, k, v)
        assert found.only == (value or "cpu")
    assert run.graphs == 3  # absent, cpu, unfused


def test_A7_export_of_a_module_that_branches_on_the_decision() -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            decision = cynosure.select(cynosure.Problem.of(q, k, v, causal=True))
            out: Tensor = attention(q, k, v, causal=True)
            return out if decision.backend == cynosure.Backend.cpu else out + 1

    inputs = qkv(2, 9, 2, 8, grad=False)
    program = torch.export.export(Module(), inputs)
    assert torch.equal(program.module()(*inputs), attention(*inputs, causal=True))


def test_A11_choosing_a_backend_breaks_no_graph(compiled: Any) -> None:
    for shape in ((10, 128, 4, 16), (1, 1024, 8, 64)):
        inputs = qkv(*shape, dtype=torch.float16, grad=False)
        run = compiled(lambda q, k, v: attention(q, k, v, backend=cynosure.prefer("cpu")))
        assert torch.equal(run(*inputs), attention(*inputs, backend=cynosure.prefer("cpu")))
        assert run.graphs == 1


def test_A11_sdpa_kernel_inside_the_compiled_function(compiled: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def function(x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return cynosure.scaled_dot_product_attention(x, x, x)

    x = torch.randn(2, 4, 16, 8)
    with Ran() as found:
        compiled(function)(x)
    assert found.only == "unfused"


@pytest.mark.parametrize("compiler", [None, "eager"])
def test_A13_max_seqlen_as_a_tensor_is_refused_with_the_remedy(compiled: Any, compiler: str | None) -> None:
    x, cu = torch.randn(9, 2, 8), torch.tensor([0, 4, 9], dtype=torch.int32)
    longest: Any = torch.tensor(5)

    def function() -> Tensor:
        return attention(  # type: ignore[no-any-return]
            x, x, x, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest, max_seqlen_k=longest
        )

    run = torch.compile(function, fullgraph=True, backend=compiler) if compiler else function
    with pytest.raises(Exception, match=r"max_seqlen_q.*int\(max_seqlen_q\)") as caught:
        run()
    assert compiler or isinstance(caught.value, TypeError)


def test_A15_switched_off_is_not_asked() -> None:
    code = """
import sys
sys.modules["flash_attn"] = None  # importing it would raise
import torch, cynosure
q = torch.randn(1, 5, 2, 8)
cynosure.attention(q, q, q)
print("flash_attn_interface" in sys.modules)
"""
    assert python(code, environment={"NVTE_FLASH_ATTN": "0"}).strip() == "False"


def test_A17_documented_precedence_and_an_explained_conflict(clean_environment: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(1, 5, 2, 8)
    clean_environment.setenv("NVTE_FUSED_ATTN", "1")
    clean_environment.setenv("CYNOSURE_BACKEND", "unfused")
    with Ran() as found:
        attention(q, k, v, backend="cpu")  # the argument first
    assert found.only == "cpu"
    with Ran() as found:
        attention(q, k, v)  # then ours
    assert found.only == "unfused"
    clean_environment.setenv("NVTE_UNFUSED_ATTN", "0")
    with pytest.raises(cynosure.NoBackendError, match="unfused is required and switched off"):
        attention(q, k, v)


# --- C: silent fallback or silently dropped features


def test_C1_grouped_heads_in_float32_stay_on_the_linear_backend() -> None:
    q, k = torch.randn(2, 33, 24, 64, requires_grad=True), torch.randn(2, 33, 12, 64, requires_grad=True)
    with Ran() as found:
        attention(q, k, k, causal=True).sum().backward()
    assert found.only == "cpu"
    heads_first = q.detach().transpose(1, 2), k.detach().transpose(1, 2)
    with Ran() as found:
        cynosure.scaled_dot_product_attention(heads_first[0], heads_first[1], heads_first[1], enable_gqa=True)
    assert found.only == "cpu"


@backends
def test_C3_grouped_heads_are_built_in(backend: str) -> None:
    for heads, kv_heads in ((24, 12), (28, 4), (9, 3), (7, 1)):
        check(Case(heads=heads, kv_heads=kv_heads, sq=13, sk=31, dqk=64, dv=64, causal=True), backend, "cpu")


def test_C5_grouped_heads_give_what_repeated_heads_give() -> None:
    q, k, v = torch.randn(2, 9, 6, 8), torch.randn(2, 9, 2, 8), torch.randn(2, 9, 2, 8)
    repeated = (k.repeat_interleave(3, 2), v.repeat_interleave(3, 2))
    for backend in OURS:
        torch.testing.assert_close(attention(q, k, v, backend=backend), attention(q, *repeated, backend=backend))


def test_C7_auto_and_named_are_different_contracts() -> None:
    q, k, v = (x.double() for x in qkv(1, 5, 2, 8))
    with Ran() as found:
        attention(q, k, v)
    assert found.only == "unfused"
    with Ran() as found:
        attention(q, k, v, backend=cynosure.prefer("cpu"))
    assert found.only == "unfused"
    contracts: list[Any] = ["cpu", ["cpu"], cynosure.require("cpu"), cynosure.Backend.cpu]
    for named in contracts:
        with pytest.raises(cynosure.NoBackendError):
            attention(q, k, v, backend=named)


@backends
def test_C11_a_sliding_window_is_never_dropped(backend: str) -> None:
    q, k, v = qkv(1, 40, 2, 8)
    whole, window = attention(q, k, v, backend=backend), attention(q, k, v, window_size=(3, 0), backend=backend)
    assert not torch.allclose(whole, window, atol=1e-3)
    check(Case(sq=40, sk=40, window=(3, 0)), backend, "cpu")


def test_C13_a_cap_falls_through_to_a_backend_that_has_it() -> None:
    q, k, v = qkv(1, 9, 2, 8)
    with Ran() as found:
        out = attention(q, k, v, softcap=30.0, backend=["flash3", "unfused", "cpu"])
    assert found.only == "unfused"
    torch.testing.assert_close(out, attention(q, k, v, softcap=30.0))


def test_C15_explain_says_it_for_this_very_call() -> None:
    q, k, v = qkv(1, 9, 2, 8)
    text = str(cynosure.explain(q, k, v, causal=True, softcap=30.0))
    for backend in cynosure.Backend:
        assert backend.name in text


def test_C17_a_mask_that_masks_nothing_decides_alike_compiled_and_eager(compiled: Any) -> None:
    q, k, v = qkv(2, 9, 2, 8)
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    run = compiled(lambda q, k, v, mask: attention(q, k, v, attn_mask=mask))
    with Ran() as eager:
        expected = attention(q, k, v, attn_mask=mask)
    with Ran() as traced:
        out = run(q, k, v, mask)
    assert eager.only == traced.only
    assert torch.equal(out, expected)


# --- E: NaN, fully masked rows, padding


@backends
def test_E1_a_row_of_false_is_zero(backend: str) -> None:
    q, k, v = (torch.randn(1, 2, n, 8, requires_grad=True) for n in (6, 10, 10))
    mask = torch.ones(1, 1, 6, 10, dtype=torch.bool)
    mask[..., -1, :] = False
    for given in (mask, torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))):
        out, lse = attention(q, k, v, layout="bhsd", attn_mask=given, return_lse=True, backend=backend)
        assert not out[..., -1, :].any()
        assert torch.isneginf(lse[..., -1]).all()
        assert torch.isfinite(lse[..., :-1]).all()
        grads = torch.autograd.grad(out.square().sum() + lse[..., :-1].sum(), (q, k, v))
        assert all(torch.isfinite(x).all() for x in grads)
        assert not grads[0][..., -1, :].any()


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_E3_columns_of_the_smallest_number(backend: str, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 441, 64).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.zeros(2, 1, 441, 441, dtype=dtype)
    mask[..., :128] = torch.finfo(dtype).min
    out = attention(q, k, v, layout="bhsd", attn_mask=mask, backend=backend)
    expected = attention(q, k, v, layout="bhsd", attn_mask=mask > -1, backend=backend)
    torch.testing.assert_close(out, expected)
    assert all(bool(torch.isfinite(x).all()) for x in torch.autograd.grad(out.sum(), (q, k, v)))


@backends
def test_E3_rows_of_the_smallest_number_are_attended_evenly(backend: str) -> None:
    """finfo.min is a number, not -inf: the row has a softmax like any other, and no NaN."""
    q, k, v = qkv(1, 5, 2, 8)
    mask = torch.full((1, 1, 5, 5), torch.finfo(torch.float32).min)
    out = attention(q, k, v, attn_mask=mask, backend=backend)
    torch.testing.assert_close(out, v.mean(1, keepdim=True).expand_as(out))
    assert all(bool(torch.isfinite(x).all()) for x in torch.autograd.grad(out.sum(), (q, k, v)))


@backends
@pytest.mark.parametrize("batch", [1, 2])
def test_E5_the_same_with_and_without_gradients(backend: str, batch: int) -> None:
    q, k, v = qkv(batch, 6, 2, 8)
    mask = torch.full((batch, 1, 6, 6), float("-inf"))
    mask[:, :, :3, :2] = 0
    training = attention(q, k, v, attn_mask=mask, backend=backend)
    with torch.no_grad():
        evaluation = attention(q, k, v, attn_mask=mask, backend=backend)
    with torch.inference_mode():
        inference = attention(q, k, v, attn_mask=mask, backend=backend)
    assert torch.equal(training, evaluation)
    assert torch.equal(training, inference)
    assert not training[:, 3:].any()


@backends
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_E7_nan_in_a_key_that_nobody_attends(backend: str, bad: float) -> None:
    q, k, v = qkv(1, 2, 1, 4, grad=False)
    expected = attention(q, k[:, 1:], v[:, 1:], backend=backend)
    k[0, 0, 0, 0] = bad
    v[0, 0, 0, 1] = bad
    mask = torch.tensor([[[[False, True]]]])
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    for given in (mask, torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))):
        out = attention(*inputs, attn_mask=given, backend=backend)
        torch.testing.assert_close(out, expected)
        assert all(bool(torch.isfinite(x).all()) for x in torch.autograd.grad(out.sum(), inputs))


@backends
def test_E7_nan_reaches_only_the_rows_that_attend_it(backend: str) -> None:
    """Row 0 does not attend key 1, row 1 does: the definition has no 0 * NaN."""
    q, k, v = qkv(1, 2, 1, 4, grad=False)
    expected = attention(q, k, v, causal=True, backend=backend)
    k[0, 1] = float("nan")
    v[0, 1] = float("nan")
    out = attention(q, k, v, causal=True, backend=backend)
    assert torch.equal(out[:, 0], expected[:, 0])
    assert out[:, 1].isnan().all()


def test_E9_a_mask_longer_than_the_sequence_is_refused() -> None:
    q, k, v = qkv(1, 100, 2, 8)
    with pytest.raises(ValueError, match=r"attn_mask.*4096.*100"):
        attention(q, k, v, attn_mask=torch.ones(1, 1, 4096, 4096, dtype=torch.bool), return_lse=True)


@backends
def test_E11_padding_blocks_are_zero_everywhere(backend: str) -> None:
    lengths = torch.tensor([0, 3, 40], dtype=torch.int32)
    q, k, v = qkv(3, 40, 2, 8)
    out = attention(q, k, v, seqlens_q=lengths, seqlens_k=lengths, causal=True, backend=backend)
    for b, n in enumerate(lengths.tolist()):
        assert not out[b, n:].any()
        alone = attention(q[b : b + 1, :n], k[b : b + 1, :n], v[b : b + 1, :n], causal=True, backend=backend)
        torch.testing.assert_close(out[b : b + 1, :n], alone)
    grads = torch.autograd.grad(out, (q, k, v), torch.full_like(out, float("nan")).masked_fill(out != 0, 1.0))
    for b, n in enumerate(lengths.tolist()):
        for x in grads:
            assert torch.isfinite(x[b]).all()
            assert not x[b, n:].any()


# --- F: alignment


@backends
@pytest.mark.parametrize(
    ("sq", "sk", "align", "expected"),
    [
        (2, 5, "bottom_right", ["11110", "11111"]),
        (5, 2, "bottom_right", ["00", "00", "00", "10", "11"]),
        (2, 5, "top_left", ["10000", "11000"]),
        (5, 2, "top_left", ["10", "11", "11", "11", "11"]),
    ],
)
def test_F1_alignment_is_an_argument(backend: str, sq: int, sk: int, align: str, expected: list[str]) -> None:
    """The attended pairs, read off the output: q = 0 and unit vectors as values."""
    q, k = torch.zeros(1, sq, 1, 8), torch.zeros(1, sk, 1, 8)
    v = torch.eye(sk)[None, :, None, :]
    out = attention(q, k, v, causal=True, align=align, backend=backend)[0, :, 0]
    assert ["".join("1" if p > 0 else "0" for p in row) for row in out.tolist()] == expected


@backends
def test_F3_long_keys_and_decoding(backend: str) -> None:
    q, k, v = torch.randn(1, 48, 3, 128), torch.randn(1, 96, 3, 128), torch.randn(1, 96, 3, 128)
    full = attention(q, k, v, causal=True, backend=backend)
    for i in (0, 1, 47):  # a step of decoding sees what its row of the whole saw
        step = attention(q[:, i : i + 1], k[:, : 48 + i + 1], v[:, : 48 + i + 1], causal=True, backend=backend)
        torch.testing.assert_close(step, full[:, i : i + 1])
    one = attention(q[:, :1], k, v, causal=True, backend=backend)
    torch.testing.assert_close(one, attention(q[:, :1], k, v, backend=backend))
    top = attention(q[:, :1], k, v, causal=True, align="top_left", backend=backend)
    torch.testing.assert_close(top, v[:, :1])


@backends
@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
def test_F5_one_rule_whichever_side_is_longer(backend: str, align: str) -> None:
    for sq, sk in ((3, 9), (9, 3), (9, 9), (1, 9), (9, 1)):
        check(Case(sq=sq, sk=sk, causal=True, align=align, lse="grad"), backend, "cpu")
        check(Case(sq=sq, sk=sk, window=(2, 1), align=align, lse="grad"), backend, "cpu")


# --- G: windows


@backends
@pytest.mark.parametrize("left", [0, 1, 2, 5])
def test_G1_the_left_bound_is_included(backend: str, left: int) -> None:
    q = torch.zeros(1, 8, 1, 8)
    out = attention(q, q, torch.eye(8)[None, :, None, :], window_size=(left, 0), backend=backend)[0, :, 0]
    for i, row in enumerate(out.tolist()):
        assert [j for j, p in enumerate(row) if p > 0] == list(range(max(0, i - left), i + 1))


@backends
def test_G3_a_window_that_covers_everything_is_causal(backend: str) -> None:
    length = 200
    q, k, v = qkv(1, length, 2, 32)
    expected = attention(q, k, v, causal=True, backend=backend)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for left in (-1, length, length - 1):
        for causal in (False, True):
            out = attention(q, k, v, causal=causal, window_size=(left, 0), backend=backend)
            assert torch.equal(out, expected)
            for x, y in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), wanted, strict=True):
                torch.testing.assert_close(x, y)
    narrower = attention(q, k, v, window_size=(length - 2, 0), backend=backend)
    assert torch.equal(narrower[:, :-1], expected[:, :-1])
    assert not torch.equal(narrower[:, -1], expected[:, -1])


@backends
def test_G5_minus_one_is_unlimited_and_never_empty(backend: str) -> None:
    q, k, v = qkv(2, 64, 2, 32, dtype=torch.bfloat16)
    causal = attention(q, k, v, causal=True, backend=backend)
    assert causal.any(-1).all()
    for window in ((-1, -1), (-1, 0)):
        assert torch.equal(attention(q, k, v, causal=True, window_size=window, backend=backend), causal)
    everything = attention(q, k, v, backend=backend)
    assert torch.equal(attention(q, k, v, window_size=(64, -1), backend=backend), everything)
    assert torch.equal(attention(q, k, v, window_size=(-1, 64), backend=backend), everything)


@backends
def test_G7_windows_in_ragged_batches(backend: str) -> None:
    for layout in ("bshd", "thd"):
        check(Case(batch=4, sq=30, sk=30, layout=layout, window=(5, 0), lengths="some"), backend, "cpu")
        check(Case(batch=4, sq=30, sk=41, layout=layout, window=(5, 2), lengths="empty"), backend, "cpu")


# --- H: heads, head dims, layouts


@backends
@pytest.mark.parametrize(("dqk", "dv"), [(192, 128), (64, 128), (64, 512)])
def test_H1_other_head_dims_of_v_backward_too(backend: str, dqk: int, dv: int) -> None:
    for window in ((-1, -1), (127, 0)):
        check(Case(sq=40, sk=40, dqk=dqk, dv=dv, causal=True, window=window, dtype="bfloat16"), backend, "cpu")


@backends
@pytest.mark.parametrize("length", [33, 65])
def test_H3_keys_of_stride_zero(backend: str, length: int) -> None:
    for strides in ("expanded", "repeated"):
        check(
            Case(sq=length, sk=length, heads=4, kv_heads=4, dtype="bfloat16", mask="bool:b11s", strides=strides),
            backend,
            "cpu",
        )


@backends
def test_H5_groups_of_any_size(backend: str) -> None:
    check(Case(batch=1, heads=9, kv_heads=3, sq=5, sk=5, dqk=64, dv=64, causal=True), backend, "cpu")


@pytest.mark.parametrize(("dqk", "dv"), [(128, 512), (64, 32), (64, 128), (8, 16)])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
def test_H7_the_fake_output_has_the_head_dim_of_v(compiled: Any, dqk: int, dv: int, compiler: str) -> None:
    q, k, v = torch.randn(1, 24, 2, dqk), torch.randn(1, 24, 2, dqk), torch.randn(1, 24, 2, dv)
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    out = torch.compile(lambda q, k, v: attention(q, k, v), fullgraph=True, backend=compiler)(*inputs)
    assert out.shape == (1, 24, 2, dv)
    assert torch.equal(out, attention(*inputs))
    assert [x.shape for x in torch.autograd.grad(out.sum(), inputs)] == [x.shape for x in inputs]


@backends
@pytest.mark.parametrize("dim", [1, 2, 7, 15, 17, 63, 65, 127, 129, 255, 257, 320, 576])
def test_H9_every_head_dim(backend: str, dim: int) -> None:
    check(Case(batch=1, sq=9, sk=14, dqk=dim, dv=dim, causal=True), backend, "cpu")


@pytest.mark.parametrize("compiler", [None, "aot_eager", "inductor"])
def test_H11_an_odd_head_dim_compiled_backward(compiled: Any, compiler: str | None) -> None:
    inputs = qkv(2, 8, 4, 33)
    run = torch.compile(attention, fullgraph=True, backend=compiler) if compiler else attention
    expected = torch.autograd.grad(attention(*inputs).square().sum(), inputs)
    found = torch.autograd.grad(run(*inputs).square().sum(), inputs)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
        assert x.stride() == y.stride()


@pytest.mark.parametrize("backend", ["auto", *OURS])
def test_H13_values_longer_than_keys_are_refused_for_every_backend(backend: str) -> None:
    q, k, v = torch.randn(1, 3, 2, 8), torch.randn(1, 5, 2, 8), torch.randn(1, 6, 2, 8)
    with pytest.raises(ValueError, match=r"\bv\b.*6.*5"):
        attention(q, k, v, backend=backend)
    with pytest.raises((RuntimeError, ValueError)):
        cynosure.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
def test_H15_compile_may_change_strides_but_no_layout(compiled: Any, compiler: str) -> None:
    """A layout is declared; q, k and v as slices of one projection, in which v's strides look like nothing."""
    packed = torch.randn(2, 16, 3 * 4 * 8, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        q, k, v = x.view(2, 16, 3, 4, 8).unbind(2)
        v = v.transpose(1, 2).contiguous().transpose(1, 2)
        return attention(q, k, v, causal=True)  # type: ignore[no-any-return]

    expected = function(packed)
    out = torch.compile(function, fullgraph=True, backend=compiler)(packed)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), packed), torch.autograd.grad(expected.square().sum(), packed)
    )


# --- I: graph breaks, dynamic shapes, export


def test_I1_six_layers_are_one_graph(compiled: Any) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = torch.nn.Linear(32, 96)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.into(x).unflatten(-1, (3, 4, 8)).unbind(2)
            return x + attention(q, k, v, causal=True).flatten(2)  # type: ignore[no-any-return]

    model = torch.nn.Sequential(*(Layer() for _ in range(6)))
    x = torch.randn(2, 9, 32)
    explained = torch._dynamo.explain(model)(x)
    assert explained.graph_break_count == 0
    assert explained.graph_count == 1
    run = compiled(model)
    torch.testing.assert_close(run(x), model(x))
    assert run.graphs == 1


def test_I3_causal_as_a_comparison_of_symbolic_lengths(compiled: Any) -> None:
    def ours(q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k, causal=q.shape[1] > 1)  # type: ignore[no-any-return]

    def drop_in(q: Tensor, k: Tensor) -> Tensor:
        return cynosure.scaled_dot_product_attention(q, k, k, is_causal=q.shape[2] > 1)

    for function, order in ((ours, (2, 0, 4, 8)), (drop_in, (2, 4, 0, 8))):
        run = torch.compile(function, fullgraph=True, backend="eager", dynamic=True)
        for length in (200, 100, 1, 150):
            shape = tuple(length if n == 0 else n for n in order)
            q, k = torch.randn(shape), torch.randn(shape)
            assert torch.equal(run(q, k), function(q, k))


def test_I5_nothing_is_opened_while_tracing(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(1, 5, 2, 8)
    attention(q, k, v)  # what is looked up once is looked up now
    opened: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and watching and "cynosure" in (place := _caller()):
            opened.append(f"{arguments[0]} from {place}")

    watching = True
    sys.addaudithook(watch)
    try:
        torch.compile(attention, fullgraph=True, backend="eager")(q, k, v)
    finally:
        watching = False
    assert not opened


def _caller() -> str:
    """The innermost file below the audit hook that is not the interpreter's own."""
    frame = sys._getframe(2)
    return frame.f_code.co_filename


def test_I7_fullgraph_with_every_argument(compiled: Any) -> None:
    q, k, v = qkv(2, 9, 4, 8)
    bias, sinks = torch.randn(1, 4, 9, 9, requires_grad=True), torch.randn(4, requires_grad=True)
    mask = torch.rand(2, 1, 9, 9) < 0.8

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, bias, sinks = tensors
        return attention(  # type: ignore[no-any-return]
            q,
            k,
            v,
            layout="bshd",
            causal=True,
            align="top_left",
            window_size=(5, 0),
            attn_bias=bias,
            attn_mask=mask,
            softcap=20.0,
            sinks=sinks,
            scale=0.3,
            dropout_p=0.1,
            dropout_seed=torch.tensor([1, 2]),
            seqlens_q=torch.tensor([9, 4], dtype=torch.int32),
            seqlens_k=torch.tensor([7, 9], dtype=torch.int32),
            backend=cynosure.prefer("cpu"),
            policy="fastest",
            return_lse=True,
            lse_grad=True,
        )

    inputs = (q, k, v, bias, sinks)
    run = compiled(function)
    for found, expected in zip(run(*inputs), function(*inputs), strict=True):
        assert torch.equal(found, expected)
    assert run.graphs == 1


def test_I9_no_graph_break_in_a_loop_over_backends(compiled: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = q
        for backend in OURS:
            out = attention(out, k, v, backend=backend)
        return out

    inputs = qkv(2, 9, 2, 8)
    assert torch.equal(compiled(function)(*inputs), function(*inputs))


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_I11_compiled_backward_with_another_head_dim_of_v(compiled: Any, compiler: str) -> None:
    q, k, v = torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 16)
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    out = torch.compile(attention, fullgraph=True, backend=compiler)(*inputs)
    grads = torch.autograd.grad(out.sum(), inputs)
    assert [x.shape for x in grads] == [x.shape for x in inputs]
    for x, y in zip(grads, torch.autograd.grad(attention(*inputs).sum(), inputs), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_I13_symbolic_strides(compiled: Any, compiler: str) -> None:
    """Inputs cut out of larger tensors, everything dynamic: strides are symbols of their own."""
    run = torch.compile(
        lambda q, k, v: attention(q, k, v, layout="bhsd"), fullgraph=True, backend=compiler, dynamic=True
    )
    for length, room in ((9, 12), (17, 30), (33, 33)):
        inputs = tuple(torch.randn(2, room, 4, 8).transpose(1, 2)[:, :, :length].requires_grad_() for _ in range(3))
        expected = attention(*inputs, layout="bhsd")
        out = run(*inputs)
        assert torch.equal(out, expected)
        assert out.stride() == expected.stride()
        for x, y in zip(
            torch.autograd.grad(out.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
        ):
            torch.testing.assert_close(x, y)


def test_I15_export_with_an_unbacked_batch() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, keep: Tensor, mask: Tensor) -> Tensor:
            chosen = x[keep]
            allowed = mask[keep]
            return attention(chosen, chosen, chosen, layout="bhsd", attn_mask=allowed)  # type: ignore[no-any-return]

    x, mask = torch.randn(6, 4, 8, 8), torch.rand(6, 1, 8, 8) < 0.8
    mask[..., 0] = True
    keep = torch.tensor([True, False, True, True, False, True])
    program = torch.export.export(Module(), (x, keep, mask))
    for chosen in (keep, ~keep, torch.ones(6, dtype=torch.bool), torch.zeros(6, dtype=torch.bool)):
        assert torch.equal(program.module()(x, chosen, mask), Module()(x, chosen, mask))


# --- J: dropout


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_J1_compiled_dropout_is_eager_dropout(compiled: Any, compiler: str) -> None:
    """A BERT-like call: a padding mask and p = 0.1."""
    q, k, v = qkv(2, 32, 4, 16)
    mask = torch.ones(2, 1, 1, 32, dtype=torch.bool)
    mask[1, ..., 20:] = False

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, attn_mask=mask, dropout_p=0.1)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    with Ran() as eager:
        expected = function(q, k, v)
    torch.manual_seed(0)
    with Ran() as traced:
        out = torch.compile(function, fullgraph=True, backend=compiler)(q, k, v)
    assert eager.only == traced.only
    assert torch.equal(out, expected)
    torch.manual_seed(0)
    dropped = cynosure.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, dropout_p=0.1
    )
    assert torch.equal(dropped.transpose(1, 2), expected)


@backends
def test_J3_seed_and_offset_are_explicit(backend: str) -> None:
    q, k, v = qkv(2, 32, 4, 16)
    seed = torch.tensor([5, 7])
    state = torch.get_rng_state()
    first = attention(q, k, v, dropout_p=0.1, dropout_seed=seed, backend=backend)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(seed, torch.tensor([5, 7]))
    assert torch.equal(attention(q, k, v, dropout_p=0.1, dropout_seed=seed, backend=backend), first)
    next_step = attention(q, k, v, dropout_p=0.1, dropout_seed=seed + torch.tensor([0, 1]), backend=backend)
    assert not torch.equal(next_step, first)
    assert torch.equal(attention(q, k, v, dropout_p=0.0, backend=backend), attention(q, k, v, backend=backend))


# --- L: ragged batches


def test_L1_cumulative_lengths_with_a_padded_layout_are_refused() -> None:
    q = torch.randn(2048, 1, 2, 64).half()
    cu = torch.tensor([0, 300, 1100, 2048], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"cu_seqlens_q.*sbhd.*thd"):
        attention(q, q, q, layout="sbhd", cu_seqlens_q=cu, cu_seqlens_k=cu)


@backends
def test_L1_documents_do_not_see_each_other(backend: str) -> None:
    cuts = [0, 30, 110, 204]
    q, k, v = qkv(204, 2, 16)
    cu = torch.tensor(cuts, dtype=torch.int32)
    out = attention(q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, backend=backend)
    for start, end in pairwise(cuts):
        alone = attention(*(x[None, start:end] for x in (q, k, v)), causal=True, backend=backend)
        torch.testing.assert_close(out[start:end], alone[0])


@backends
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (21, 7, 120)])
def test_L3_entries_of_length_zero(backend: str, heads: int, kv_heads: int, dim: int) -> None:
    """q lengths [0, 1, 0, 1], kv lengths [0, 3, 0, 5]: fewer tokens than sequences."""
    q = torch.randn(2, heads, dim, requires_grad=True)
    k, v = (torch.randn(8, kv_heads, dim, requires_grad=True) for _ in range(2))
    cu_q = torch.tensor([0, 0, 1, 1, 2], dtype=torch.int32)
    cu_k = torch.tensor([0, 0, 3, 3, 8], dtype=torch.int32)
    out = attention(
        q,
        k,
        v,
        layout="thd",
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        max_seqlen_q=1,
        max_seqlen_k=5,
        causal=True,
        backend=backend,
    )
    for token, keys in ((0, slice(0, 3)), (1, slice(3, 8))):
        alone = attention(q[None, token : token + 1], k[None, keys], v[None, keys], causal=True, backend=backend)
        torch.testing.assert_close(out[token : token + 1], alone[0])
    assert all(bool(torch.isfinite(x).all()) for x in torch.autograd.grad(out.sum(), (q, k, v)))


@backends
def test_L3_keys_without_queries_and_queries_without_keys(backend: str) -> None:
    q, k = torch.randn(3, 2, 8, requires_grad=True), torch.randn(3, 2, 8, requires_grad=True)
    cu_q, cu_k = torch.tensor([0, 3, 3], dtype=torch.int32), torch.tensor([0, 0, 3], dtype=torch.int32)
    out, lse = attention(q, k, k, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True, backend=backend)
    assert not out.any()
    assert torch.isneginf(lse).all()
    assert not any(x.any() for x in torch.autograd.grad(out.sum(), (q, k)))


def test_L5_a_ragged_batch_needs_no_quadratic_memory() -> None:
    """A process that may grow by 1 GB: 30,000 tokens in three documents, whose scores alone would be 4 GB and more."""
    code = """
import resource, torch, cynosure
torch.set_num_threads(1)
x = torch.randn(64, 2, 8, requires_grad=True)
cu = torch.tensor([0, 20, 64], dtype=torch.int32)
cynosure.attention(x, x, x, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, backend="cpu").sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
x = torch.randn(30000, 1, 8, requires_grad=True)
cu = torch.tensor([0, 9000, 18000, 30000], dtype=torch.int32)
lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
out = cynosure.attention(x, x, x, layout="thd", causal=True, window_size=(64, 0), backend="cpu", **lengths)
out.sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(python(code).split()[-1]) / 1024
    assert grown < 200, f"{grown:.0f} MiB"


def test_the_names_of_these_tests_cover_the_sections() -> None:
    """Every row of A, C, E, F, G, H, I, J and L is a test here or is accounted for above."""
    rows = {
        "A": (1, 3, 5, 7, 9, 11, 13, 15, 17),
        "C": (1, 3, 5, 7, 9, 11, 13, 15, 17),
        "E": (1, 3, 5, 7, 9, 11),
        "F": (1, 3, 5),
        "G": (1, 3, 5, 7),
        "H": (1, 3, 5, 7, 9, 11, 13, 15),
        "I": (1, 3, 5, 7, 9, 11, 13, 15),
        "J": (1, 3),
        "L": (1, 3, 5),
    }
    tested = {match[1] for name in globals() if (match := re.match(r"test_([A-Z]\d+)_", name))}
    excused = set(re.findall(r"\b[A-Z]\d+\b", (__doc__ or "").split("another layer:")[1]))
    missing = {f"{section}{number}" for section, numbers in rows.items() for number in numbers} - tested - excused
    assert not missing
