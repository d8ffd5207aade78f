"""A second network between two virtual hosts, on which each frame takes a while.

``python -m tests.hosts.relay PID PID SECONDS``: each host, given by its first process, gets a
device ``late`` that is a file here (a TAP), and what comes out of one goes into the other so many
seconds later. It ends with its standard input.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import struct
import subprocess
import sys
import threading
import time

DEVICE = "late"
NETWORK = "10.78.0."
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME = 65_536


def device(init: int, address: str) -> int:
    """Make the device on the host whose first process is ``init``; return its file."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{init}/ns/net") as network:
        if libc.setns(network.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH14x", DEVICE.encode(), _TAP_WITHOUT_HEADER))
    for words in (f"address add {address}/24 dev {DEVICE}", f"link set {DEVICE} up"):
        subprocess.run(["ip", *words.split()], check=True, timeout=10)
    return tap


def carry(source: int, target: int, seconds: float) -> None:
    """Start to carry frames one way."""
    under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def take() -> None:
        while True:
            frame = os.read(source, _FRAME)
            under_way.put((time.monotonic() + seconds, frame))

    def deliver() -> None:
        while True:
            due, frame = under_way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            os.write(target, frame)

    for work in (take, deliver):
        threading.Thread(target=work, daemon=True).start()


def main(first: int, second: int, seconds: float) -> None:
    one, other = device(first, f"{NETWORK}1"), device(second, f"{NETWORK}2")
    carry(one, other, seconds)
    carry(other, one, seconds)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
