"""The one idea: every picture of the course comes from here, so that they all look and read alike.

- :func:`collective`: who holds what before and after a collective;
- :func:`point_to_point`: messages between rank lanes in time, blocked calls, deadlocks;
- :func:`who_sends_to_whom`: the same without time;
- :func:`measured_and_predicted`: measured points over a predicted line;
- :func:`curves`: loss and accuracy of several training runs;
- :func:`sequence`: recorded messages between columns of ranks, who works and who waits;
- :func:`histogram`: how often each whole number came, and the mean;
- :func:`buckets`: gradients becoming ready and buckets on their way in a backward pass;
- :func:`timeline`: who was busy with what and when, idle time hatched; :func:`idle_share`;
- :func:`computational_graph`: values forward and derivatives back through a loss;
- :func:`split_gradient`: a batch cut into shards, their gradients summed;
- :func:`measured_beside_published`: the runs of several settings, beside published numbers;
- :func:`rank_colour`: the colour of a rank, in your own plots too.
"""

from .buckets import Backward, buckets
from .collectives import collective
from .curves import curves, measured_and_predicted
from .figure import Figure
from .graph import computational_graph
from .histogram import histogram
from .images import images
from .palette import RANK_COLOURS, rank_colour
from .point_to_point import Message, Wait, point_to_point, who_sends_to_whom
from .sequence import sequence
from .shards import split_gradient
from .spread import measured_beside_published
from .timeline import Busy, idle_share, timeline

__all__ = [
    "RANK_COLOURS",
    "Backward",
    "Busy",
    "Figure",
    "Message",
    "Wait",
    "buckets",
    "collective",
    "computational_graph",
    "curves",
    "histogram",
    "idle_share",
    "images",
    "measured_and_predicted",
    "measured_beside_published",
    "point_to_point",
    "rank_colour",
    "sequence",
    "split_gradient",
    "timeline",
    "who_sends_to_whom",
]
