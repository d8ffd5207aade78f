"""What the lessons train, and on what.

- ``data``: the digits that come with the course, MNIST, Fashion-MNIST and CIFAR-10,
- ``models``: the MLP, the LeNet and the ResNet of the lessons,
- ``loops``: what every training loop needs, seeds, batches and accuracy,
- ``checkpoint``: stop a run and resume it exactly, on one rank or many,
- ``vision``: torchvision beside a PyTorch that its binary operators do not fit.

Importing this package imports none of them.
"""
