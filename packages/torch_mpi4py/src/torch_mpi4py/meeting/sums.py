"""What all-reduces without MPI's collectives have in common, wherever the numbers are combined."""

from __future__ import annotations

from ..core.call import Call, mismatch
from ..core.runtime import MPI
from ..faults import deadlines


class Sums:
    """Does all-reduces of one communicator; a plan is given it in place of the communicator.

    One plan runs at a time.

    Attributes:
        most: how many numbers it combines.
        work: the collective that is run.
        call: the description on which all ranks must agree.
        signature: of that call, as for :meth:`.Arrivals.meet`.
    """

    most: int
    work: deadlines.Operation
    call: Call
    signature: int

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._rank = comm.Get_rank()
        self._size = comm.Get_size()

    def close(self) -> None:
        """Give up what it holds."""

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def Allreduce(self, _in_place: object, message: list, op: MPI.Op) -> None:
        """Combine all ranks' numbers in place, with arguments as of the communicator's method.

        Raises:
            MismatchError: if the ranks have called different collectives.
            CommunicationError: if a rank does not come.
        """
        raise NotImplementedError

    def _mismatch(self) -> Exception:
        work = self.work
        return deadlines.call(self._comm, work.what, work.seconds, mismatch, self._comm, self.call)
