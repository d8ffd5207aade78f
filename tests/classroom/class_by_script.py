"""Ten learners in real kernels, who get on with lesson 00 as learners do.

``python -m tests.classroom.class_by_script FOLDER`` writes the page while one of them hangs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from course_lib.classroom import __main__ as command
from course_lib.classroom import reading
from course_lib.teaching import lessons, mistakes
from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked
from tests.lab_server import wait_until

WITHIN_S = 120
NEIGHBOURS, MY_SHARE, ACCURACY = "00.neighbours", "00.my_share", "00.global_accuracy"
IDS = [NEIGHBOURS, MY_SHARE, ACCURACY]
IMPORTS = "from course_lib.teaching import check, hint, solution"
WAITS = """\
%%px
def global_accuracy(comm, right, total):
    if comm.rank == 1:
        comm.recv(source=0, tag=7)
    return comm.allreduce(right) / comm.allreduce(total)
"""


class Learner:
    """A learner's kernel, whose notebook is in a workspace of their own."""

    def __init__(self, folder: Path, name: str, shared: Path | str) -> None:
        workspace = folder / name / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        variables = {"COURSE_WORKSPACE": f"{workspace}", "COURSE_CLASS": f"{shared}"}
        variables |= {"COURSE_CLASS_NAME": name, "HOME": f"{folder / name}"}
        self.name, self.workspace = name, workspace
        # Sockets in a folder, whose path has to be short: another process may take one of the ports
        # that a manager has chosen for its kernel, before the kernel does.
        self._sockets = tempfile.TemporaryDirectory(prefix="kernel-")
        connection_file = f"{self._sockets.name}/kernel.json"
        self.manager = KernelManager(transport="ipc", connection_file=connection_file)
        self.manager.start_kernel(cwd=f"{workspace}", env=os.environ | variables)
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WITHIN_S)

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._sockets.cleanup()

    def kill(self) -> None:
        """As when the machine has no memory left."""
        self.manager.signal_kernel(9)

    def start(self, code: str) -> None:
        """Run a cell, and don't wait for it."""
        self.client.execute(code)

    def run(self, *cells: str) -> str:
        """Run cells; return what they printed, and the name of what they raised."""
        printed = ""

        def keep(message: dict) -> None:
            nonlocal printed
            content = message["content"]
            printed += content.get("text", "") + content.get("ename", "")

        for code in cells:
            self.client.execute_interactive(code, output_hook=keep, timeout=WITHIN_S)
        return printed


def right(id: str) -> list[str]:
    """Return the cells of a learner who solves an exercise."""
    return [unmarked(exercise_cell(id)), f"check({id!r})"]


def wrong(id: str, mistake: str) -> list[str]:
    page = mistakes.read(lessons.NOTEBOOKS / f"lesson_{id.partition('.')[0]}" / "mistakes.md")
    return [page.wrong[id][mistake], f"check({id!r})"]


def endless(id: str) -> list[str]:
    """Return the cells of a learner whose function never returns."""
    name = id.partition(".")[2]
    code = f"import time\ndef {name}(*given):\n    time.sleep(600)"
    return [code, f"check({id!r}, deadline=600)"]  # longer than a busy machine needs for the rest


@contextmanager
def ten_learners(folder: Path, shared: Path) -> Iterator[dict[str, Learner]]:
    """Give ten learners after ten minutes: two have a cell that runs on, and one has hung."""
    names = ("ada", "ben", "cleo", "dan", "eva", "fay", "gus", "hal", "ida", "jon")
    with ExitStack() as ends:
        those: dict[str, Learner] = {}
        for name in names:
            those[name] = Learner(folder, name, shared)
            ends.callback(those[name].end)
        ada, ben, cleo, dan, eva, fay, gus, hal, ida, jon = those.values()
        for learner in (ada, ben, cleo, dan, eva, fay, gus, hal, ida, jon):
            assert "Your teacher can see" in learner.run(IMPORTS)
        ada.run(*right(NEIGHBOURS), *right(MY_SHARE))
        ben.run(*wrong(NEIGHBOURS, "falls-off-the-end"), *right(NEIGHBOURS))
        ben.run(*wrong(MY_SHARE, "drops-the-rest"), f"hint({MY_SHARE!r})")
        ben.run(*wrong(MY_SHARE, "drops-the-rest"), f"hint({MY_SHARE!r})", f"hint({MY_SHARE!r})")
        ben.run(*wrong(MY_SHARE, "uneven"))
        cleo.run(*right(NEIGHBOURS), *wrong(MY_SHARE, "drops-the-rest"))
        dan.run(f"solution({NEIGHBOURS!r})", *right(NEIGHBOURS))
        eva.run(*right(NEIGHBOURS), *right(MY_SHARE))
        eva.run("from course_lib.cluster import start_cluster\ncluster = start_cluster(n=2)")
        eva.run("%%px\nfrom course_lib.teaching import check", WAITS, f"check({ACCURACY!r})")
        fay.run(*right(NEIGHBOURS), "def my_share(*given):\n    1 / 0", f"check({MY_SHARE!r})")
        gus.run(*wrong(NEIGHBOURS, "falls-off-the-end"), f"hint({NEIGHBOURS!r})")
        second = Learner(folder, "hal", shared)
        ends.callback(second.end)
        second.run(IMPORTS, *right(NEIGHBOURS))
        hal.run(*wrong(MY_SHARE, "uneven"))
        jon.run(endless(MY_SHARE)[0])
        jon.start(endless(MY_SHARE)[1])
        eva.start("%%px --limit 300\nglobal_accuracy(comm, 3, 4)")
        yield those


def row(shared: Path, name: str) -> reading.Learner:
    """Return a learner's row of the page; an empty one if there is none."""
    found = {learner.name: learner for learner in reading.shared(shared, IDS)}
    return found.get(name, reading.Learner(name))


def hangs(shared: Path, name: str) -> bool:
    running = row(shared, name).running
    return running is not None and running.hangs


def main(folder: Path) -> None:
    """Write the page of ten learners, at a moment at which one of them hangs."""
    shared = folder / "shared"
    shared.mkdir(parents=True)
    began = time.monotonic()
    with ten_learners(folder, shared):
        wait_until(lambda: hangs(shared, "eva"), WITHIN_S, "eva's hang")
        command.main([f"{shared}", "--once", "--out", f"{folder / 'class.html'}"])
    print(f"after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
