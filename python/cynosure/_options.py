# SPDX-License-Identifier: Apache-2.0
"""Command line options that describe a call, a machine and settings."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from cynosure import _core
from cynosure.device import Device
from cynosure.problem import FIELDS, Problem
from cynosure.settings import Settings

LIBRARIES = ("cudnn", "flash2", "flash3", "flash4", "torch")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
# Fields that other options give, which --set therefore refuses.
_OF_OPTIONS = {
    "heads": "--heads",
    "kv_heads": "--kv-heads",
    "head_dim_qk": "--head-dim",
    "head_dim_v": "--head-dim-v",
    "dtype": "--dtype",
    "layout": "--layout",
    "causal": "--causal",
    "softcap": "--softcap",
    "attn_mask": "--mask",
    "alibi_slopes": "--alibi",
    "training": "--inference",
}
SETTABLE = tuple(sorted(FIELDS - set(_OF_OPTIONS)))


class UsageError(Exception):
    """What the user gave cannot be; the text names it."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Instead of usage and exit."""
        raise UsageError(f"{message}\ntry: {self.prog} --help")


def add_problem_options(command: Parser, *, sizes: bool = True) -> None:
    """The options that describe a call. Without `sizes` the swept ones are optional or absent."""
    call = command.add_argument_group("the call")
    call.add_argument("--heads", type=int, required=sizes, default=16, metavar="N", help="query heads")
    call.add_argument("--kv-heads", type=int, metavar="N", help="key and value heads; default: as --heads")
    if sizes:
        call.add_argument("--seqlen", type=int, metavar="N", help="length of queries and keys")
    call.add_argument("--seqlen-q", type=int, metavar="N", help="length of queries alone")
    if sizes:
        call.add_argument("--seqlen-k", type=int, metavar="N", help="length of keys alone")
        call.add_argument("--head-dim", type=int, required=True, metavar="N", help="head dim of q and k")
    call.add_argument("--head-dim-v", type=int, metavar="N", help="head dim of v; default: that of q and k")
    call.add_argument("--batch", type=int, default=1, metavar="N", help="sequences; default: 1")
    call.add_argument("--dtype", default="bfloat16", help="bfloat16 (default), float16, float32, float8_e4m3, ...")
    call.add_argument("--layout", default="bshd", help="bshd (default), sbhd, bhsd, thd")
    call.add_argument("--causal", action="store_true", help="causal mask")
    call.add_argument(
        "--align", choices=["bottom_right", "top_left"], help="where the diagonal lies; default: bottom_right"
    )
    call.add_argument("--window", type=int, nargs=2, metavar=("LEFT", "RIGHT"), help="sliding window; -1: unlimited")
    call.add_argument("--softcap", type=float, default=0.0, metavar="C", help="soft cap on the logits")
    call.add_argument("--dropout", type=float, default=0.0, metavar="P", help="dropout probability")
    call.add_argument("--bias", metavar="SHAPE", help="additive bias: bhss, 1hss, b1ss, 11ss, ...")
    call.add_argument("--mask", choices=["boolean", "additive"], help="dense mask")
    call.add_argument("--alibi", action="store_true", help="ALiBi slopes")
    call.add_argument("--sinks", action="store_true", help="a learnable sink a head")
    call.add_argument("--padding", action="store_true", help="valid lengths per sequence")
    if sizes:
        call.add_argument("--inference", action="store_true", help="no gradients are wanted")
    call.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="fields", help="any other field of a Problem"
    )


def add_settings_options(command: Parser) -> None:
    """The options that go over the environment's settings."""
    settings = command.add_argument_group("settings, over those of the environment")
    settings.add_argument("--policy", choices=["fastest", "te"], help="fastest, or TransformerEngine's order")
    settings.add_argument("--backend", metavar="CONTRACT", help="auto, NAME, NAME,NAME, prefer(...) or require(...)")
    settings.add_argument("--deterministic", action="store_true", help="results must not vary between runs")


def add_device_options(command: Parser) -> None:
    """The options that describe a machine."""
    machine = command.add_argument_group("the machine")
    machine.add_argument("--device", metavar="NAME", help=f"another machine than this one: {_core.device_names()}")
    for name in LIBRARIES:
        machine.add_argument(f"--{name}", metavar="VERSION", help=f"its {name}; none: absent")


def problem_of(args: argparse.Namespace, **swept: Any) -> Problem:
    """The call that the options describe; `swept` replaces sizes and training."""
    sizes: dict[str, Any] = {
        "head_dim": getattr(args, "head_dim", None),
        "training": not getattr(args, "inference", False),
    }
    both, q, k = getattr(args, "seqlen", None), args.seqlen_q, getattr(args, "seqlen_k", None)
    if not swept and both is None and (q is None or k is None):
        raise UsageError("--seqlen: missing; give it, or both --seqlen-q and --seqlen-k\ntry: cynosure explain --help")
    sizes.update(seqlen_q=both if q is None else q, seqlen_k=both if k is None else k)
    sizes.update(swept)
    given = dict(field_of(text) for text in args.fields)
    if args.align is not None:
        given["align"] = args.align
    if args.padding:
        given["padding"] = True
    try:
        return Problem(
            heads=args.heads,
            kv_heads=args.kv_heads,
            head_dim_v=args.head_dim_v,
            batch=args.batch,
            dtype=DTYPES.get(args.dtype, args.dtype),
            layout=args.layout,
            causal=args.causal,
            window_size=tuple(args.window) if args.window else (-1, -1),
            softcap=args.softcap,
            dropout_p=args.dropout,
            attn_bias=args.bias,
            attn_mask=args.mask,
            alibi_slopes=args.alibi or None,
            sinks=args.sinks or None,
            **sizes,
            **given,
        )
    except TypeError as error:
        raise UsageError(str(error)) from None


def field_of(text: str) -> tuple[str, Any]:
    """FIELD=VALUE of --set."""
    name, sign, value = text.partition("=")
    if not sign or name not in SETTABLE:
        if sign and name in _OF_OPTIONS:
            raise UsageError(f"--set: got {text!r}, expected {_OF_OPTIONS[name]}, the option for {name}")
        raise UsageError(f"--set: got {text!r}, expected FIELD=VALUE with one of {', '.join(SETTABLE)}")
    words = {"true": True, "yes": True, "false": False, "no": False}
    if value.lower() in words:
        return name, words[value.lower()]
    return name, int(value) if value.lstrip("-").isdecimal() else value


def settings_of(args: argparse.Namespace) -> Settings:
    """The environment's settings with the options' over them."""
    settings = Settings.current(backend=args.backend, policy=args.policy)
    return (
        Settings.from_word(_core.settings_with(settings.word, deterministic=True)) if args.deterministic else settings
    )


def device_of(args: argparse.Namespace) -> Device:
    """The machine of the options."""
    device = Device.this() if args.device is None else Device.named(args.device)
    given = {name: getattr(args, name) for name in LIBRARIES if getattr(args, name) is not None}
    return device.replace(**{name: None if value == "none" else value for name, value in given.items()})
