"""One rank keeps the model, the others fetch it, compute, and send gradients.

On every rank of one process group (backend mpi4py), after the same imports::

    if dist.get_rank() == 0:
        server = Server(model, optimizer, mode=Asynchronous(), stop=Stop(steps=200))
        record = server.run()
    else:
        worker = Worker(model, nn.functional.cross_entropy, batches)
        worker_record = worker.run()

What is said, by every worker for every batch::

    worker                              server
      |  hello                            |
      |---------------------------------->|  first come, first served
      |             ready for you         |
      |<----------------------------------|
      |             parameters (1 message)|
      |<----------------------------------|
      | computes                          |
      |  gradient: version, step, samples |
      |---------------------------------->|
      |  loss and all layers (1 message)  |
      |---------------------------------->|  updates

Instead of "ready" the answer may be "stop"; a worker whose batches are used up says "bye".

Server side:

- ``Server(model, optimizer, *, workers=None, mode=Asynchronous(), rate=constant, stop=Stop(),
  group=None, snapshots=0, timeout=None)``; ``.run() -> Record``; ``.version``, ``.record``.
- modes: ``Synchronous(wait_for=None)``, ``Asynchronous()``, ``BoundedStaleness(bound)``.
- rates: ``constant``, ``over_staleness``, ``schedule(factor, rule=constant)``; any function
  ``(rate, step, staleness) -> rate`` will do.
- ``Stop(steps=, epochs=, samples_per_epoch=, workers=, seconds=, when=)``.

Worker side:

- ``Worker(model, loss_function, batches, *, group=None, server=0, slowdown=0.0,
  step_seconds=0.0, timeout=None)``; ``.run() -> WorkerRecord``. ``batches`` yields
  (inputs, targets) and may be endless; ``loss_function(outputs, targets)``.
- ``shuffled_batches(data, batch_size, *, seed, epochs=None)`` makes such batches.
- ``slowdown`` seconds are slept on top of each gradient (a straggler); ``step_seconds`` is the
  least time a gradient takes, so that simulated devices do not share cores.

Afterwards (``record`` may travel to a notebook's kernel, which needs no MPI for it):

- ``record.updates``: ``Update(version, gradients, rates, seconds)`` with ``.worker``,
  ``.workers``, ``.computed_at``, ``.staleness``, ``.loss``, ``.samples``, ``.rate``,
  ``.arrived``, ``.served``; ``.gradients`` of ``Gradient(worker, step, computed_at, staleness,
  loss, samples, waited, computing, sent, arrived, served, dropped)``;
- ``record.gradients`` (all that were used), ``.staleness``, ``.losses``, ``.waiting``
  (worker -> seconds), ``.queue_lengths``, ``.dropped``, ``.died``, ``.steps_by_worker``,
  ``.seconds``, ``.snapshots`` of (version, seconds, parameters);
- ``record.events``: ``Event(kind, source, destination, sent, received, version, step)``, kinds
  hello, ready, gradient, update, dropped, stop, bye, died; times in seconds since the server's
  start, for a sequence diagram;
- ``load_parameters(model, record.final)`` (or ``.initial``, or a snapshot's);
- ``replay(record, model, optimizer, loss_function, {worker: batches})`` makes the recorded
  updates again in one process; the result equals ``record.final`` bit for bit.

Parameters travel and buffers do not: all ranks need a model with the same buffers, which stay
what they are. Other ones are refused.

A worker that is killed does not stop the others (Open MPI with fault tolerance, which the
course's launcher switches on); when the server dies, every worker raises RankFailedError.
"""

from .batches import shuffled_batches
from .modes import Asynchronous, BoundedStaleness, Synchronous
from .rates import constant, over_staleness, schedule
from .record import Event, Gradient, Record, Update, WorkerRecord
from .replay import load_parameters, replay
from .server import Server
from .stop import Stop
from .worker import Worker

__all__ = [
    "Asynchronous",
    "BoundedStaleness",
    "Event",
    "Gradient",
    "Record",
    "Server",
    "Stop",
    "Synchronous",
    "Update",
    "Worker",
    "WorkerRecord",
    "constant",
    "load_parameters",
    "over_staleness",
    "replay",
    "schedule",
    "shuffled_batches",
]
