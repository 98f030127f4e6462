# SPDX-License-Identifier: Apache-2.0
"""JSON text from outside, read with one clear error."""

from __future__ import annotations

import json
from typing import Any


def read_object(text: str, what: str) -> dict[str, Any]:
    """The object a text holds. Raises ValueError naming what it should have been."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what}: not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{what}: not JSON we read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what}: got {type(value).__name__}, expected a JSON object")
    return value
