"""A prediction is worth what its inputs are; here they stand with their sources.

Nothing in this table is adjusted to make a prediction fit. What no source states is listed in
``ASSUMPTIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ASSUMPTIONS", "LATENCY", "RUNS", "SOURCES", "Assumption", "Run"]

SOURCES = {
    "Goyal": 'Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, '
    "arXiv:1706.02677, section 4 (hardware) and section 5.5 with figures 7 and 8 (run time)",
    "Horovod": "Horovod, docs/benchmarks.rst and README: 128 servers of 4 Pascal GPUs, RoCE at "
    '25 Gbit/s; see Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in '
    'TensorFlow", 2018, arXiv:1802.05799',
    "Horovod-128": "Horovod README of late 2017: 32 servers of 4 Pascal GPUs, RoCE at 25 Gbit/s",
    "Horovod-16": "Horovod README before 2017-10-17 (the table that pull request #44 removes), "
    "row 'RDMA Horovod (allreduce on GPU with NCCL)': images/s on 1 and on 16 GPUs, batch size 64",
}

LATENCY = 10e-6
_FUSION = 64 * 2**20


@dataclass(frozen=True)
class Assumption:
    """Something the sources do not say, and what is taken instead."""

    what: str
    value: str
    why: str


ASSUMPTIONS = (
    Assumption(
        "latency between GPUs of two nodes",
        f"{LATENCY * 1e6:g} us a message",
        "not published; an order of magnitude. The report shows 5 and 20 us beside it",
    ),
    Assumption(
        "usable bandwidth",
        "the card's line rate, nothing off for protocol",
        "upper bound of what can be reached; makes every prediction too good",
    ),
    Assumption(
        "all-reduce of Horovod",
        "one flat ring over all GPUs, limited by the card of each node; one call for each 64 MiB",
        "NCCL 2 in 2017 had rings only; 64 MiB was Horovod's default fusion buffer then. How the "
        "runs really packed their buffers is not published; this was chosen knowing that the "
        "published efficiency of VGG-16 falls with the ring's length, so those rows are not blind",
    ),
    Assumption(
        "all-reduce of Goyal et al.",
        "sum inside a node, then Rabenseifner between the 32 leaders; one call",
        "section 4 describes this (halving and doubling between servers). The step inside a node "
        "is part of the published baseline of 8 GPUs, so only the network counts",
    ),
    Assumption(
        "352 GPUs of Goyal et al. (44 servers, no power of two)",
        "Rabenseifner's fold with whole buffers",
        "section 4 names binary blocks instead, which are cheaper: its lower bound is too low",
    ),
    Assumption(
        "single-GPU speed at 128 and 512 GPUs",
        "that of the 16-GPU table",
        "the later charts do not print theirs; it may have been a newer TensorFlow",
    ),
    Assumption(
        "step of 8 GPUs in Goyal et al.",
        "16 min an epoch of 1.28 million images at 256 a step: 0.192 s",
        "section 5.5 says 'over 16 minutes', so it is a lower bound; figure 7 shows no number",
    ),
    Assumption(
        "hidden communication",
        "one exposed fraction for all models, sizes and both systems",
        "the only fitted number, from the three 16-GPU runs alone. Every other row is a "
        "prediction. Without it the model only gives the two bounds",
    ),
    Assumption(
        "backward",
        "2/3 of the step's computing",
        "usual count of operations; used for the upper bound only, by perfect overlap",
    ),
    Assumption(
        "stragglers, input, contention between servers",
        "none",
        "nothing published to model them from",
    ),
)


@dataclass(frozen=True)
class Run:
    """One published run.

    Attributes:
        name: as printed in tables.
        source: key of ``SOURCES``.
        ranks: GPUs.
        ranks_per_node: GPUs that share a network card.
        gigabits: Gbit/s of a node's card.
        gradient_bytes: n, float32 gradients, bytes.
        comp_seconds: a step of the baseline, seconds.
        baseline_ranks: GPUs of the run to which the efficiency is relative.
        published: efficiency, between 0 and 1.
        digits: half of the last published digit, between 0 and 1: no prediction can be checked
            more finely than that.
        network: "ring of all" or "Rabenseifner between nodes".
        calls: all-reduces a step.
        calibrates: whether the exposed fraction is fitted to it.
    """

    name: str
    source: str
    ranks: int
    ranks_per_node: int
    gigabits: float
    gradient_bytes: float
    comp_seconds: float
    baseline_ranks: int
    published: float
    digits: float
    network: str
    calls: int = 1
    calibrates: bool = False


# Parameters: Inception V3 as in Keras without the auxiliary head; ResNet-101 as in torchvision;
# VGG-16 from Simonyan and Zisserman 2014, table 2, network D.
_PARAMETERS = {"Inception V3": 23.85e6, "ResNet-101": 44.55e6, "VGG-16": 138e6}
# images/s of one GPU and of 16, batch size 64; efficiencies at 128 and at 512.
_HOROVOD = {
    "Inception V3": (134.4, 2022.6, 0.90, 0.90),
    "ResNet-101": (119.4, 1746.2, 0.90, 0.90),
    "VGG-16": (130.9, 1787.4, 0.79, 0.68),
}


def _horovod(model: str, ranks: int, published: float, source: str) -> Run:
    size = 4 * _PARAMETERS[model]
    return Run(
        f"Horovod, {model}, {ranks} GPUs",
        source,
        ranks,
        4,
        25.0,
        size,
        64 / _HOROVOD[model][0],
        1,
        published,
        0.0005 if ranks == 16 else 0.005,
        "ring of all",
        int(-(-size // _FUSION)),
        ranks == 16,
    )


def _goyal(ranks: int, published: float) -> Run:
    step = 16 * 60 / (1.28e6 / 256)
    return Run(
        f"Goyal et al., ResNet-50, {ranks} GPUs",
        "Goyal",
        ranks,
        8,
        50.0,
        100e6,
        step,
        8,
        published,
        0.005,
        "Rabenseifner between nodes",
    )


RUNS = (
    *(_horovod(m, 16, all16 / one / 16, "Horovod-16") for m, (one, all16, *_) in _HOROVOD.items()),
    *(_horovod(m, 128, at128, "Horovod-128") for m, (_, _, at128, _) in _HOROVOD.items()),
    *(_horovod(m, 512, at512, "Horovod") for m, (_, _, _, at512) in _HOROVOD.items()),
    _goyal(256, 0.90),
    # "increases only 12% while scaling the minibatch size by 44x": 352 GPUs, 1 / 1.12.
    _goyal(352, 1 / 1.12),
)
