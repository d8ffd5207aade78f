"""What only a GPU can show: streams, events, the current GPU of threads. For ``tools.on_gpu``.

No test starts these: without GPUs they say nothing.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch_mpi4py.core import cuda_copies, gpus

from tests.torch_mpi4py.helpers import equal, sizes, still_works

LONG = 2_000_000_000  # clock ticks: about a second


def own_gpu() -> torch.device:
    """Return the GPU that the worker has made the default device."""
    device = torch.get_default_device()
    assert device.type == "cuda", f"run this on GPUs, with RANKS_ON_GPUS=1, not on {device}"
    return device


def case_backend_stream_is_not_a_pytorch_stream(rank: int, size: int) -> None:
    device = own_gpu()
    ours = cuda_copies._own_stream(device.index)
    theirs = {torch.cuda.Stream(device).cuda_stream for _ in range(100)}
    assert ours.cuda_stream not in theirs
    assert ours.cuda_stream != torch.cuda.default_stream(device).cuda_stream


def case_call_waits_for_earlier_work_on_the_stream(rank: int, size: int) -> None:
    device = own_gpu()
    for stream in (torch.cuda.Stream(device), torch.cuda.default_stream(device)):
        with torch.cuda.stream(stream):
            value = torch.zeros(1000, dtype=torch.bfloat16)
            torch.cuda._sleep(LONG)
            value.fill_(rank + 1)
            works = [dist.all_reduce(value, async_op=True) for _ in range(2)]
            for work in works:
                work.wait()
        equal(value, [size * size * (size + 1) / 2] * 1000)


def case_call_does_not_wait_for_later_work_on_the_stream(rank: int, size: int) -> None:
    """The copies run beside the program's stream.

    Those of a CUDA-aware MPI need not: Open MPI 5.0.7 waits for the default stream.
    """
    device = own_gpu()
    for dtype in (torch.bfloat16,) if gpus.takes_cuda() else (torch.float32, torch.bfloat16):
        value = torch.ones(1000, dtype=dtype)
        dist.all_reduce(value)
        torch.cuda.synchronize(device)
        work = dist.all_reduce(value, async_op=True)
        torch.cuda._sleep(LONG)
        work.wait()
        assert not torch.cuda.current_stream(device).query(), "the wait took the program's stream"
        equal(value, [float(size * size)] * 1000)


def case_waiting_for_a_gpu_leaves_cores_idle(rank: int, size: int) -> None:
    own_gpu()
    value = torch.ones(10)
    dist.all_reduce(value)
    torch.cuda._sleep(LONG)
    began, used = time.perf_counter(), time.process_time()
    dist.all_reduce(value)
    took, used = time.perf_counter() - began, time.process_time() - used
    assert used < took / 2, f"{used:.2f} s of {took:.2f} s"


def case_conjugated_and_negated_tensors(rank: int, size: int) -> None:
    own_gpu()
    group = dist.group.WORLD
    plain = torch.complex(torch.full((4,), rank + 1.0), torch.ones(4))
    total = torch.complex(torch.full((4,), size * (size + 1) / 2), torch.full((4,), -1.0 * size))
    conjugate = plain.conj()
    group.allreduce([conjugate]).wait()
    equal(conjugate.resolve_conj(), total)
    negative = torch._neg_view(torch.full((4,), -(rank + 1.0)))
    dist.all_reduce(negative)
    equal(negative.resolve_neg(), [size * (size + 1) / 2] * 4)


def case_premultiplied_sum_factor(rank: int, size: int) -> None:
    operation = dist._make_nccl_premul_sum(torch.tensor(2.0, device=own_gpu()))
    value = torch.full((3,), rank + 1.0)
    dist.all_reduce(value, operation)
    equal(value, [size * (size + 1.0)] * 3)


def case_parameters_receive_results(rank: int, size: int) -> None:
    own_gpu()
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        for later in (False, True):
            parameter = torch.nn.Parameter(torch.full((3,), rank + 1.0))
            with mode():
                work = dist.all_reduce(parameter, async_op=later)
            if work is not None:
                work.wait()
            equal(parameter.detach(), [size * (size + 1) / 2] * 3)
            assert parameter._version == 0


def case_model_on_the_host_with_default_device_gpu(rank: int, size: int) -> None:
    own_gpu()
    model = torch.nn.Linear(2, 1, bias=False, device="cpu")
    replica = torch.nn.parallel.DistributedDataParallel(model)
    replica(torch.full((1, 2), rank + 1.0, device="cpu")).sum().backward()
    assert model.weight.grad.tolist() == [[(size + 1) / 2] * 2]
    value = torch.ones(3, dtype=torch.bfloat16, device="cpu")
    dist.all_reduce(value)
    assert value.tolist() == [float(size)] * 3


def case_callbacks_run_with_the_gpu_of_their_future(rank: int, size: int) -> None:
    device = own_gpu()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    chosen = work.get_future().then(lambda _: torch.cuda.current_device()).wait()
    assert chosen == device.index
    if device.index:
        assert not torch._C._cuda_hasPrimaryContext(0), "a thread has opened a context on GPU 0"


@sizes(2, 3, 4)
def case_messages(rank: int, size: int) -> None:
    own_gpu()
    scalar = torch.zeros(())
    sent = dist.isend(torch.tensor(rank + 1.0), (rank + 1) % size)
    dist.recv(scalar, (rank - 1) % size)
    sent.wait()
    equal(scalar, (rank - 1) % size + 1.0)
    still_works()
