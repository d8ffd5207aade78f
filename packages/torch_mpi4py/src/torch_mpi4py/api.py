"""The public names of the package; importing this module starts MPI."""

# ruff: noqa: F401

# Import it before there is a group: its functions keep the default group that exists at their
# import as a default argument, permanently. Making an optimizer would import it too.
import torch.distributed.nn.functional

from .comm.guarded_comm import GuardedComm, library, renew_world, world
from .core.errors import (
    ClosedGroupError,
    CommunicationError,
    DeadlineError,
    DeliveryError,
    MismatchError,
    RankFailedError,
    RevokedError,
)
from .core.runtime import MPI
from .emulation.link_emulation import emulated_link
from .exits import at_exit
from .faults.deaths import has_ulfm
from .group import compiling, functional_messages, futures
from .group.group_creation import create_group
from .group.missing_ranks import monitored_barrier
from .group.process_group import MPIProcessGroup
from .group.rendezvous import rendezvous
from .group.shrinking import Shrunk, shrink
from .log import heartbeat, other_groups
from .tools.traffic import Traffic

at_exit.install()
compiling.keep_dynamo_out()
functional_messages.install()
heartbeat.at_each_beat += (other_groups.note, futures.relieve_all)
