"""After hundreds of failures the same cluster still trains, and nothing has leaked.

``python -m tests.cluster.soak --failures 200 --seed 1`` draws failures at random, in one cluster
of four ranks: hangs ended by the limit, by the stop button or by a restart of the kernel, errors,
mismatches, ranks stuck in C, and deaths. After each one the ranks have to train. The seed alone
settles what is drawn. Only a death costs a restart, after which a *life* of the engines begins
anew; the second half of the failures has no deaths, so the last life is a long one.

What could leak is counted in each life after its first failures, in which everything is made that
is made once, and again at its end; communication is renewed before either, so that both see the
same. Nothing may have grown. Memory takes longer to settle: it is counted in lives that are long
enough for that, and their growth is set against what 200 failures may cost: 5 % of it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from pathlib import Path

import psutil

from .conftest import GRACE_S, Kernel, Traces, wait_until
from .hangs import (
    CASES,
    CLOCK,
    MISMATCHES,
    PREPARE,
    STUCK,
    assert_trains,
    begin,
    check,
    limit_passed,
)
from .test_deaths import DDP, caught

WARM_UP = 4  # failures of a life before it is counted
MEMORY_WARM_UP = 20  # and before its memory is
GROWTH = 0.05  # of the engines' memory, in FULL failures
FULL = 200
SETTLED_WITHIN_S = 15
MEMORY = "memory, kB"
SELDOM = 0.2

MORE = """
import os, signal
from torch_mpi4py.log import shared_report, peer_boards

# What a process makes once and keeps: a socket for what libraries print themselves, as Open MPI
# does when a non-blocking collective is freed, the boards of the others, and what DDP imports.
for stream in (1, 2):
    os.write(stream, b"warming up\\n")
with peer_boards.one_at_a_time():
    shared_report.look().text()
