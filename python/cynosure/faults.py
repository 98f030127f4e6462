# SPDX-License-Identifier: Apache-2.0
"""Known upstream faults: add rows at run time, without a release.

    cynosure.faults.add(id="mine", backends=["cudnn"], library="cudnn", since="9.18.0", until="9.19.0",
                        when={"training": True, "seqlen_k": {"not_multiple_of": 128}}, effect="NaN in dk")

or a TOML file named by CYNOSURE_FAULTS, with one [[faults]] table a row. The rows in force are part of the settings
word through a digest of their content.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from cynosure import _core, _tracing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_added: list[dict[str, Any]] = []


def add(
    *,
    id: str,  # noqa: A002
    backends: list[str] | str,
    library: str,
    effect: str,
    since: str | None = None,
    until: str | None = None,
    sm: tuple[int, int] | None = None,
    when: dict[str, Any] | None = None,
    policies: list[str] | None = None,
    link: str = "",
) -> None:
    """Adds a row for the rest of the process. Decisions from now on know it; compiled code recompiles once.

    Args:
        id: a name of your own.
        backends: those that are excluded.
        library: whose versions since and until are: cudnn, flash2, flash3, flash4 or torch.
        effect: what goes wrong, for the explanation.
        since: first faulty version; None: unknown.
        until: first good version; None: unknown.
        sm: first and last compute capability, times 10.
        when: conditions by field, all of which must hold; see docs/faults.md.
        policies: ["fastest"] (default), ["te"] or both.
        link: where it is tracked.

    Raises:
        ValueError: naming the field, what was given and what is allowed.
    """
    row: dict[str, Any] = {
        "id": id,
        "backends": [backends] if isinstance(backends, str) else list(backends),
        "library": library,
        "effect": effect,
    }
    optional = {
        "since": since,
        "until": until,
        "sm": None if sm is None else list(sm),
        "when": when,
        "policies": policies,
        "link": link or None,
    }
    row.update((name, value) for name, value in optional.items() if value is not None)
    try:
        row = json.loads(json.dumps(row, allow_nan=False))  # a copy: the caller may change its dicts
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"fault {id!r}: {error}; expected text, numbers, booleans and lists of them") from None
    rows = [*_added, row]
    digest = _core.register_rule_set(json.dumps({"faults": rows}))
    _added[:] = rows
    _tracing.added_faults = str(digest)


def clear() -> None:
    """Forgets the rows that were added. The built-in ones and those of CYNOSURE_FAULTS stay."""
    _added.clear()
    _tracing.added_faults = "0"


def added() -> list[dict[str, Any]]:
    """The rows that were added, as data."""
    return json.loads(json.dumps(_added))  # type: ignore[no-any-return]


def load(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a TOML or JSON file, checked. Raises ValueError naming the file and the fault in it."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"CYNOSURE_FAULTS: cannot read {str(path)!r}: {error}") from None
    try:
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return json.loads(_core.read_rule_set(json.dumps(content)))["faults"]  # type: ignore[no-any-return]
    except (
        ValueError,
        TypeError,
        RecursionError,
    ) as error:  # TOML dates are no JSON
        raise ValueError(f"CYNOSURE_FAULTS: {str(path)!r}: {error}") from None


@lru_cache(maxsize=16)
def _load_once(path: str) -> tuple[str, ...]:
    return tuple(json.dumps(row) for row in load(path))


def digest_with_file(path: str | None) -> int:
    """Registers the rows of a file (read once a process) with those added; their digest."""
    rows = [json.loads(row) for row in _load_once(path)] if path else []
    return _core.register_rule_set(json.dumps({"faults": [*rows, *_added]}))
