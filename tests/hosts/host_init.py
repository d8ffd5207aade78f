"""The first process of a virtual host: gives it a name and folders of its own, runs sshd, reaps.

Started by the test-bed in namespaces of its own, so that all else on the host ends with it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path


def main(name: str, folder: Path, checkout: Path) -> None:
    """Make of these namespaces the host ``name``.

    Args:
        name: of the host.
        folder: the test-bed's, with ``hosts-NAME`` and ``sshd-NAME``.
        checkout: what has to be at the same path on every host, also below ``/tmp``.
    """
    run("hostname", name)
    run("mount", "--bind", checkout, "/mnt")
    for own in ("/tmp", "/dev/shm"):
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "own", own)
    checkout.mkdir(parents=True, exist_ok=True)  # on a host of their own, if it is below /tmp
    run("mount", "--bind", "/mnt", checkout)
    run("umount", "/mnt")
    (folder / f"hostname-{name}").write_text(f"{name}\n")
    run("mount", "--bind", folder / f"hostname-{name}", "/etc/hostname")
    run("mount", "--bind", folder / f"hosts-{name}", "/etc/hosts")
    run("ip", "link", "set", "lo", "up")
    print("ready", flush=True)
    sys.stdin.readline()  # the network is there
    sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", folder / f"sshd-{name}"])
    print(sshd.pid, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        signal.sigwait([signal.SIGCHLD])
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, timeout=10)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
