"""Run several scripts in one start of ranks, as each ``import torch`` takes seconds.

    mpiexec -n 2 python tests/scripts/one_after_another.py \
        scripts/ddp.py --steps 3 --save ddp.pt -- scripts/fsdp.py --steps 3

Each gets its own arguments, as if it had been started by itself, and its own process group.
"""

from __future__ import annotations

import itertools
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run what the command line names."""
    arguments = sys.argv[1:]
    for is_separator, part in itertools.groupby(arguments, lambda argument: argument == "--"):
        if not is_separator:
            sys.argv = list(part)
            sys.path[0] = str(Path(sys.argv[0]).parent)
            runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
