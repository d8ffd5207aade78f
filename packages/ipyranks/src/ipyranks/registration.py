"""Tells ipyparallel's controller that an engine has ended."""

from __future__ import annotations

import json

from .runtime_dir import RuntimeDir


def unregister(directory: RuntimeDir, rank: int) -> None:
    """Tell the controller that an engine has ended, so that no client waits for its results.

    This is what ipyparallel's nanny processes do, one beside each engine; the keeper does it
    for all of them.
    """
    import zmq
    from ipyparallel import util
    from jupyter_client.session import Session

    info = json.loads(directory.engine_file.read_text())
    session = Session(
        key=info["key"].encode(),
        signature_scheme=info["signature_scheme"],
        packer=info["pack"],
        unpacker=info["unpack"],
    )
    registration: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
    registration.LINGER = 3000  # ms
    key = info.get("curve_serverkey")
    util.connect(
        registration,
        f"{info['interface']}:{info['registration']}",
        curve_serverkey=key and key.encode(),
    )
    session.send(registration, "unregistration_request", content={"id": rank})
    registration.close()
