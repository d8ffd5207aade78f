"""The small networks that the lessons train, their size, and a checksum of their weights."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    """Fully connected network with ReLU between its layers.

    Args:
        inputs: numbers per sample; images are flattened.
        hidden: width of each hidden layer.
        classes: number of classes.
    """

    def __init__(
        self, inputs: int = 64, hidden: tuple[int, ...] = (128,), classes: int = 10
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for wide, narrow in itertools.pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits float32 (N, classes) for images (N, ...)."""
        return self.layers(images)


class LeNet(nn.Module):
    """LeNet-5's layout with ReLU and max pooling: two convolutions, three linear layers.

    Source: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document
    recognition", Proceedings of the IEEE 86(11), 1998, section II.B. The original has 32 x 32
    input, sub-sampling with trained factors, sigmoids and partly connected maps.

    Args:
        channels: channels of an image.
        size: height and width of an image in pixels, 28 (padded by 2) or 32.
        classes: number of classes.

    Raises:
        ValueError: for another size, here or in ``forward``.
    """

    def __init__(self, channels: int = 1, size: int = 28, classes: int = 10) -> None:
        super().__init__()
        if size not in (28, 32):
            raise ValueError(f"LeNet takes images of 28 or 32 pixels a side, not {size}")
        self.size = size
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, kernel_size=5, padding=(32 - size) // 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits float32 (N, classes) for images (N, channels, size, size)."""
        if images.shape[-2:] != (self.size, self.size):
            raise ValueError(
                f"this LeNet takes images of {self.size} x {self.size} pixels, not "
                f"{' x '.join(map(str, images.shape[-2:]))}; build it with size=28 or size=32"
            )
        return self.classifier(self.features(images))


class _Residual(nn.Module):
    """Two 3 x 3 convolutions, added to their input."""

    def __init__(self, wide: int, out: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(wide, out, 3, stride=stride, padding=1, bias=False)
        self.first_norm = norm(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.second_norm = norm(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or wide != out:
            projection = nn.Conv2d(wide, out, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(out))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(maps)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(maps))


class ResNet(nn.Module):
    """Residual network for small images, of any size from 8 pixels a side.

    Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015,
    arXiv:1512.03385, section 4.2: a 3 x 3 convolution, stages of residual blocks with 16, 32 and
    64 maps of which each but the first halves the size, global average pooling, one linear
    layer; ``blocks=(n, n, n)`` has 6n + 2 layers. Where the size changes the shortcut is a
    1 x 1 convolution (their option B; for small images they take option A, zeros).

    Args:
        blocks: residual blocks in each stage.
        channels: channels of an image.
        classes: number of classes.
        width: maps of the first stage; each further one has twice as many.
        norm: makes the normalisation of a number of maps, e.g. ``torch.nn.BatchNorm2d``, or
            ``lambda maps: torch.nn.GroupNorm(4, maps)``.

    Raises:
        ValueError: if there is no stage, or one without a block.
    """

    def __init__(
        self,
        blocks: Sequence[int] = (1, 1, 1),
        channels: int = 1,
        classes: int = 10,
        width: int = 16,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        if not blocks or min(blocks) < 1:
            raise ValueError(f"each stage needs at least one block, not blocks={tuple(blocks)}")
        stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
        layers: list[nn.Module] = stem
        maps = width
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(_Residual(maps, out, stride, norm))
                maps = out
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(maps, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits float32 (N, classes) for images (N, channels, height, width)."""
        return self.classifier(self.features(images).mean(dim=(2, 3)))


def parameter_count(model: nn.Module) -> int:
    """Return how many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def checksum(model: nn.Module) -> str:
    """Return 16 hexadecimal digits that are equal if and only if (SHA-256) all bits are equal.

    Over names and bytes of parameters and buffers, wherever the tensors are.
    """
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            digest.update(name.removeprefix("module.").encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
