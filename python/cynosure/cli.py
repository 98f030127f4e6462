# SPDX-License-Identifier: Apache-2.0
"""The command line: `cynosure env | explain | select | matrix | diff | rules | demo`.

Errors are one line on stderr and exit status 2. Only this module and the commands' own modules print.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cynosure import _core, faults
from cynosure._core import Backend
from cynosure.decision import Decision
from cynosure.device import Device
from cynosure.problem import FIELDS, Problem
from cynosure.settings import Settings, current_word

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LIBRARY_OPTIONS = ("cudnn", "flash2", "flash3", "flash4", "torch")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64"}


class UsageError(Exception):
    """What the user gave cannot be; the text names it."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Instead of usage and exit."""
        raise UsageError(f"{message}\ntry: {self.prog} --help")


# --- the program


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        args = parser().parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except SystemExit as stop:  # --help and --version
        return stop.code if isinstance(stop.code, int) else 0
    except BrokenPipeError:  # the reader has seen enough, as in `cynosure rules | head`
        _discard_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except (UsageError, ValueError, OSError) as error:
        print(f"cynosure: error: {error}", file=sys.stderr)
        return 2


def _discard_output() -> None:
    """So that the interpreter does not fail when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> Parser:
    """All commands and options."""
    top = Parser(prog="cynosure", description="Which attention backend runs a call, and why; for this machine or any other.")
    top.add_argument("--version", action="version", version=f"cynosure {_core.__version__}")
    top.add_argument("--cmake-dir", action=PrintCmakeDir, help="print the folder for find_package(cynosure) and exit")
    top.set_defaults(run=_no_command)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    _add_env(commands)
    _add_explain(commands)
    _add_select(commands)
    _add_matrix(commands)
    _add_diff(commands)
    _add_rules(commands)
    _command(commands, "demo", "a tour of about ten seconds", _run_demo)
    _command(commands, "bench", "speed of the operators; not part of this release", _run_bench)
    return top


class PrintCmakeDir(argparse.Action):
    """Prints where the CMake package lies."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, *_: Any) -> None:
        """As for --version."""
        print(Path(_core.__file__).parent / "lib" / "cmake" / "cynosure")
        raise SystemExit(0)


def _command(commands: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Parser:
    command: Parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(run=run)
    return command


def _no_command(args: argparse.Namespace) -> int:
    raise UsageError("expected a command: env, explain, select, matrix, diff, rules or demo\ntry: cynosure --help")


def console(width: int | None = None) -> Console:
    """Where commands print; plain text when stdout is no terminal."""
    from rich.console import Console

    if width is None and not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        width = 100
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def show(*renderables: RenderableType | str) -> None:
    """Prints; without a terminal no line ends in blanks."""
    out = console()
    if out.is_terminal:
        for renderable in renderables:
            out.print(renderable)
        return
    from cynosure._render import text_of

    for renderable in renderables:
        print(text_of(renderable, out.width, False))


def show_json(value: Any) -> int:
    """Prints JSON that a person can read, too."""
    print(json.dumps(value, indent=2))
    return 0


# --- the call, the machine and the settings from options


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
    call.add_argument("--align", choices=["bottom_right", "top_left"], help="where the diagonal lies; default: bottom_right")
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
    call.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="fields", help="any other field of a Problem")


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
    for name in LIBRARY_OPTIONS:
        machine.add_argument(f"--{name}", metavar="VERSION", help=f"its {name}; none: absent")


def problem_of(args: argparse.Namespace, **swept: Any) -> Problem:
    """The call that the options describe; `swept` replaces sizes and training."""
    sizes: dict[str, Any] = {"head_dim": getattr(args, "head_dim", None), "training": not getattr(args, "inference", False)}
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
    if not sign or name not in FIELDS:
        raise UsageError(f"--set: got {text!r}, expected FIELD=VALUE with one of {', '.join(sorted(FIELDS))}")
    words = {"true": True, "yes": True, "false": False, "no": False}
    if value.lower() in words:
        return name, words[value.lower()]
    return name, int(value) if value.lstrip("-").isdecimal() else value


def settings_of(args: argparse.Namespace) -> Settings:
    """The environment's settings with the options' over them."""
    settings = Settings.current(backend=args.backend, policy=args.policy)
    return Settings.from_word(_core.settings_with(settings.word, deterministic=True)) if args.deterministic else settings


def device_of(args: argparse.Namespace) -> Device:
    """The machine of the options."""
    device = Device.this() if args.device is None else Device.named(args.device)
    given = {name: getattr(args, name) for name in LIBRARY_OPTIONS if getattr(args, name) is not None}
    return device.replace(**{name: None if value == "none" else value for name, value in given.items()})


# --- explain


