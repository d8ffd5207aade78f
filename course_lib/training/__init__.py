"""What is trained, free of any question of how it is distributed.

- ``data``: the digits that come with the course, MNIST, Fashion-MNIST and CIFAR-10,
- ``models``: the MLP, the LeNet and the ResNet of the lessons,
- ``loops``: one process's training loop, evaluation, and seeds,
- ``schedules``: learning rates for large batches, and warm-up,
- ``history``: loss, accuracy and throughput over the steps of a run,
- ``checkpoint``: stop a run and resume it exactly,
- ``vision``: torchvision beside a PyTorch that its binary operators do not fit.

Importing this package imports none of them.
"""
