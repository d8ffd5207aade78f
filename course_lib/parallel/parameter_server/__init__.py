"""A parameter server: one rank keeps the model, the others compute its gradients.

On every rank of one process group (backend mpi4py), after the same imports::

    if dist.get_rank() == 0:
        record = Server(model, optimizer, mode=Asynchronous(), stop=Stop(steps=200)).run()
    else:
        Worker(model, nn.functional.cross_entropy, batches).run()

The messages, from every worker for every batch::

    worker -> server   hello; the server answers first come, first served, if the mode allows
    server -> worker   ready, and all parameters in one message
    worker -> server   gradient: its version, step and samples; then loss and all layers in one

Instead of "ready" the answer may be "stop"; a worker whose batches are used up says "bye".

- The modes ``Synchronous(wait_for=None)``, ``Asynchronous()`` and ``BoundedStaleness(bound)``
  say who waits for whom; a rate rule such as ``over_staleness`` gives the learning rate of each
  update, and ``Stop(steps=, seconds=, when=)`` ends the run.
- The server's ``Record`` says what happened: updates, staleness, waiting, queue lengths, deaths,
  snapshots. ``load_parameters(model, record.final)`` fills a model from it, and
  ``replay(record, model, optimizer, loss_function, {worker: batches})`` makes the recorded
  updates again in one process; the result equals ``record.final`` bit for bit.
- Parameters travel and buffers do not, so a model with buffers is refused.
- A worker that is killed does not stop the others (Open MPI with fault tolerance, which the
  course's launcher switches on); when the server dies, every worker raises RankFailedError.
"""

from .policies import Asynchronous, BoundedStaleness, Stop, Synchronous, constant, over_staleness
from .record import Record, load_parameters, replay
from .server import Server
from .worker import Worker

__all__ = [
    "Asynchronous",
    "BoundedStaleness",
    "Record",
    "Server",
    "Stop",
    "Synchronous",
    "Worker",
    "constant",
    "load_parameters",
    "over_staleness",
    "replay",
]
