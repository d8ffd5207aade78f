"""Methods that torch declares for every process group and that ours does not support.

Torch's own would look for a backend in C++, and some would keep a hook that is never called. Here,
each call raises an error that says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def refused(name: str, why: str) -> Callable[..., NoReturn]:
    """Return a method that raises NotImplementedError and says why."""

    def method(group: Any, *given: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(f"{name}: {why}")

    method.__name__ = name
    return method


_NO_HOOKS = "mpi4py does not support hooks; torch_mpi4py.log.events records every operation"
_NO_PEERS = "mpi4py cannot add ranks to a group; torch_mpi4py.shrink() leaves out dead ones"


class RefusedMethods:
    """The methods that a group refuses; this class comes before torch's own in its bases."""

    supports_reconfigure = False
    supports_window = False

    _register_on_completion_hook = refused(
        "_register_on_completion_hook",
        "only NCCL calls a hook when an operation completes; use work.get_future().then()",
    )
    # Since torch 2.14:
    register_pre_hook = refused("register_pre_hook", _NO_HOOKS)
    unregister_pre_hook = refused("unregister_pre_hook", _NO_HOOKS)
    register_post_hook = refused("register_post_hook", _NO_HOOKS)
    unregister_post_hook = refused("unregister_post_hook", _NO_HOOKS)
    register_abort_hook = refused("register_abort_hook", _NO_HOOKS)
    unregister_abort_hook = refused("unregister_abort_hook", _NO_HOOKS)
    get_reconfigure_handle = refused("get_reconfigure_handle", _NO_PEERS)
    reconfigure = refused("reconfigure", _NO_PEERS)
    new_window = refused(
        "new_window", "mpi4py does not support windows; use MPI's, with torch_mpi4py.world()"
    )
