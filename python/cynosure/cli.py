# SPDX-License-Identifier: Apache-2.0
"""The command line: `cynosure env | explain | select | matrix | diff | rules | replay | demo`.

Errors are one line on stderr and exit status 2. Only this module and the commands' own modules print.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cynosure import _core, faults
from cynosure._core import Backend
from cynosure._options import (
    Parser,
    UsageError,
    add_device_options,
    add_problem_options,
    add_settings_options,
    device_of,
    problem_of,
    settings_of,
)
from cynosure.decision import Decision
from cynosure.settings import current_word

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# --- the program


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    if sys.stdout is None or sys.stderr is None:  # closed by the caller: nobody would read the answer
        return 2
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
    top = Parser(
        prog="cynosure", description="Which attention backend runs a call, and why; for this machine or any other."
    )
    top.add_argument("--version", action="version", version=f"cynosure {_core.VERSION}")
    top.add_argument("--cmake-dir", action=PrintCmakeDir, help="print the folder for find_package(cynosure) and exit")
    top.set_defaults(run=_no_command)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    _add_env(commands)
    _add_explain(commands)
    _add_select(commands)
    _add_matrix(commands)
    _add_diff(commands)
    _add_rules(commands)
    _add_replay(commands)
    _add_demo(commands)
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
    raise UsageError(
        "expected a command: env, explain, select, matrix, diff, rules, replay or demo\ntry: cynosure --help"
    )


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


# --- explain


def _add_explain(commands: Any) -> None:
    command = _command(
        commands, "explain", "which backend runs a call, and every reason against the others", _run_explain
    )
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
    command.add_argument(
        "--policy",
        choices=["fastest", "te"],
        default="fastest",
        help="te: TransformerEngine's answers, outcome for outcome",
    )
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
    if sys.stdin is None:
        raise UsageError("standard input is closed; records come from there")
    stream = getattr(sys.stdin, "buffer", None)
    for line in stream if stream is not None else (text.encode() for text in sys.stdin):
        yield line.decode("utf-8", "replace").rstrip("\r\n")


# --- rules


def _add_rules(commands: Any) -> None:
    command = _command(commands, "rules", "the table of rules that exclude backends", _run_rules)
    command.add_argument("--policy", choices=["fastest", "te"], help="rules that hold under this policy alone")
    command.add_argument(
        "--backend", choices=list(Backend.__members__), metavar="NAME", help="rules about this backend alone"
    )
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
    from cynosure import _environment

    report = _environment.environment_report()
    status = 2 if report["settings"]["error"] else 0
    if args.json:
        show_json(report)
    else:
        show(*_environment.render(report))
    if status:
        print(f"cynosure: error: {report['settings']['error']}", file=sys.stderr)
    return status


# --- matrix, diff, demo, bench: their modules


def _add_matrix(commands: Any) -> None:
    command = _command(
        commands, "matrix", "the choice for every head dim and length, on screen or as a page", _run_matrix
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page instead")
    form.add_argument("--json", action="store_true", help="as JSON")
    add_problem_options(command, sizes=False)
    add_settings_options(command)
    add_device_options(command)


def _run_matrix(args: argparse.Namespace) -> int:
    from cynosure import matrix

    name = args.device or "this machine"
    swept = matrix.sweep(
        lambda **sizes: problem_of(args, **sizes), device_of(args), settings_of(args), name, args.seqlen_q
    )
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
    command.add_argument(
        "records", nargs="?", type=Path, help="a file of records as for select; default: a built-in grid of calls"
    )
    command.add_argument(
        "--from",
        dest="old",
        required=True,
        metavar="FIELD=VALUE,...",
        help="the machine before: cudnn=9.19.0, device=a100, ...",
    )
    command.add_argument("--to", dest="new", required=True, metavar="FIELD=VALUE,...", help="the machine after")
    command.add_argument(
        "--device", metavar="NAME", help="the machine that both start from; default: this one's GPU, or h200"
    )
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


def _add_replay(commands: Any) -> None:
    command = _command(
        commands,
        "replay",
        "make the decisions of a saved ledger again: status 1 where one has changed, 2 for a file that is no ledger",
        _run_replay,
    )
    command.add_argument("ledger", type=Path, metavar="FILE", help="what cynosure.ledger().save(FILE) wrote")
    command.add_argument("--here", action="store_true", help="for this machine; default: for the recorded one")
    command.add_argument("--json", action="store_true", help="the changes as JSON")


def _run_replay(args: argparse.Namespace) -> int:
    from cynosure import ledgers

    current_word()  # reads the variables: added fault rows of the recorded run have to be known
    found = ledgers.replay(args.ledger, here=args.here)
    if args.json:
        show_json({"decisions": found.decisions, "changes": [change.to_dict() for change in found.changes]})
    else:
        show(found)
    return 1 if found.changes else 0


def _add_demo(commands: Any) -> None:
    command = _command(
        commands, "demo", "train a small language model for a minute, compiled, and show what attention did", _run_demo
    )
    command.add_argument("--explain", action="store_true", help="real models on five GPUs instead; no torch needed")
    command.add_argument("--seconds", type=float, default=45, metavar="N", help="how long to train (default: 45)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and batches (default: 0)")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="write loss.svg and ledger.json there")
    command.add_argument("--quiet", action="store_true", help="print nothing unless something does not hold")
    command.add_argument("--no-color", action="store_true", help="plain text")
    command.add_argument(
        "--device", choices=("cpu", "cuda"), help="where to train (default: a GPU where torch has one)"
    )


def _run_demo(args: argparse.Namespace) -> int:
    from cynosure import demo

    if not 0 < args.seconds <= 86400:
        raise UsageError(f"--seconds: got {args.seconds:g}, expected more than 0 and at most 86400")
    if args.device == "cuda" and not args.explain:
        _need_gpu()
    return demo.run(
        demo.Options(
            args.explain,
            args.seconds,
            args.seed,
            args.out,
            quiet=args.quiet,
            color=not args.no_color,
            device=args.device,
        )
    )


def _need_gpu() -> None:
    from cynosure._demo.stage import torch_is_there

    if torch_is_there():
        import torch

        if torch.cuda.is_available():
            return
    raise UsageError("--device: got cuda, but there is no CUDA device that torch can use; cpu works everywhere")


def _run_bench(args: argparse.Namespace) -> int:
    raise UsageError("bench: not part of this release; `cynosure demo` times attention against torch SDPA")
