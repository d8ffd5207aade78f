"""One rank that runs program after program, as the test process sends them.

Started with the path of a socket, and for gloo by fork with rank and size.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import traceback
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist

from . import prelude
from .answers import pack, unpack

BACKEND = os.path.join("src", "torch_mpi4py")
TIMEOUT = prelude.TIMEOUT


class Rank:
    """What one rank keeps from one program to the next."""

    def __init__(self, connection: Connection, backend: str, store: Any, rank: int, size: int):
        self.connection, self.backend, self.store = connection, backend, store
        self.rank, self.size = rank, size
        self.starts = 0

    def start(self) -> None:
        """Make the default group."""
        self.starts += 1
        if self.backend == "gloo":
            store = dist.PrefixStore(f"start {self.starts}", self.store)
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT
            )
        else:
            dist.init_process_group("mpi4py", init_method="mpi://", timeout=TIMEOUT)

    def run(self, code: str, after: dict) -> dict:
        """Run a program and return what this rank saw, and its error."""
        seen: dict[str, list] = {}
        reached: list[Any] = ["start"]
        names = dict(vars(prelude))

        def see(key: str, *things: Any) -> None:
            seen[key] = [
                pack(
                    prelude.funcol.wait_tensor(thing) if isinstance(thing, torch.Tensor) else thing
                )
                for thing in things
            ]

        def put(tensor: torch.Tensor, number: int, slot: int) -> None:
            with torch.inference_mode():
                tensor.detach().copy_(unpack(after[number, slot]))

        names |= {"see": see, "put": put, "step": reached.append, "start": self.start}
        error = ""
        try:
            self.start()
            names["rank"] = dist.get_rank()
            exec(compile(code, "<program>", "exec"), names)
        except BaseException as failure:
            error = f"at step {reached[-1]}:\n{story_of(failure)}"
            self.clean_up()
        names.clear()
        return {"seen": seen, "error": error}

    def clean_up(self) -> None:
        """Free the others, who may be waiting for this rank."""
        if not dist.is_initialized():
            return
        try:
            for group in list(dist.distributed_c10d._world.pg_map):
                if hasattr(group, "abort"):
                    group.abort()
            dist.destroy_process_group()
        except Exception:
            traceback.print_exc()

    def serve(self) -> None:
        """Answer the test process until it leaves."""
        self.connection.send((self.rank, self.size, os.getpid()))
        while True:
            try:
                code, after = self.connection.recv()
            except EOFError:
                return
            self.connection.send(self.run(code, after))
            gc.collect(0)


def story_of(error: BaseException) -> str:
    """Return the lines of a traceback that are the program's or the backend's, and the last."""
    frames = traceback.extract_tb(error.__traceback__)
    told = [
        f"  {frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
        for place, frame in enumerate(frames, 1)
        if frame.filename == "<program>" or BACKEND in frame.filename or place == len(frames)
    ]
    return "\n".join([*told, f"{type(error).__name__}: {error}"])


def connect(address: str) -> Connection:
    return Client(address, "AF_UNIX")


def dump_to(folder: str, rank: int) -> None:
    """Write the stacks of all threads to a file of the folder when SIGUSR1 comes."""
    file = open(os.path.join(folder, f"stacks.{rank}"), "w")  # noqa: SIM115 (open for good)
    faulthandler.register(signal.SIGUSR1, file, all_threads=True)


def over_mpi(address: str, plants: list[str]) -> None:
    """Be a rank that mpiexec has started."""
    from torch_mpi4py import MPI

    from .planted import PLANTED

    for name in plants:
        PLANTED[name]()
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    dump_to(os.path.dirname(address), rank)
    Rank(connect(address), "mpi4py", None, rank, size).serve()


def over_gloo(address: str, size: int) -> None:
    """Fork the ranks, so that torch is imported once."""
    folder = os.path.dirname(address)
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            dump_to(folder, rank)
            store = dist.FileStore(os.path.join(folder, "store"), size)
            Rank(connect(address), "gloo", store, rank, size).serve()
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()
    if sys.argv[1] == "gloo":
        over_gloo(sys.argv[2], int(sys.argv[3]))
    else:
        over_mpi(sys.argv[2], sys.argv[3:])