# The model has a name, or it is gone before backward, and with it what calls all_reduce.
warm = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
warm(torch.ones(2)).sum().backward()
del warm
"""


class Soak:
    """One cluster of four, and what it has been through.

    Attributes:
        seconds: of each kind of failure, from the failure until the ranks trained again; after
            a restart until they talked to each other, for their data must be loaded anew.
        lives: what was counted after the first failures of each life and at its end, with the
            number of failures between.
        memory: the same of the engines' memory alone, in kB, after more failures.
    """

    def __init__(self, traces: Traces, seed: int, warm_up: int = WARM_UP) -> None:
        self.traces = traces
        self.chance = random.Random(seed)
        self.warm_up = warm_up
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.lives: list[tuple[int, dict[str, int], dict[str, int]]] = []
        self.memory: list[tuple[int, int, int]] = []
        self.restarts = 0
        self.kernel = Kernel()
        try:
            self.kernel.start_cluster(4)
            self._begin_life()
        except BaseException:  # nobody has it yet who could end it
            self.kernel.shut_down()
            raise

    def _begin_life(self) -> None:
        (directory,) = self.traces.directories()
        self.kernel.events = directory / "events"
        self.kernel.must("cluster.init_process_group()", within=60)
        self.kernel.must("%%px" + PREPARE + MORE, within=120)
        assert_trains(self.kernel)
        self.age, self._before, self._settled = 0, None, None

    def fail(self, kind: str) -> None:
        """Let something fail in this way; the ranks have to train afterwards."""
        cost = KINDS[kind][1]
        if self._before is None and self.age >= self.warm_up:
            self._before = self.count()
        if self._settled is None and self.age >= MEMORY_WARM_UP:
            self._settled = self.age, self.count()[MEMORY]
        if cost:
            self.end_life()
        began = time.monotonic()
        what = KINDS[kind][0](self)
        self.seconds[kind].append(time.monotonic() - max(began, self._failed_at))
        self.age += 1
        print(f"{kind}{what and f' ({what})'}: {self.seconds[kind][-1]:.1f} s", flush=True)
        if cost:
            if self.traces.directories() == self._directories:
                self._restart()
            self._begin_life()

    def end_life(self) -> None:
        """Count what this life has left, if it was long enough to tell."""
        self._directories = self.traces.directories()
        if self._before is None or self.age == self.warm_up:
            return
        # What was closed may take a moment to be gone.
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while True:
            after = self.count()
            if not grown(self._before, after) or time.monotonic() > deadline:
                break
        self.lives.append((self.age - self.warm_up, self._before, after))
        if self._settled is not None and self._settled[0] < self.age:
            since, memory = self._settled
            self.memory.append((self.age - since, memory, after[MEMORY]))
        if grown(self._before, after):
            print(f"GROWN in {self.age} failures: {self._before} -> {after}", flush=True)
        self._before = None

    def count(self) -> dict[str, int]:
        """What a leak would add to."""
        self.kernel.must("cluster.reset_communication()")
        self.kernel.must("import gc; gc.collect();")
        processes, engines = self.traces.processes(), self.traces.engines()
        kernel = psutil.Process(self.kernel.pid)
        return {
            "processes": len(processes),
            "threads": sum(process.num_threads() for process in engines),
            "open files": sum(process.num_fds() for process in engines),
            "threads of the others": sum(p.num_threads() for p in processes if p not in engines),
            "open files of the others": sum(p.num_fds() for p in processes if p not in engines),
            "shared-memory files": sum(
                1 for path in self.traces.segments() for _ in path.rglob("*")
            ),
            "runtime files": sum(1 for _ in self.traces.base.rglob("*")),
            MEMORY: sum(engine.memory_full_info().uss for engine in engines) >> 10,
            "kernel's threads": kernel.num_threads(),
            "kernel's open files": kernel.num_fds(),
            "kernel's memory, kB": kernel.memory_full_info().uss >> 10,
        }

    def begin_anew(self) -> None:
        """After something that must not be: a fresh cluster, whatever state the old one is in."""
        self.kernel.shut_down(now=True)
        self.traces.gone_within(GRACE_S + 60)  # the keeper waits for another owner first
        self.kernel = Kernel()
        self.kernel.start_cluster(4)
        self.restarts += 1
        self._begin_life()

    def _restart(self) -> None:
        self.kernel.must("cluster.restart();", within=90)
        self.restarts += 1

    # ---- failures ----------------------------------------------------------------------

    _failed_at = 0.0

    def _fails(self, cell: str, evalue: str, within: float = 60) -> None:
        out = self.kernel.run(f"%%px\n{cell}", within)
        assert out.error is not None
        assert evalue in out.error["evalue"], out.traceback
        assert_trains(self.kernel)

    def _begin(self, case) -> str:
        running = case.begin(self.kernel, wait_until)
        self._failed_at = time.monotonic()
        return running

    def _case(self):
        name = self.chance.choice(list(CASES))
        return name, CASES[name]

    def limit(self) -> str:
        name, case = self._case()
        self.kernel.must(CLOCK.format(path=self.kernel.is_late))
        running = self._begin(case)
        with limit_passed(self.kernel):
            out = self.kernel.finish(running)
        assert out.error["ename"] == "HangError", out
        check(case, self.kernel, out, time.monotonic() - self._failed_at)
        return name

    def stop(self) -> str:
        name, case = self._case()
        running = self._begin(case)
        self.kernel.interrupt()
        check(case, self.kernel, self.kernel.finish(running), time.monotonic() - self._failed_at)
        return name

    def kernel_restart(self) -> str:
        name, case = self._case()
        self._begin(case)
        self.kernel.restart(now=True)
        said = self.kernel.start_cluster(4)
        assert "4 ranks found running; their variables are kept" in said, said
        assert_trains(self.kernel)
        return name

    def error(self) -> str:
        rank = self.chance.randrange(4)
        self._fails(f"if rank == {rank}: 1 / 0\ncomm.barrier()", "ZeroDivisionError")
        return f"rank {rank}"

    def memory(self) -> str:
        rank = self.chance.randrange(4)
        self._fails(f"if rank == {rank}: bytearray(10**15)\ncomm.barrier()", "MemoryError")
        return f"rank {rank}"

    def syntax(self) -> str:
        self._fails("x = = 3", "SyntaxError: invalid syntax")
        return ""

    def mismatch(self) -> str:
        name = self.chance.choice(list(MISMATCHES))
        self._fails(MISMATCHES[name], "MismatchError")
        return name

    def stuck(self) -> str:
        """A rank in C code: the others are freed; then it comes back by itself."""
        by_limit = self.chance.random() < 0.5
        self._get_stuck(by_limit)
        wait_until(lambda: self.kernel.run("%px kept").error is None, 120, "rank 1 comes back")
        assert_trains(self.kernel)
        return "limit" if by_limit else "stop"

    def _get_stuck(self, by_limit: bool) -> None:
        options = " --limit 2" if by_limit else ""
        places = {"waiting": [0, 2, 3], "stuck": [1], "options": options}
        running = begin(self.kernel, STUCK, wait_until, **places)
        self._failed_at = time.monotonic()
        if not by_limit:
            self.kernel.interrupt()
        out = self.kernel.finish(running, within=60)
        assert out.error["ename"] == ("HangError" if by_limit else "KeyboardInterrupt"), out
        assert "Rank 1 does not end when interrupted" in out.traceback, out.traceback

    def stuck_and_killed(self) -> str:
        self._get_stuck(True)
        self.kernel.must("cluster.kill(1)")
        return self._recover([1])

    def dies_idle(self) -> str:
        rank = self.chance.randrange(4)
        self.kernel.must(f"cluster.kill({rank})")
        return self._recover([rank])

    def dies_in_a_collective(self) -> str:
        return self._dies(1, "{}", "dist.all_reduce(torch.ones(3))")

    def dies_in_a_receive(self) -> str:
        return self._dies(1, "source = {}[0]\n{}", "comm.recv(source=source)")

    def dies_in_a_backward(self) -> str:
        ddp = DDP.replace("rank == 1", "rank in {}")
        return self._dies(1, ddp, "ddp(pixels).square().mean().backward()", die=False)

    def two_die(self) -> str:
        return self._dies(2, "{}", "while True: dist.all_reduce(torch.ones(3))")

    def _dies(self, number: int, before: str, call: str, die: bool = True) -> str:
        dead = sorted(self.chance.sample(range(4), number))
        kill = f"\nif rank in {dead}: os.kill(os.getpid(), signal.SIGKILL)" if die else ""
        out = self.kernel.run(f"%%px\n{before.replace('{}', str(dead))}{kill}{caught(call)}", 90)
        assert out.error["ename"] in ("RemoteCellError", "HangError"), out
        assert " died" in out.traceback, out.traceback
        return self._recover(dead)

    def _recover(self, dead: list[int]) -> str:
        """Go on with the survivors, or with fresh ranks straight away."""
        which = f"rank{'s' if len(dead) > 1 else ''} {', '.join(map(str, dead))}"
        if self.chance.random() < 0.3:
            self._restart()
            out = self.kernel.must("%px comm.allreduce(1)").text()
            assert out == "".join(f"rank {rank} = 4\n" for rank in range(4)), out
            return f"{which}; restarted"
        kept = [11 * rank for rank in range(4) if rank not in dead]
        self.kernel.must("cluster.shrink()", within=60)
        out = self.kernel.must("%px survivors_train()", within=60).text()
        right = "".join(f"rank {rank} = {value}\n" for rank, value in enumerate(kept))
        assert out == right, out
        return f"{which}; shrunk"

    def controller_dies(self) -> str:
        controller = self.traces.the("ipyranks.controller")
        controller.kill()
        error = self.kernel.run("%px trains()").error
        assert error["evalue"].startswith("the cluster has ended: the controller ended"), error
        wait_until(lambda: not self.traces.left(), 30, "nothing left of it")
        assert "4 ranks ready" in self.kernel.start_cluster(4)
        self.restarts += 1
        return ""


# How often, compared with the others, and whether the kind demands a restart.
KINDS = {
    "limit": (Soak.limit, False, 6),
    "stop button": (Soak.stop, False, 6),
    "kernel restart": (Soak.kernel_restart, False, 1.5),
    "error": (Soak.error, False, 1.5),
    "out of memory": (Soak.memory, False, 1),
    "syntax error": (Soak.syntax, False, 0.5),
    "mismatch": (Soak.mismatch, False, 2),
    "stuck in C": (Soak.stuck, False, 0.4),
    "stuck in C, killed": (Soak.stuck_and_killed, True, SELDOM),
    "dies idle": (Soak.dies_idle, True, SELDOM),
    "dies in a collective": (Soak.dies_in_a_collective, True, SELDOM),
    "dies in a receive": (Soak.dies_in_a_receive, True, SELDOM),
    "dies in a backward": (Soak.dies_in_a_backward, True, SELDOM),
    "two die": (Soak.two_die, True, SELDOM),
    "controller dies": (Soak.controller_dies, True, SELDOM / 2),
}


def draw(chance: random.Random, failures: int) -> list[str]:
    """The kinds of that many failures, each of them once in each half, if there is room for it.

    Those that demand a restart are in the first half only.
    """
    half = failures // 2
    cheap = [kind for kind, (_, cost, _) in KINDS.items() if not cost]
    return _at_random(chance, half, list(KINDS)) + _at_random(chance, failures - half, cheap)


def _at_random(chance: random.Random, number: int, kinds: list[str]) -> list[str]:
    drawn = chance.choices(kinds, [KINDS[kind][2] for kind in kinds], k=number)
    drawn[: len(kinds)] = kinds[:number]
    chance.shuffle(drawn)
    return drawn


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What there is more of, except for memory."""
    return [name for name in before if "memory" not in name and after[name] > before[name]]


