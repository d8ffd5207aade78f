"""Run under mpiexec by test_figures.py: what every rank really holds after each collective.

Rank 0's data is the letter A, rank 1's B, and so on, as in the diagrams. Rank 0 prints one
JSON object: from a collective's name to a list with what each rank holds.
"""

import json
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, p, root = comm.rank, comm.size, int(sys.argv[1])
own = "ABCDEFGH"[rank]
parts = [f"{own}{part}" for part in range(p)]


def plus(one, other):
    """The sum of two letters is written with a plus sign; of two lists, entry by entry."""
    if isinstance(one, list):
        return [plus(a, b) for a, b in zip(one, other, strict=True)]
    return f"{one}+{other}"


results = {
    "broadcast": comm.bcast(own if rank == root else None, root),
    "scatter": comm.scatter(parts if rank == root else None, root),
    "gather": comm.gather(own, root),
    "reduce": comm.reduce(own, plus, root),
    "all_gather": comm.allgather(own),
    "reduce_scatter": comm.allreduce(parts, plus)[rank],
    "all_to_all": comm.alltoall(parts),
    "all_reduce": comm.allreduce(own, plus),
}
everyones = comm.gather(results)
if rank == 0:
    print(json.dumps({name: [ranks[name] for ranks in everyones] for name in results}))
