"""What the project promised in numbers, row by row, and which program answers it."""

from __future__ import annotations

__all__ = ["MEASURE", "RARE", "ROWS"]

MEASURE, RARE = "measure", "rare"

ROWS = {
    "all_reduce against gloo, float32, 4 B to 64 MiB, 2 and 4 ranks": MEASURE,
    "all_reduce against raw MPI.Allreduce on the same buffer, 2 ranks": MEASURE,
    "all_reduce against raw MPI.Allreduce, single calls, also in a training step": "cold_calls",
    "mismatch check on against off, 2 and 4 ranks": MEASURE,
    "DDP step against gloo, MLP and LeNet, 2 and 4 ranks": MEASURE,
    "lesson's bucketed, overlapped sync against DDP on the same backend": "bucketed_sync",
    "two ranks against one process, LeNet, samples/s, one thread each": "throughput",
    "asynchronous SGD against synchronous with a straggler": "async_sgd",
    "event log, cost of an event": "event_log",
    "%%px round trip with all safety on, against plain ipyparallel": "engines",
    "start of four engines, torch imported": "engines",
    "restart of the engines": "failures",
    "hang: from the deadline to the report and free ranks": "failures",
    "killed rank: to the survivors' next completed all-reduce": "failures",
    "make lab, warm start": "lab",
    "make lab on a fresh clone": RARE,
    "all lessons executed": RARE,
    "peers: gloo, raw mpi4py, the MPI library's C all-reduce": "peers",
    "peers: torchrun with gloo for the same script": "launchers",
    "two hosts with two ranks each: all_reduce, DDP step, start, report, agent": "hosts",
    "GPU: NCCL with one rank, several ranks on one GPU, staging": "gpu",
}
