"""What every printed program begins with: how its tensors are made, filled and shown."""

import math
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as nnf  # noqa: F401 (for programs)

SECONDS = 20.0
TIMEOUT = timedelta(seconds=SECONDS)


def start():
    """Make the default group."""
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=TIMEOUT)


def numbers(shape, dtype, seed, rank, lowest, step, count):
    """Return small whole numbers that depend on seed, rank and place."""
    place = torch.arange(math.prod(shape))
    turn = place * (seed % 3 + 1) + place * place % 5 + seed + 3 * rank
    value = (lowest + step * (turn % count)).view(shape)
    if dtype.is_complex:
        other = (lowest + step * ((turn + 1) % count)).view(shape)
        return torch.complex(value.double(), other.double()).to(dtype)
    return value.to(dtype)


def room(shape, layout):
    """Return how many elements the memory has in which a tensor of this layout lies."""
    shape = list(shape) or [1]
    if layout == "strided":
        shape[-1] *= 2
    return math.prod(shape) + (3 if layout == "offset" else 0)


def arrange(flat, shape, layout):
    """Return a view of ``flat``, which has the room, as a tensor of this shape and layout."""
    if layout == "strided":
        wide = list(shape) or [1]
        wide[-1] *= 2
        return flat.view(wide)[..., ::2].view(shape) if not shape else flat.view(wide)[..., ::2]
    if layout == "transposed" and len(shape) > 1:
        return flat.view(tuple(reversed(shape))).permute(*reversed(range(len(shape))))
    if layout == "channels_last" and len(shape) == 4:
        n, c, h, w = shape
        return flat.view(n, h, w, c).permute(0, 3, 1, 2)
    if layout == "offset":
        return flat[3:].view(shape)
    return flat.view(shape)


def blank(shape, dtype, layout="plain"):
    """Return a tensor of zeros in its layout."""
    bytes_ = torch.zeros(room(shape, layout) * dtype.itemsize, dtype=torch.uint8)
    return arrange(bytes_.view(dtype), shape, layout)


def computed(shape, dtype, layout):
    """Return a leaf, and a tensor of the layout that is computed from it."""
    leaf = torch.ones(room(shape, layout), dtype=dtype, requires_grad=True)
    return leaf, arrange(leaf * 2, shape, layout)


def fill(tensor, seed, rank, lowest, step, count):
    """Give a tensor its values behind autograd's back; return it."""
    with torch.inference_mode():
        values = numbers(tensor.shape, tensor.dtype, seed, rank, lowest, step, count)
        tensor.detach().copy_(values)
    return tensor


def filled(shape, dtype, layout, seed, rank, lowest, step, count):
    """Return a tensor with values."""
    return fill(blank(shape, dtype, layout), seed, rank, lowest, step, count)


def pieces(parts, shape, dtype, layout):
    """Return tensors of one shape; with layout "part" they are pieces of one."""
    if layout == "part":
        return list(blank((parts, *shape), dtype).unbind())
    return [blank(shape, dtype, layout) for _ in range(parts)]


def refused(call, *kinds):
    """Make a call that has to raise an error."""
    try:
        call()
    except Exception as error:
        if kinds and type(error).__name__ not in kinds:
            raise
        return
    raise AssertionError("no error was raised")


def until(done, seconds=SECONDS):
    """Look until something is true."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(1e-4)


def patient(work):
    """Wait with time-outs that are too short, until the work is done."""

    def done():
        try:
            work.wait(timedelta(milliseconds=5))
        except Exception:
            if not work.is_completed():
                return False
            work.wait()  # it was done just after the time-out, or has an error of its own
        return True

    until(done)


def parallel(*functions):
    """Run each in a thread of its own, and raise what one of them raised."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def see(key, *tensors):
    """Show what a rank sees after a step."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            tensor = funcol.wait_tensor(tensor).detach().clone()
        print(f"rank {dist.get_rank()}, step {key}: {tensor}", flush=True)


def step(number):
    """Say which step begins."""
