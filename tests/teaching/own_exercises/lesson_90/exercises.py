"""Two exercises that exist for the tests of the machinery alone."""

from __future__ import annotations

from course_lib.teaching.exercise import WrongAnswer, exercise

HINTS = ["a weak hint", "a stronger one", "```python\nnearly the solution\n```"]


@exercise("90.double", function="double", where="notebook", hints=HINTS, deadline=60.0)
def check_double(double) -> str:
    found = double(4)
    if found == 16:
        raise WrongAnswer("squared", number=4, found=found)
    if found != 8:
        raise AssertionError("the check does not know this mistake")
    return "4 became 8."


@exercise("90.total", function="total", where="engines", hints=HINTS, deadline=60.0, sure_on=2)
def check_total(total) -> str:
    from torch_mpi4py import world

    comm = world()
    found = total(comm)
    if found == comm.rank:
        raise WrongAnswer("own-rank", rank=comm.rank)
    if found != sum(range(1, comm.size + 1)):
        raise AssertionError("the check does not know this mistake")
    return "Every rank has the sum."
