# SPDX-License-Identifier: Apache-2.0
"""`python -m cynosure`."""

import sys

from cynosure.cli import main

if __name__ == "__main__":
    sys.exit(main())
