# SPDX-License-Identifier: Apache-2.0
"""These tests need torch; a build without it has none of them."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*.py"]