def _add_explain(commands: Any) -> None:
    command = _command(commands, "explain", "which backend runs a call, and every reason against the others", _run_explain)
    add_problem_options(command)
    add_settings_options(command)
    add_device_options(command)
    command.add_argument("--json", action="store_true", help="the decision as JSON")


def _run_explain(args: argparse.Namespace) -> int:
    from cynosure.explain import hypothetical, render

    decision = hypothetical(problem_of(args), device_of(args), settings_of(args))
    if args.json:
        return show_json(decision_json(decision))
    show(render(decision))
    return 0


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision with what the table adds to it: remedies and overrides."""
    from cynosure.explain import overrides, preference

    return {
        **decision.to_dict(),
        "preference": [backend.name for backend in preference(decision)],
        "remedies": {backend.name: decision.remedy(backend) for backend in Backend if backend not in decision.eligible},
        "overrides": overrides(decision),
    }


# --- select


def _add_select(commands: Any) -> None:
    command = _command(commands, "select", "decide records from stdin, one line out for each line in", _run_select)
    command.add_argument("--policy", choices=["fastest", "te"], default="fastest", help="te: TransformerEngine's answers, outcome for outcome")
    command.add_argument("--jsonl", action="store_true", help="JSON lines, the only format and the default")


def _run_select(args: argparse.Namespace) -> int:
    # Records bring their own variables. Of this process's they take the added fault rows alone.
    path = os.environ.get("CYNOSURE_FAULTS")
    word = _core.settings_with(_core.default_settings(), rules_digest=faults.digest_with_file(path) if path else 0)
    write, flush = sys.stdout.write, sys.stdout.flush
    for line in _lines():
        write(_core.answer_record(line, args.policy, word) + "\n")
        flush()
    return 0


def _lines() -> Iterator[str]:
    """Lines of stdin as they come; bytes that are no UTF-8 become a record that is refused."""
    stream = getattr(sys.stdin, "buffer", None)
    for line in stream if stream is not None else (text.encode() for text in sys.stdin):
        yield line.decode("utf-8", "replace").rstrip("\r\n")


# --- rules


def _add_rules(commands: Any) -> None:
    command = _command(commands, "rules", "the table of rules that exclude backends", _run_rules)
    command.add_argument("--policy", choices=["fastest", "te"], help="rules that hold under this policy alone")
    command.add_argument("--backend", choices=list(Backend.__members__), metavar="NAME", help="rules about this backend alone")
    command.add_argument("--json", action="store_true", help="as JSON")


def _run_rules(args: argparse.Namespace) -> int:
    rows = [
        row
        for row in _core.rule_table(current_word())
        if args.policy in (None, *row["policies"]) and args.backend in (None, *row["backends"])
    ]
    if args.json:
        return show_json(rows)
    from rich.text import Text

    from cynosure._render import table_of

    table = table_of("rule", "about", "what would have to hold, and where that comes from")
    table.columns[0].no_wrap = True
    table.columns[1].max_width = 16
    for row in rows:
        about = ", ".join(row["backends"]) + ("" if len(row["policies"]) == 2 else f" under {row['policies'][0]}")
        table.add_row(Text(row["id"], "cyan"), Text(about), Text(row["required"]) + Text(f"\n{row['evidence']}", "dim"))
    show(table, f"\n{len(rows)} rules")
    return 0


# --- env


def _add_env(commands: Any) -> None:
    command = _command(commands, "env", "what is here: devices, libraries, backends, settings", _run_env)
    command.add_argument("--json", action="store_true", help="as JSON")


def _run_env(args: argparse.Namespace) -> int:
    report = environment_report()
    status = 2 if report["settings"]["error"] else 0
    if args.json:
        show_json(report)
    else:
        _show_env(report)
    if status:
        print(f"cynosure: error: {report['settings']['error']}", file=sys.stderr)
    return status


def environment_report() -> dict[str, Any]:
    """What `env` shows, as plain data."""
    from cynosure._detect import detect

    found = detect()
    libraries = {name: vars(getattr(found, name)) for name in LIBRARY_OPTIONS}
    settings: dict[str, Any] = {"describe": None, "error": None}
    built: list[str] = []
    try:
        settings["describe"] = Settings.current().describe()
        built = Device.this().to_dict()["built"]
    except ValueError as error:
        settings["error"] = str(error)
    settings["variables"] = {name: os.environ[name] for name in _core.ENVIRONMENT if name in os.environ}
    return {
        "cynosure": _core.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": {"name": found.cpu_name, "isa": found.cpu_isa},
        "gpus": [vars(gpu) for gpu in found.gpus],
        "gpus_why_not": found.gpus_why_not,
        "libraries": libraries,
        "backends": {name: _backend_report(name, built, libraries, bool(found.gpus)) for name in Backend.__members__},
        "settings": settings,
    }


# The library that each backend needs; the others come with Cynosure and torch.
NEEDS = {"cudnn": "cudnn", "cudnn_fp8": "cudnn", "flash2": "flash2", "aten_flash": "torch", "flash3": "flash3", "flash4": "flash4"}


def _backend_report(name: str, built: list[str], libraries: dict[str, Any], gpu: bool) -> dict[str, Any]:
    library = NEEDS.get(name)
    why_not = None if library is None else libraries[library]["why_not"]
    missing = [why_not] if why_not else []
    if library is not None and not gpu:
        missing.append("no CUDA device")
    if name not in built:
        missing.append("not built in this release")
    return {"built": name in built, "installed": why_not is None, "usable": not missing, "why_not": missing}


def _show_env(report: dict[str, Any]) -> None:
    from rich.text import Text

    from cynosure._render import pairs, table_of

    head: list[tuple[str, Text | str]] = [
        ("cynosure", f"{report['cynosure']}, Python {report['python']}, {report['system']}"),
        ("cpu", f"{report['cpu']['name']}, {report['cpu']['isa']}"),
    ]
    for index, gpu in enumerate(report["gpus"]):
        head.append((f"gpu {index}", f"{gpu['name']}, compute capability {gpu['sm'] / 10}, {gpu['sm_count']} SMs"))
    if not report["gpus"]:
        head.append(("gpu", f"none: {report['gpus_why_not']}"))
    settings = report["settings"]
    head.append(("settings", Text(f"unreadable: {settings['error']}", "red") if settings["error"] else settings["describe"]))
    variables = " ".join(f"{name}={value}" for name, value in settings["variables"].items())
    head.append(("variables", variables or "none set"))
    libraries = table_of("library", "version", "where, or why not")
    for name, found in report["libraries"].items():
        libraries.add_row(Text(name), Text(found["version"] or "-"), Text(found["why_not"] or found["where"] or "", "dim"))
    backends = table_of("backend", "here", "why not")
    for name, found in report["backends"].items():
        here = Text("yes", "green") if found["usable"] else Text("no", "yellow")
        backends.add_row(Text(name), here, Text("; ".join(found["why_not"]), "dim"))
    show(pairs(head), "", libraries, "", backends)


# --- matrix, diff, demo, bench: their modules


def _add_matrix(commands: Any) -> None:
    command = _command(commands, "matrix", "the choice for every head dim and length, on screen or as a page", _run_matrix)
    command.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page instead")
    command.add_argument("--json", action="store_true", help="as JSON")
    add_problem_options(command, sizes=False)
    add_settings_options(command)
    add_device_options(command)


def _run_matrix(args: argparse.Namespace) -> int:
    from cynosure import matrix

    name = args.device or "this machine"
    swept = matrix.sweep(lambda **sizes: problem_of(args, **sizes), device_of(args), settings_of(args), name, args.seqlen_q)
    if args.json:
        return show_json(matrix.to_dict(swept))
    if args.html is None:
        show(matrix.terminal(swept))
        return 0
    args.html.write_text(matrix.html(swept), encoding="utf-8")
    print(f"wrote {args.html}")
    return 0


def _add_diff(commands: Any) -> None:
    command = _command(commands, "diff", "what changes between two machines, an upgrade for instance", _run_diff)
    command.add_argument("records", nargs="?", type=Path, help="a file of records as for select; default: a built-in grid of calls")
    command.add_argument("--from", dest="old", required=True, metavar="FIELD=VALUE,...", help="the machine before: cudnn=9.19.0, device=a100, ...")
    command.add_argument("--to", dest="new", required=True, metavar="FIELD=VALUE,...", help="the machine after")
    command.add_argument("--device", metavar="NAME", help="the machine that both start from; default: this one's GPU, or h200")
    command.add_argument("--json", action="store_true", help="as JSON")
    add_settings_options(command)


def _run_diff(args: argparse.Namespace) -> int:
    from cynosure import diff

    if args.records is None:
        result = diff.over_grid(args.old, args.new, args.device, settings_of(args))
    else:
        if args.backend is not None or args.deterministic:
            raise UsageError("--backend, --deterministic: given with records, which bring their own settings")
        result = diff.over_records(args.records, args.old, args.new, args.device, args.policy or "fastest")
    if args.json:
        return show_json(diff.to_dict(result))
    show(diff.report(result))
    return 0


def _run_demo(args: argparse.Namespace) -> int:
    from cynosure import demo

    return demo.run()


def _run_bench(args: argparse.Namespace) -> int:
    raise UsageError("bench: the attention operators are not part of this release, so there is nothing to measure")
