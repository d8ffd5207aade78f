"""The checks of lesson 12: survivors of a death, whole checkpoints, hang reports and wrong numbers.

No rank dies in the checks: one stays away as a dead rank would, or a write is interrupted.
"""

from __future__ import annotations

import math

from course_lib.teaching.exercise import WrongAnswer, exercise
from course_lib.teaching.judges.formulas import name_the_mistake
from course_lib.teaching.judges.trials import is_text

# ---- reading hang reports ---------------------------------------------------------------------

REPORT_HINTS = [
    "Start with the rank that is *not* waiting. If there is one, the others wait for it, directly "
    "or through a chain. If all wait, look for two calls that were meant for each other.",
    "A: three ranks wait in the same line, and one has finished the cell. B: write down which rank "
    "waits for which, as arrows. C: two calls between ranks 0 and 1 differ in one number.",
    "A is about the rank that finished. B: the chain 2, 1, 0 ends at the rank that computes. C: "
    "tag 5 is not tag 6, and ranks 2 and 3 only wait for ranks 0 and 1.",
]


@exercise("12.name_the_bugs", function="name_the_bugs", where="notebook", hints=REPORT_HINTS)
def check_name_the_bugs(name_the_bugs) -> str:
    from .judge_reports import judge_diagnoses

    judge_diagnoses(name_the_bugs())
    return "In all three reports you found the cause, not one of its consequences."


# ---- wrong numbers ------------------------------------------------------------------------------

STANDARDISE_HINTS = [
    "Think of one process with all rows: it knows one mean and one spread. Which sums over "
    "all rows do these two need, and how can every rank get them?",
    "Sum three things over all ranks: the number of rows, their sum, and, once the mean is known, "
    "the squares of their distances from it. A rank with one row, or with none, contributes what "
    "it has.",
    "```python\n"
    "count = comm.allreduce(len(rows))\n"
    "mean = comm.allreduce(rows.sum(0)) / count\n"
    "...\n"
    "```",
]


@exercise("12.standardise", function="standardise", where="engines", hints=STANDARDISE_HINTS)
def check_standardise(standardise) -> str:
    from .judge_standardising import judge_standardising

    judge_standardising(standardise)
    return "All ranks use one mean and one spread, even if a rank has one row or none."


# ---- what is left of the epoch ----------------------------------------------------------------

REST_HINTS = [
    "Before the death all ranks together went through the first `done` samples of the order. "
    "What is left is one list; share it out among the ranks that there are *now*.",
    "Take the list from position `done` on. Rank r takes every `world_size`-th sample of it, "
    "beginning at position r. Then the ranks' next samples together are the next ones in the "
    "order.",
    "A slice `[start::step]` takes every `step`-th entry. Two slices, one after the other: the "
    "first leaves out what is done, the second is this rank's share.",
]


@exercise("12.rest_of_epoch", function="rest_of_epoch", where="notebook", hints=REST_HINTS)
def check_rest_of_epoch(rest_of_epoch) -> str:
    for samples, done, before, now in [(24, 8, 4, 3), (24, 12, 4, 2), (26, 12, 3, 2)]:
        order = [(7 * i + 3) % (samples + 3) for i in range(samples)]
        given = list(order)
        shares = [_as_list(rest_of_epoch(given, done, rank, now)) for rank in range(now)]
        if given != order:
            raise WrongAnswer("changes-its-input")
        _judge_shares(shares, order, done, before, now)
    _judge_no_rest(rest_of_epoch, 12, 3)
    return "Every remaining sample comes once, in the same batches as without the death."


def _judge_no_rest(rest_of_epoch, samples: int, now: int) -> None:
    """The last rank may die when the epoch is over."""
    for rank in range(now):
        share = _as_list(rest_of_epoch(list(range(samples)), samples, rank, now))
        if share:
            raise WrongAnswer("nothing-is-left", rank=rank, samples=samples, share=share[:3])


def _as_list(share) -> list[int]:
    try:
        return list(share.tolist() if hasattr(share, "tolist") else share)
    except TypeError:
        raise WrongAnswer("not-a-list", kind=type(share).__name__) from None