def memory_growth(memory: list[tuple[int, int, int]]) -> float:
    """The growth of the engines' memory in :data:`FULL` failures, as a part of it."""
    if not memory:
        return 0.0
    growth = sum(after - before for _, before, after in memory)
    return growth / memory[0][1] / sum(number for number, _, _ in memory) * FULL


def table(soak: Soak) -> str:
    """How often each kind was survived, within how long; and what was counted."""
    lines = [f"{'failure':24}number  median s  longest s"]
    for kind, seconds in sorted(soak.seconds.items()):
        median = statistics.median(seconds)
        lines.append(f"{kind:24}{len(seconds):6}{median:10.1f}{max(seconds):11.1f}")
    lines.append(f"\n{'counted':28}first      last   most in one life")
    for name in soak.lives[0][1] if soak.lives else ():
        first, last = soak.lives[0][1][name], soak.lives[-1][2][name]
        most = max((after[name] - before[name] for _, before, after in soak.lives), default=0)
        lines.append(f"{name:24}{first:9,}{last:10,}{most:+10,}")
    lives = [number for number, _, _ in soak.lives]
    lines.append(
        f"{soak.restarts} restarts; counted over {sum(lives)} failures in lives of {lives}; "
        f"engines' memory {memory_growth(soak.memory):+.1%} in {FULL} failures, from "
        f"(failures, kB before, kB after) {soak.memory}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", type=int, default=FULL)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="rbr", dir="/tmp"))
    os.environ["IPYRANKS_RUNTIME_DIR"] = str(base)
    traces, broken = Traces(base), []
    soak = Soak(traces, arguments.seed)
    try:
        for number, kind in enumerate(draw(soak.chance, arguments.failures), 1):
            print(f"{time.strftime('%H:%M:%S')} {number:3} ", end="", flush=True)
            try:
                soak.fail(kind)
            except Exception:
                broken.append(kind)
                print(f"{kind} WAS NOT SURVIVED\n{traceback.format_exc()}", flush=True)
                soak.begin_anew()
        soak.end_life()
    finally:
        soak.kernel.shut_down()
    traces.gone_within(30)
    shutil.rmtree(base, ignore_errors=True)
    print(f"\nseed {arguments.seed}, {arguments.failures} failures\n{table(soak)}")
    leaks = {name for _, before, after in soak.lives for name in grown(before, after)}
    print(f"leaks: {sorted(leaks)}; not survived: {broken}")
    sys.exit(bool(leaks or broken or memory_growth(soak.memory) > GROWTH))


if __name__ == "__main__":
    main()
