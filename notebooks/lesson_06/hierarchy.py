"""Inside a node bytes are cheap, between nodes dear; so sum inside first.

k ranks on each of h nodes, n bytes, one network card a node that its k ranks share. Three ways:

- flat ring: each of 2(p-1) steps waits for its slowest link, the one between nodes, which one
  message a step crosses in each direction: 2(p-1) alpha_b + 2(p-1)/p n beta_b.
- two levels: reduce-scatter inside, k all-reduces of n/k between the nodes at the same time (they
  share the card), all-gather inside. Source: the scheme of Goyal et al. 2017, section 4, in the
  form of Horovod's hierarchical all-reduce.
- leaders: reduce to one rank a node, all-reduce of n between them, broadcast inside (trees).

Times in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.teaching.cost.all_reduce import cost
from course_lib.teaching.cost.checked import count
from course_lib.teaching.cost.link import Link

__all__ = ["Hierarchy"]


@dataclass(frozen=True)
class Hierarchy:
    """A cluster of like nodes.

    Attributes:
        nodes: h.
        ranks_per_node: k.
        inside: the link between two ranks of a node.
        between: the link between two nodes; its bandwidth is that of a whole node.
    """

    nodes: int
    ranks_per_node: int
    inside: Link
    between: Link

    def __post_init__(self) -> None:
        count("nodes", self.nodes)
        count("ranks_per_node", self.ranks_per_node)

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def flat_ring(self, size_bytes: float) -> float:
        """Return the seconds of one ring through all ranks, node by node."""
        if self.nodes == 1:
            return cost("ring", self.ranks, size_bytes).seconds(self.inside)
        whole = cost("ring", self.ranks, size_bytes)
        if self.ranks_per_node == 1:
            return whole.seconds(self.between)
        # Every step lasts as long as the slower kind of link needs for one chunk.
        slowest = Link(
            max(self.inside.latency, self.between.latency),
            min(self.inside.bandwidth, self.between.bandwidth),
            min(self.inside.reduce_rate, self.between.reduce_rate),
        )
        return whole.seconds(slowest)

    def two_levels(self, size_bytes: float, algorithm: str = "ring") -> float:
        """Return the seconds of reduce-scatter inside, all-reduces between, all-gather inside.

        Args:
            algorithm: of the all-reduce between nodes.
        """
        # A ring all-reduce is exactly a reduce-scatter and an all-gather.
        within = cost("ring", self.ranks_per_node, size_bytes).seconds(self.inside)
        share = self.between.shared_by(self.ranks_per_node)
        part = size_bytes / self.ranks_per_node
        return within + cost(algorithm, self.nodes, part).seconds(share)

    def leaders(self, size_bytes: float, algorithm: str = "ring") -> float:
        """Return the seconds of reduce to a leader, all-reduce of leaders, broadcast."""
        within = cost("tree", self.ranks_per_node, size_bytes).seconds(self.inside)
        return within + cost(algorithm, self.nodes, size_bytes).seconds(self.between)
