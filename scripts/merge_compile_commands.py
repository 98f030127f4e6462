# SPDX-License-Identifier: Apache-2.0
"""Join the compile_commands.json of several build folders: each source as the first folder compiles it."""

import json
import sys
from pathlib import Path

commands: dict[str, object] = {}
for build in sys.argv[1:]:
    for entry in json.loads(Path(build, "compile_commands.json").read_text(encoding="utf-8")):
        commands.setdefault(entry["file"], entry)
json.dump(list(commands.values()), sys.stdout, indent=1)
