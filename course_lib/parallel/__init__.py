"""The algorithms that turn one training loop into one on many ranks.

- ``initial_weights``: every replica starts from one rank's parameters and buffers,
- ``gradient_sync``: replicas average their gradients,
- ``invariants``: what must hold on all ranks, checked on all ranks,
- ``batch_norm``: batch normalisation over the samples of all ranks,
- ``all_reduces``: five all-reduces made of sends and receives,
- ``parameter_server``: asynchronous and synchronous training with a server,
- ``data_parallel``: the steps of DataParallel, each by itself,
- ``launching``: one program for mpiexec, torchrun and a single process.

``flat_tensors``, ``agreement``, ``replica`` and ``arguments`` are what these share.

Importing this package imports none of them.
"""
