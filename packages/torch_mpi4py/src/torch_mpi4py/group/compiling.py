"""Keeps torch.compile out of the functions of this package.

Where torch.compile can't put a call into its graph, it lets Python run the call, and tries to
compile each Python function that runs below. The operations of gloo are C++, so they just run; ours
are Python, and their locks, threads and MPI calls can't be compiled. Dynamo, the part of PyTorch
that reads the functions, has a list of folders whose functions it leaves alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .process_group import MPIProcessGroup

_RULES = "torch._dynamo.trace_rules"


def keep_dynamo_out() -> None:
    """Add this package to Dynamo's list: now, or as soon as Dynamo is imported.

    Importing Dynamo takes a second, which a program that compiles nothing should not pay.
    """
    if _RULES in sys.modules:
        _teach(importlib.import_module(_RULES))  # waits if another thread is importing it
    else:
        sys.meta_path.insert(0, _RulesFinder())


def _teach(rules: ModuleType) -> None:
    rules.add(__package__.partition(".")[0])
    # Torch 2.11 accepts a group of its own class only in a compiled function; later versions accept
    # subclasses. The rules have imported the module.
    variables = sys.modules["torch._dynamo.variables.distributed"]
    if hasattr(variables, "ProcessGroupVariable"):
        _accept_our_groups(variables.ProcessGroupVariable)


def _accept_our_groups(variable: Any) -> None:
    is_process_group = variable.is_process_group
    variable.is_process_group = staticmethod(
        lambda value: isinstance(value, MPIProcessGroup) or is_process_group(value)
    )


class _RulesFinder(MetaPathFinder):
    """Finds the module of Dynamo's list as the other finders do, and patches it when it is run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module with the list, None for every other module."""
        if name != _RULES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            self._teach_when_run(spec.loader)
        return spec

    def _teach_when_run(self, loader: Any) -> None:
        run = loader.exec_module

        def run_and_teach(module: ModuleType) -> None:
            run(module)
            sys.meta_path.remove(self)
            _teach(module)

        loader.exec_module = run_and_teach
