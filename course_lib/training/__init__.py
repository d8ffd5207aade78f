"""The one idea: what is trained, free of any question of how it is distributed.

- ``data``: the digits that come with the course, MNIST, Fashion-MNIST and CIFAR-10,
- ``models``: the MLP and the LeNet of the lessons,
- ``loops``: one process's training loop, and evaluation,
- ``history``: loss, accuracy and throughput over the steps of a run,
- ``vision``: torchvision beside a PyTorch that its binary operators do not fit.

Importing this package imports none of them.
"""
