"""The one idea: the small networks that the lessons train."""

from __future__ import annotations

import itertools

import torch
from torch import nn

__all__ = ["MLP", "LeNet", "parameter_count"]


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
        ValueError: for another size.
    """

    def __init__(self, channels: int = 1, size: int = 28, classes: int = 10) -> None:
        super().__init__()
        if size not in (28, 32):
            raise ValueError(f"LeNet takes images of 28 or 32 pixels a side, not {size}")
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
        return self.classifier(self.features(images))


def parameter_count(model: nn.Module) -> int:
    """Return how many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters())