def _judge_shares(shares: list[list[int]], order: list[int], done: int, before: int, now: int):
    rest, left = order[done:], len(order) - done
    together = sorted(sample for share in shares for sample in share)
    if together == sorted(order):
        raise WrongAnswer("starts-the-epoch-again", now=now, count=len(order), done=done)
    if shares == [order[rank::before][done // before :] for rank in range(now)] or shares == [
        rest[rank::before] for rank in range(now)
    ]:
        raise WrongAnswer("leaves-out-the-dead-ones-share", before=before, now=now)
    if shares == [order[rank::now][done:] for rank in range(now)]:
        raise WrongAnswer("counts-done-per-rank", done=done)
    if shares == [order[rank::now][done // now :] for rank in range(now)] and done % now:
        raise WrongAnswer("done-by-more-ranks", done=done, each=done // now, now=now, before=before)
    if shares == [list(range(done, len(order)))[rank::now] for rank in range(now)]:
        raise WrongAnswer("places-not-samples", done=done, sample=order[done])
    if all(sorted(share) == sorted(rest) for share in shares):
        raise WrongAnswer("everyone-takes-all", now=now, left=left)
    twice = sorted(sample for sample in set(together) if together.count(sample) > 1)
    if twice and set(together) == set(rest):
        raise WrongAnswer("given-twice", sample=twice[0], count=together.count(twice[0]))
    even = left // now * now
    if left % now and together == sorted(rest[:even]):
        raise WrongAnswer("drops-the-last", left=left, now=now, even=even, rest=left - even)
    if together != sorted(rest):
        missing = sorted(set(rest) - set(together))
        if missing:
            raise WrongAnswer("not-what-is-left", sample=missing[0])
        raise WrongAnswer("not-what-is-left: but more", count=len(together), left=len(rest))
    if [sample for share in shares for sample in share] == rest and all(shares):
        raise WrongAnswer("one-piece-each", count=len(shares[0]), now=now)
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) > 1:
        raise WrongAnswer("unfair", sizes=sizes)
    for step in range(min(sizes)):
        batch = {share[step] for share in shares}
        if batch != set(rest[step * now : (step + 1) * now]):
            raise WrongAnswer("other-batches")


# ---- go on with the survivors -----------------------------------------------------------------

SURVIVOR_HINTS = [
    "Each rank knows only how many steps it has done itself. First every rank has to learn the "
    "numbers of all ranks; then the rank that has done most steps sends the others everything that "
    "the next step needs.",
    "`dist.all_gather_object(list, mine, group=group)` fills the list with every rank's `mine`. "
    "`dist.broadcast_object_list([a, b], group=group, group_src=r)` gives rank r's objects to "
    "all. A step depends on the model's `state_dict()` *and* the optimizer's.",
    "```python\n"
    "steps = [0] * dist.get_world_size(group)\n"
    "dist.all_gather_object(steps, steps_done, group=group)\n"
    "furthest = steps.index(max(steps))\n"
    "state = [model.state_dict(), optimizer.state_dict()]\n"
    "...  # broadcast it from there, and load both\n"
    "return DDP(model, process_group=group), max(steps)\n"
    "```",
]


@exercise("12.go_on", function="go_on", where="engines", hints=SURVIVOR_HINTS)
def check_go_on(go_on) -> str:
    from course_lib.teaching.judges.rank_groups import need_process_group

    from .judge_survivors import check_survivors

    need_process_group()
    check_survivors(go_on)
    return "All survivors have the weights, momentum and step of the rank that was furthest on."


# ---- a file that is always whole --------------------------------------------------------------

SAVE_HINTS = [
    "Never touch the file that you may need. Write another file beside it, and rename it when it "
    "is complete.",
    "`os.replace(new, path)` renames in one step, whether or not there was a file at `path`, as "
    "long as both are in the same folder. Before that, the bytes have to be on the disk: "
    "`file.flush()` empties Python's buffer, `os.fsync(file.fileno())` the system's.",
    "```python\n"
    'beside = path.with_name(path.name + ".partial")\n'
    'with open(beside, "wb") as file:\n'
    "    write(file)\n"
    "    ...  # onto the disk\n"
    "...  # and now the name\n"
    "```",
]


@exercise("12.save_whole", function="save_whole", where="notebook", hints=SAVE_HINTS)
def check_save_whole(save_whole) -> str:
    from .judge_saving import judge_saving

    judge_saving(save_whole)
    return "Whenever the process dies, there is one whole checkpoint: the old one or the new one."


# ---- how often ----------------------------------------------------------------------------------

INTERVAL_HINTS = [
    "Two losses work against each other: saving costs `save_s` in every interval, and a failure "
    "costs half an interval on average. What matters is how often *any* of the ranks fails.",
    "With R ranks failures come R times as often, every lifetime_s / R seconds on average: that "
    "is T. If t is the time between saves, the share of time lost is save_s / t + t / (2 T). Where "
    "is its derivative with respect to t zero?",
    "-save_s / t**2 + 1 / (2 T) = 0, so t is the square root of ... Mind the seconds.",
]


@exercise("12.best_interval", function="best_interval", where="notebook", hints=INTERVAL_HINTS)
def check_best_interval(best_interval) -> str:
    for save, life, ranks in [(8.0, 4e6, 100), (60.0, 1.8e8, 10_000), (2.0, 1e6, 1)]:
        _judge_interval(best_interval(save, life, ranks), save, life, ranks)
    return "Young's formula; for 10,000 ranks that live 5.7 years each it says 24.5 minutes."


def _judge_interval(found: object, save: float, life: float, ranks: int) -> None:
    between = life / ranks
    right = math.sqrt(2 * save * between)
    try:
        if is_text(found):
            raise TypeError
        found = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise WrongAnswer("not-a-number", kind=type(found).__name__) from None

    def lost(interval: float) -> float:
        return save / interval + interval / (2 * between)

    usual = [
        ("forgets-the-other-ranks", math.sqrt(2 * save * life)),
        ("more-ranks-live-longer", math.sqrt(2 * save * life * ranks)),
        ("forgets-the-two", math.sqrt(save * life / ranks)),
        ("forgets-the-root", 2 * save * life / ranks),
        ("minutes-not-seconds", right / 60),
        ("half-not-root", save * between),
        ("two-outside-the-root", 2 * math.sqrt(save * between)),
        ("share-not-seconds", lost(right)),
        ("another-formula", right - save),
        ("forgets-the-save", between / 2),
    ]
    # A search for the smallest loss finds its place to about 1e-8, the root of rounding; single
    # precision gives 1e-7; the nearest mistake, whole seconds, is 5e-4 off.
    if math.isclose(found, right, rel_tol=1e-6):
        return
    told = {"save": save, "ranks": ranks, "life": life, "found": found}
    name_the_mistake(usual, lambda value: math.isclose(found, value, rel_tol=1e-6), **told)
    if abs(found - right) < 1:
        raise WrongAnswer("rounded", **told)
    if not found > 0:
        raise WrongAnswer("wrong-value: no time", **told)
    raise WrongAnswer("wrong-value", lost=100 * lost(found), best=100 * lost(right), **told)
