# SPDX-License-Identifier: Apache-2.0
"""What all parts of the demonstration use: claims that may fail, text, and variables that are put back."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

# A title, and what yields all that is shown under it.
Part = tuple[str, Callable[[], "Iterator[RenderableType]"]]


class ClaimError(Exception):
    """Something that the demonstration says does not hold."""


def claim(holds: bool, what: str) -> None:
    """Stops the part where a claim fails."""
    if not holds:
        raise ClaimError(what)


def text(what: str, style: str = "") -> RenderableType:
    """A line."""
    from rich.text import Text

    return Text(what, style)


def set_variable(name: str, value: str | None) -> None:
    """Sets a variable of the environment; None unsets it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@contextmanager
def without_settings() -> Iterator[None]:
    """Our and TransformerEngine's variables are unset meanwhile."""
    from cynosure._core import ENVIRONMENT

    kept = {name: os.environ.pop(name) for name in ENVIRONMENT if name in os.environ}
    try:
        yield
    finally:
        for name in ENVIRONMENT:
            set_variable(name, kept.get(name))


def torch_is_there() -> bool:
    """Whether torch and the operators are."""
    from cynosure.device import OPERATORS

    return importlib.util.find_spec("torch") is not None and OPERATORS.exists()
