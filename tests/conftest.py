"""What all tests share: where the checkout is, and surroundings without a person."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Notebooks print in a fixed order when nobody watches.
os.environ["IPP_NONINTERACTIVE"] = "1"


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the folder of the checkout."""
    return ROOT


# The quick and the basic first: what a later test stands on has been tested before it.
ORDER = ("setup", "training", "mpi", "cluster", "teaching", "lessons", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the folders of tests in the order above."""

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        return ORDER.index(folder) if folder in ORDER else len(ORDER)

    items.sort(key=place)
