# SPDX-License-Identifier: Apache-2.0
"""The one body that holds a backend to the definition, for any case; and what the tests share around it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from cases import Case, Inputs, lse_rows_of, make, rows_of
from reference import Keep, Results, gradients_of, magnitudes, plain, reference
from torch import Tensor

import cynosure
from cynosure import Device

# (backend, device it runs on here): all that this build has.
TARGETS: list[tuple[str, str]] = [
    (name, "cpu" if name == "cpu" or Device.this().device_kind == "cpu" else "cuda") for name in Device.this().built
]
BACKENDS = [name for name, _ in TARGETS]


def ran() -> Counter[str]:
    """How often each backend has been chosen by an operator in this process, forward and backward."""
    counts: Counter[str] = Counter()
    for entry in cynosure.ledger():
        if entry.decision.backend is not None:
            counts[entry.decision.backend.name] += entry.forward + entry.backward
    return counts


class Ran:
    """Which backends ran inside a `with` block, by the ledger."""

    def __enter__(self) -> Ran:
        self._before = ran()
        return self

    def __exit__(self, *_: object) -> None:
        self.counts = ran() - self._before

    @property
    def only(self) -> str:
        """The one backend that ran."""
        assert len(self.counts) == 1, f"expected one backend, the ledger says {dict(self.counts)}"
        return next(iter(self.counts))


def call(arguments: dict[str, Any], **more: Any) -> Any:
    """cynosure.attention with `Inputs.arguments`."""
    rest = {name: value for name, value in arguments.items() if name not in ("q", "k", "v")}
    return cynosure.attention(arguments["q"], arguments["k"], arguments["v"], **rest, **more)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads in torch's pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- dropout: what it leaves is read off the outputs


def kept_by_dropout(inputs: Inputs, backend: str) -> Keep | None:
    """What this backend keeps: with q = k = 0 and unit vectors as values, the outputs are the kept probabilities."""
    case = inputs.case
    if not case.dropout:
        return None
    arguments = inputs.arguments()
    keep = [
        torch.zeros(case.heads, rows, keys, dtype=torch.bool, device=inputs.dout.device)
        for rows, keys in zip(inputs.lengths_q, inputs.lengths_k, strict=True)
    ]
    names = ("layout", "dropout_p", "dropout_seed", "seqlens_q", "seqlens_k")
    more = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    same = {name: arguments[name] for name in (*names, *more) if name in arguments}
    q, k = (torch.zeros(arguments[name].shape, dtype=case.torch_dtype, device=inputs.dout.device) for name in "qk")
    for start in range(0, case.sk, 64):
        width = min(64, case.sk - start)
        v = torch.zeros((*arguments["v"].shape[:-1], width), dtype=case.torch_dtype, device=inputs.dout.device)
        for b, keys in enumerate(inputs.lengths_k):
            of_b = rows_of(case, v, inputs.lengths_k, b)
            if keys > start:
                units = torch.eye(keys, device=v.device)[:, start : start + width]
                of_b[..., : units.shape[1]] = units.to(v.dtype)
        with torch.no_grad():
            out = cynosure.attention(q, k, v, **same, backend=backend)
        for b, keys in enumerate(inputs.lengths_k):
            of_b = rows_of(case, out, inputs.lengths_q, b)
            keep[b][:, :, start : start + width] = of_b[..., : max(0, min(width, keys - start))] != 0
    return keep


# --- the bound


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm())


# A 16-bit program may be lucky over few numbers; there each term may be rounded once. Fused GPU kernels round weights
# and their gradients to 16 bits between two products, so that luck counts for more there.
_FEW, _FEW_FUSED = 64, 1024
_FEW_PAIRS = 2000
_UNIT = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-23, torch.float64: 2.0**-50}


def bound(ref: Tensor, m: Tensor, size: Tensor, case: Case, dtype: torch.dtype, inner: float, few: int = _FEW) -> float:
    """The largest |x - ref|_2 allowed.

    1.5 |m - ref| and one rounding of ref to the dtype; and, for where the plain program happens to be exact, what lies
    between may be rounded in every term (`inner`, relative).
    """
    rounding = _UNIT[case.torch_dtype] if ref.numel() < few else 0.0
    return 1.5 * _distance(m, ref) + _distance(ref.to(dtype), ref) + max(rounding, inner) * float(size.double().norm())


def compare(inputs: Inputs, x: Results, ref: Results, m: Results, size: Results, exact_weights: bool = True) -> None:
    """Asserts that a backend's results lie within the bound, and that what must be exact is.

    exact_weights: it keeps weights in float32 between its two products.
    """
    few = _FEW if exact_weights else _FEW_FUSED
    case = inputs.case
    unit = 2.0**-50 if case.dtype == "float64" else 2.0**-23
    finite = ref.lse[torch.isfinite(ref.lse)]
    largest = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    pairs = case.heads * sum(rows * keys for rows, keys in zip(inputs.lengths_q, inputs.lengths_k, strict=True))
    if pairs < _FEW_PAIRS:  # the plain program's scores may be the luckier ones
        largest = max(largest, float(size.lse))

    def close(name: str, x: Tensor, ref: Tensor, m: Tensor, size: Tensor, inner: float) -> None:
        assert x.shape == ref.shape, f"{name}: shape {tuple(x.shape)}, expected {tuple(ref.shape)}"
        allowed = bound(ref, m, size, case, x.dtype, inner, few)
        error = _distance(x, ref)
        assert error <= allowed, (
            f"{name}: error {error:.3g}, allowed {allowed:.3g} of {float(ref.norm()):.3g} "
            f"(plain program: {_distance(m, ref):.3g})\n{case!r}"
        )

    close("out", x.out, ref.out, m.out, size.out, unit * (largest if pairs < _FEW_PAIRS else 1.0))
    if case.lse:
        assert x.lse.dtype == torch.float32
        assert x.lse.shape == ref.lse.shape, f"lse: {tuple(x.lse.shape)}, expected {tuple(ref.lse.shape)}\n{case!r}"
        empty = torch.isinf(ref.lse)
        assert torch.equal(x.lse[empty].double(), ref.lse[empty]), f"lse: not -inf where nothing is attended\n{case!r}"
        error = (x.lse.double() - ref.lse)[~empty].abs() / ref.lse[~empty].abs().clamp(min=1)
        assert not error.numel() or float(error.max()) <= 1e-5, f"lse: error {float(error.max()):.3g}\n{case!r}"
    for b in range(case.batch):  # rows that attend nothing: exactly 0
        rows = torch.isinf(lse_rows_of(case, ref.lse, inputs.lengths_q, b))
        of_b = rows_of(case, x.out, inputs.lengths_q, b)
        assert not of_b[rows].any(), f"out: a row of sequence {b} that attends nothing is not 0\n{case!r}"
        if case.strides in ("plain", "transposed", "odd", "last") and "q" in x.gradients:
            dq = inputs.views({**inputs.leaves, **x.gradients})["q"]
            of_b = rows_of(case, dq, inputs.lengths_q, b)
            assert not of_b[rows].any(), f"dq: a row of sequence {b} that attends nothing is not 0\n{case!r}"
    assert x.gradients.keys() == ref.gradients.keys()
    for name, gradient in x.gradients.items():
        leaf = inputs.leaves[name]
        assert gradient.dtype == leaf.dtype, f"gradient of {name}: {gradient.dtype}, expected {leaf.dtype}"
        expected, near, terms = (results.gradients[name] for results in (ref, m, size))
        close(f"gradient of {name}", gradient, expected, near, terms, 2 * unit * largest)  # scores and LSE


# --- the body


def run(inputs: Inputs, backend: str) -> Results:
    """One backend's results for these inputs."""
    case = inputs.case
    leaves = inputs.copy()
    result = call(inputs.arguments(leaves), backend=backend)
    out, lse = result if case.lse else (result, torch.zeros(()))
    q = inputs.arguments(leaves)["q"]
    assert out.dtype == q.dtype
    assert out.device == q.device
    gradients = gradients_of(inputs, leaves, out, lse)
    for name, leaf in leaves.items():
        assert torch.equal(leaf.detach().nan_to_num(), inputs.leaves[name].detach().nan_to_num()), f"{name} was changed"
    return Results(out.detach(), lse.detach(), gradients)


def refused(case: Case, backend: str) -> str | None:
    """A part of the reason why a backend that is ours refuses a case; None: it must run it."""
    return "float32, bfloat16 or float16" if backend == "cpu" and case.dtype == "float64" else None


def check(case: Case, backend: str, device: str) -> None:
    """One case on one backend: forward and all gradients against the definition, and that this backend ran.

    Raises:
        cynosure.NoBackendError: where the backend refuses the case, with its reasons.
    """
    inputs = make(case, device)
    with Ran() as forced:
        keep = kept_by_dropout(inputs, backend)
        x = run(inputs, backend)
    assert forced.only == backend
    with threads(1):  # small products: more threads only wait for each other
        exact = backend in ("cpu", "unfused")
        compare(inputs, x, reference(inputs, keep), plain(inputs, keep), magnitudes(inputs, keep), exact)
