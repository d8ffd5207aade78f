"""Groups in which each device has a backend of its own, such as ``"cpu:mpi4py,cuda:nccl"``.

PyTorch asks for the backend of one device after the other, and takes a group that is written in
Python for all of them, without a word.
"""

from __future__ import annotations

import sys
import traceback

import torch

_NAME = "mpi4py"
# PyTorch's function that makes a group and its variable with what the program has asked for: it
# hands the backends neither.
_MAKER, _ASKED = "_new_process_group_helper", "backend_config"


def others_asked_for() -> dict[str, str]:
    """Return the other backends of the group that is being made, by their devices."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    maker = next((frame for frame in frames if frame.f_code.co_name == _MAKER), None)
    asked = None if maker is None else maker.f_locals.get(_ASKED)
    if asked is None:
        return {}
    backends = asked.get_device_backend_map()
    return {device: name for device, name in backends.items() if name != _NAME}


def require_no_others() -> None:
    """Raise ValueError if the group that is being made has other backends for some devices."""
    others = others_asked_for()
    if not others:
        return
    named = " and ".join(f"{name} for {device} tensors" for device, name in others.items())
    beside = ", ".join(
        f'dist.new_group(backend="{name}")' for name in dict.fromkeys(others.values())
    )
    raise ValueError(
        f"the backend mpi4py shares no group with others, and this one asks for {named}: with "
        f'PyTorch {torch.__version__} mpi4py would get every device. Write "mpi4py", which moves '
        f"CPU and CUDA tensors, and make a group of the other backend beside it: {beside}"
    )
