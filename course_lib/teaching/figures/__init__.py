"""Every picture of the course comes from here, so that they all look and read alike.

- :func:`collective`: who holds what before and after a collective;
- :func:`all_reduce_steps`: whose numbers each rank holds after each step of an all-reduce;
- :func:`point_to_point`: messages between rank lanes in time, blocked calls, deadlocks;
- :func:`who_sends_to_whom`: the same without time;
- :func:`measured_and_predicted`: measured points over a predicted line;
- :func:`lines`: predictions far past what was measured, with marked points;
- :func:`efficiencies`: published efficiencies beside predicted ones and their bounds;
- :func:`curves`: loss and accuracy of several training runs;
- :func:`sequence`: recorded messages between columns of ranks, who works and who waits;
- :func:`loss_across_deaths`: a loss curve that goes on with fewer ranks;
- :func:`saving_interval`: time lost to saving and to failures;
- :func:`histogram`: how often each whole number came, and the mean;
- :func:`buckets`: gradients becoming ready and buckets on their way in a backward pass;
- :func:`timeline`: who was busy with what and when, idle time hatched; :func:`idle_share`;
- :func:`traffic`: a matrix of who sent how many messages and bytes to whom;
- :func:`computational_graph`: values forward and derivatives back through a loss;
- :func:`split_gradient`: a batch cut into shards, their gradients summed;
- :func:`measured_beside_published`: the runs of several settings, beside published numbers;
- :func:`simulated_beside_formula`: where shared links make a formula wrong;
- :func:`rank_colour`: the colour of a rank, in your own plots too.
"""

from .all_reduce_steps import all_reduce_steps
from .buckets import Backward, buckets
from .collectives import collective
from .contention import simulated_beside_formula
from .curves import curves, measured_and_predicted
from .deaths import loss_across_deaths, saving_interval
from .figure import Figure
from .graph import computational_graph
from .histogram import histogram
from .images import images
from .lines import efficiencies, lines
from .palette import RANK_COLOURS, rank_colour
from .point_to_point import Message, Wait, point_to_point, who_sends_to_whom
from .sequence import sequence
from .shards import split_gradient
from .spread import measured_beside_published
from .timeline import Busy, idle_share, timeline
from .traffic import traffic

__all__ = [
    "RANK_COLOURS",
    "Backward",
    "Busy",
    "Figure",
    "Message",
    "Wait",
    "all_reduce_steps",
    "buckets",
    "collective",
    "computational_graph",
    "curves",
    "efficiencies",
    "histogram",
    "idle_share",
    "images",
    "lines",
    "loss_across_deaths",
    "measured_and_predicted",
    "measured_beside_published",
    "point_to_point",
    "rank_colour",
    "saving_interval",
    "sequence",
    "simulated_beside_formula",
    "split_gradient",
    "timeline",
    "traffic",
    "who_sends_to_whom",
]
