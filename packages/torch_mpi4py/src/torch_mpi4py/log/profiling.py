"""Shows the groups' operations to PyTorch's profiler, as gloo shows its own.

A record begins with the call, on the calling thread, and ends with the operation, on whichever
thread that is. PyTorch ends a record from another thread only by a future that carries the caller's
profiler with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import profiler

_begin: Any = torch.autograd._record_function_with_args_enter
_end_with: Any = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction


class Record:
    """One operation in the profile.

    Args:
        name: of the operation, in torch.distributed.
        tensors: whose shapes are recorded, if the program asks for shapes.
    """

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self._end: Any = torch.futures.Future()
        _end_with(_begin(f"mpi4py:{name}", *tensors), self._end)

    def end(self) -> None:
        """Record the end once, unless the profiler has stopped: then it shows as unfinished."""
        end, self._end = self._end, None
        if end is not None and profiler._is_profiler_enabled:
            end.set_result(None)
