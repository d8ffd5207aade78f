"""The models and data sets of the lessons, and their training.

- ``data``: the digits that come with the course, MNIST, Fashion-MNIST and CIFAR-10,
- ``models``: the MLP, the LeNet and the ResNet of the lessons,
- ``loops``: the parts of every training loop: seeds, batches and accuracy,
- ``checkpoint``: stop a run and resume it exactly, on one rank or many,
- ``vision``: torchvision beside a PyTorch that its binary operators do not fit.

Importing this package imports none of them.
"""
