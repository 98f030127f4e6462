# SPDX-License-Identifier: Apache-2.0
"""Print every requirement of a developer's environment, read from pyproject.toml: build, run, test, dev."""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

config = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
project = config["project"]
requirements = [
    *config["build-system"]["requires"],
    *project["dependencies"],
    *project["optional-dependencies"]["test"],
    *project["optional-dependencies"]["dev"],
]
print("\n".join(line for line in requirements if not line.startswith(project["name"] + "[")))
