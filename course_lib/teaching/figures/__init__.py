"""The figures of several lessons. Figures of only one lesson are in its room.

- :func:`collective`: who holds what before and after a collective;
- :func:`point_to_point`: messages between rank lanes in time, blocked calls, deadlocks;
- :func:`who_sends_to_whom`: the same without time;
- :func:`measured_and_predicted`: measured points over a predicted line;
- :func:`curves`: loss and accuracy of several training runs;
- :func:`buckets`: gradients becoming ready and buckets on their way in a backward pass;
- :func:`timeline`: who was busy with what and when, idle time hatched; :func:`idle_share`;
- :func:`traffic`: a matrix of who sent how many messages and bytes to whom;
- :func:`rank_colour`: the colour of a rank, in your own plots too.

All figures look and read alike: plots are made by :func:`.curves.draw` and finished by
:func:`.curves.finish_axes`, diagrams consist of the shapes of a :class:`.figure.Drawing`, and
colours come from :mod:`.palette`.
"""

from .buckets import Backward, buckets
from .collectives import collective
from .curves import curves, measured_and_predicted
from .figure import Figure
from .palette import RANK_COLOURS, rank_colour
from .point_to_point import Message, Wait, point_to_point, who_sends_to_whom
from .timeline import Busy, idle_share, timeline
from .traffic import traffic

__all__ = [
    "RANK_COLOURS",
    "Backward",
    "Busy",
    "Figure",
    "Message",
    "Wait",
    "buckets",
    "collective",
    "curves",
    "idle_share",
    "measured_and_predicted",
    "point_to_point",
    "rank_colour",
    "timeline",
    "traffic",
    "who_sends_to_whom",
]
