"""A bucket may travel while earlier layers still compute their gradients.

Gradients get ready from the last layer to the first. A bucket leaves when its last gradient is
ready and the bucket before it has arrived; what is still under way when backward ends is exposed.
Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
PVLDB 13(12), 2020, sections 3.2.2 (bucketing) and 3.2.3 (overlap). Here communication does not
slow computation down, which real machines do not promise. Times in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.teaching.cost.checked import at_least, positive

__all__ = ["Backward", "Bucket", "backward_with_buckets", "best_bucket", "largest_overlap_gain"]


@dataclass(frozen=True)
class Bucket:
    """One bucket on its way.

    Attributes:
        size: bytes.
        ready, start, end: seconds since backward began.
    """

    size: float
    ready: float
    start: float
    end: float


@dataclass(frozen=True)
class Backward:
    """A backward pass and its communication.

    Attributes:
        compute: seconds backward computes.
        seconds: until both are done.
        exposed: seconds of communication that nothing hides: ``seconds - compute``.
        communication: seconds all buckets take together.
        buckets: in the order they leave.
    """

    compute: float
    seconds: float
    exposed: float
    communication: float
    buckets: tuple[Bucket, ...]


def backward_with_buckets(
    layer_seconds: Sequence[float],
    layer_bytes: Sequence[float],
    bucket_bytes: float,
    all_reduce_seconds: Callable[[float], float],
) -> Backward:
    """Return when each bucket travels.

    A layer is never split; a bucket closes as soon as it holds ``bucket_bytes`` or more, and the
    last closes when backward ends.

    Args:
        layer_seconds: backward of each layer in seconds, in the order in which backward runs
            (the last layer first).
        layer_bytes: bytes of its gradients, same order.
        bucket_bytes: 0 sends each layer by itself; infinity is one bucket, hence no overlap.
        all_reduce_seconds: seconds to all-reduce so many bytes, e.g.
            ``lambda n: cost("ring", 8, n).seconds(link)``.
    """
    if len(layer_seconds) != len(layer_bytes) or not len(layer_seconds):
        raise ValueError("there must be one time and one size for each of at least one layer")
    if not bucket_bytes >= 0:
        raise ValueError(f"bucket_bytes must be at least 0, not {bucket_bytes!r}")
    buckets: list[Bucket] = []
    now, held, free = 0.0, 0.0, 0.0
    last = len(layer_seconds) - 1
    for layer, (duration, size) in enumerate(zip(layer_seconds, layer_bytes, strict=True)):
        now += at_least("layer_seconds", duration)
        held += at_least("layer_bytes", size)
        if held and (held >= bucket_bytes or layer == last):
            start = max(now, free)
            free = start + at_least("all_reduce_seconds", all_reduce_seconds(held))
            buckets.append(Bucket(held, now, start, free))
            held = 0.0
    total = max(now, free)
    busy = sum(b.end - b.start for b in buckets)
    return Backward(now, total, total - now, busy, tuple(buckets))


def best_bucket(
    layer_seconds: Sequence[float],
    layer_bytes: Sequence[float],
    candidates: Sequence[float],
    all_reduce_seconds: Callable[[float], float],
) -> float:
    """Return the bucket size in bytes, of ``candidates``, with the shortest backward.

    Raises:
        ValueError: if there are no candidates, or an argument makes no sense.
    """
    if not len(candidates):
        raise ValueError("candidates must hold at least one bucket size")
    return min(
        candidates,
        key=lambda size: (
            backward_with_buckets(layer_seconds, layer_bytes, size, all_reduce_seconds).seconds
        ),
    )


def largest_overlap_gain(forward: float, backward: float, communication: float) -> float:
    """Return the part of a step that perfect overlap would save, between 0 and 1.

    Without: f + b + c. With: f + max(b, c). Saved: min(b, c) / (f + b + c). With b = 2 f it is
    largest at c = b, and then 40 %. All three in seconds.
    """
    at_least("forward", forward)
    hidden = min(at_least("backward", backward), at_least("communication", communication))
    total = positive("forward + backward + communication", forward + backward + communication)
    return hidden / total
