"""With one slow worker of four, which mode reaches the target accuracy first?

Rank 0 is a parameter server, the others are workers. Devices are simulated: a gradient takes at
least STEP_SECONDS, on the straggler three times as long, and the rest of that time is slept, so
that five ranks do not compete for two cores. The server keeps snapshots; their accuracy is
measured afterwards, so measuring takes no time from the run.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from statistics import mean, median

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.report import Section, Table, spread, target
from benchmarks.running import in_turns, rounds
from course_lib.parallel import parameter_server as ps
from course_lib.training.data import DataSet, load
from course_lib.training.loops import accuracy, set_seed
from course_lib.training.models import MLP
from course_lib.training.shuffled_batches import shuffled_batches

STEP_SECONDS = 0.02
SLOWER = 3
STRAGGLER = 4  # its rank
TARGET = 0.9
BATCH = 16
RATE = 0.1  # of one gradient; a round's mean of four has four times the rate (linear rule)
SEEDS = 7
MODES = {"synchronous": ps.Synchronous(), "asynchronous": ps.Asynchronous()}
LOW_LOSS = 0.25  # accuracy is beyond TARGET then; a run ends some time after it
MOST_SECONDS = 12.0
EVERY = {"synchronous": 1, "asynchronous": 4}  # updates between snapshots: the same gradients


def measure() -> dict:
    """Return, for every seed, the seconds that each mode took to the target."""
    train, test = load("digits")
    runs: dict[str, list] = {mode: [] for mode in MODES}
    for mode in in_turns(list(MODES), rounds(SEEDS)):
        runs[mode].append(one_run(mode, len(runs[mode]), train, test))
    return {"ranks": dist.get_world_size(), "runs": runs}


def one_run(mode: str, seed: int, train: DataSet, test: DataSet) -> dict | None:
    """Return the result of one run on the server; nothing on a worker."""
    set_seed(seed)
    model, rank = MLP(), dist.get_rank()
    dist.barrier()
    if rank:
        batches = shuffled_batches(train, BATCH, seed=100 * seed + rank)
        pace = STEP_SECONDS * (SLOWER if rank == STRAGGLER else 1)
        ps.Worker(model, nn.functional.cross_entropy, batches, step_seconds=pace).run()
        return None
    rate = RATE * (dist.get_world_size() - 1 if mode == "synchronous" else 1)
    server = ps.Server(
        model,
        torch.optim.SGD(model.parameters(), lr=rate),
        mode=MODES[mode],
        snapshots=EVERY[mode],
        stop=ps.Stop(when=low_loss, seconds=MOST_SECONDS),
    )
    return found_in(server.run(), test)


def low_loss(server: ps.Server) -> bool:
    """Return whether the last 40 gradients' loss is so small that the target has been passed."""
    updates = server.record.updates[-40:]
    losses = [gradient.loss for update in updates for gradient in update.gradients]
    return len(losses) >= 40 and mean(losses[-40:]) < LOW_LOSS


def found_in(record: ps.Record, test: DataSet) -> dict:
    """Return when the target was reached (None: never), and how many updates and gradients."""
    model = MLP()

    def arrived(parameters: list[torch.Tensor]) -> bool:
        ps.load_parameters(model, parameters)
        return accuracy(model, test) >= TARGET

    times = (at for _, at, parameters in record.snapshots if arrived(parameters))
    return {
        "seconds": next(times, None),
        "updates_per_s": record.version / record.seconds,
        "gradients_per_s": len(record.gradients) / record.seconds,
        "staleness": mean(record.staleness),
    }


def times(measured: dict, mode: str) -> list[float]:
    """Return the seconds to the target for every seed, infinite where it was never reached."""
    runs = measured["runs"][mode]
    return [inf if run["seconds"] is None else run["seconds"] for run in runs]


def sooner(measured: dict) -> float:
    """Return the median, over the seeds, of synchronous time over asynchronous time."""
    pairs = zip(times(measured, "synchronous"), times(measured, "asynchronous"), strict=True)
    # If asynchronous training never arrives, it is not sooner, whatever the other does.
    return median(0.0 if other == inf else one / other for one, other in pairs)


def section(measured: dict) -> Section:
    """Return table and target of :func:`measure`."""

    def average(mode: str, name: str) -> float:
        return mean(run[name] for run in measured["runs"][mode])

    columns: dict[str, Callable[[str], str]] = {
        "mode": str,
        "seconds": lambda mode: spread(times(measured, mode), "{:.2f}".format),
        "updates/s": lambda mode: f"{average(mode, 'updates_per_s'):.0f}",
        "gradients/s": lambda mode: f"{average(mode, 'gradients_per_s'):.0f}",
        "mean staleness": lambda mode: f"{average(mode, 'staleness'):.1f}",
    }
    floor, workers = 1e3 * STEP_SECONDS, measured["ranks"] - 1
    about = (
        f"An MLP is trained on the digits by one parameter server and {workers} workers; each "
        f"gradient uses {BATCH} images. The devices are simulated: a gradient takes at least "
        f"{floor:.0f} ms, or {SLOWER * floor:.0f} ms on one worker. Workers sleep for the rest of "
        f"that time, so ranks do not compete for cores. The optimizer is plain SGD with a learning "
        f"rate of {RATE}; a synchronous round applies the mean of {workers} gradients at {workers} "
        f"times that rate. The modes take turns. The table gives the seconds to {TARGET:.0%} test "
        f"accuracy: median (quartiles) of {len(measured['runs']['synchronous'])} seeds."
    )
    what = f"time to {TARGET:.0%} accuracy, synchronous over asynchronous SGD, one straggler"
    best = min(times(measured, "synchronous")) / min(times(measured, "asynchronous"))
    more = average("asynchronous", "gradients_per_s") / average("synchronous", "gradients_per_s")
    cause = f"the workers delivered {more:.1f} times as many gradients a second"
    reached = target(what, ">= 1.5x", sooner(measured), best, cause=cause)
    title = "Asynchronous and synchronous SGD with a straggler"
    return Section(title, [about, Table(columns, measured["runs"])], [reached])
