"""After a death only that counts which survivors agree on, or a file holds, whole.

The checks of lesson 12. Nobody dies in them: a rank stays away as a dead one would, or a write
is interrupted.
"""

from __future__ import annotations

import math

from course_lib.teaching.exercise import WrongAnswer, exercise

# ---- reading hang reports ---------------------------------------------------------------------

REPORT_HINTS = [
    "Start with who is *not* waiting. If there is one, it is what the others wait for, directly "
    "or through a chain. If all wait, look for two calls that were meant for each other.",
    "A: three wait in the same line, and one is through with the cell. B: write down who waits "
    "for whom, as arrows. C: two calls between ranks 0 and 1 differ in one number.",
    "A is about the one that finished. B: the chain 2, 1, 0 ends at the rank that computes. C: "
    "tag 5 is not tag 6, and ranks 2 and 3 only wait for those two.",
]


@exercise("12.name_the_bugs", function="name_the_bugs", where="notebook", hints=REPORT_HINTS)
def check_name_the_bugs(name_the_bugs) -> str:
    from .judge_reports import judge_diagnoses

    judge_diagnoses(name_the_bugs())
    return "In all three you found the cause, and not one of its consequences."


# ---- what is left of the epoch ----------------------------------------------------------------

REST_HINTS = [
    "Before the death all ranks together went through the first `done` samples of the order. "
    "What is left is one list; share it out among the ranks that there are *now*.",
    "Take the list from place `done` on. Of that list rank r takes every `world_size`-th sample, "
    "beginning with its number: then the ranks' next samples together are the next of the order.",
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
            raise WrongAnswer("changes-its-input", "`order` was changed; only read it")
        _judge_shares(shares, order, done, before, now)
    return "Every sample that was left comes once, in the batches that would have come anyway."


def _as_list(share) -> list[int]:
    try:
        return list(share.tolist() if hasattr(share, "tolist") else share)
    except TypeError:
        raise WrongAnswer(
            "not-a-list", f"return a list of samples, not {type(share).__name__}"
        ) from None


def _judge_shares(shares: list[list[int]], order: list[int], done: int, before: int, now: int):
    rest, left = order[done:], len(order) - done
    together = sorted(sample for share in shares for sample in share)
    if together == sorted(order):
        raise WrongAnswer(
            "starts-the-epoch-again",
            f"the {now} survivors go through all {len(order)} samples; {done} of them were done "
            "before the death, and would count twice in this epoch",
        )
    if shares == [order[rank::before][done // before :] for rank in range(now)] or shares == [
        rest[rank::before] for rank in range(now)
    ]:
        raise WrongAnswer(
            "leaves-out-the-dead-ones-share",
            f"each survivor goes on in steps of {before} through the order, so nobody sees the "
            f"samples of the dead: share out among the {now} that there are now",
        )
    if shares == [order[rank::now][done:] for rank in range(now)]:
        raise WrongAnswer(
            "counts-done-per-rank",
            f"`done` counts the samples of all ranks together, {done} here. You leave out so many "
            "on each rank",
        )
    if shares == [order[rank::now][done // now :] for rank in range(now)] and done % now:
        raise WrongAnswer(
            "done-by-more-ranks",
            f"of the {done} samples that are done you leave out {done // now} on each rank, as if "
            f"the {now} ranks that there are now had done them. There were {before}: first take "
            "away what is done, then share out the rest",
        )
    if shares == [list(range(done, len(order)))[rank::now] for rank in range(now)]:
        raise WrongAnswer(
            "places-not-samples",
            f"it returns places in `order`, such as {done}; the sample there is `order[{done}]`, "
            f"{order[done]}",
        )
    twice = sorted(sample for sample in set(together) if together.count(sample) > 1)
    if twice and set(together) == set(rest):
        raise WrongAnswer(
            "given-twice",
            f"sample {twice[0]} comes {together.count(twice[0])} times, so it counts more "
            "than the others. Shares need not be equally long: nothing is to be padded",
        )
    even = left // now * now
    if left % now and together == sorted(rest[:even]):
        raise WrongAnswer(
            "drops-the-last",
            f"{left} samples are left, and the {now} ranks take {even} of them: nobody has the "
            f"{left - even} at the end. Shares need not be equally long",
        )
    if together != sorted(rest):
        missing = sorted(set(rest) - set(together))
        text = (
            f"sample {missing[0]} is left to do, and nobody has it"
            if missing
            else (f"the shares have {len(together)} samples, and {len(rest)} are left")
        )
        raise WrongAnswer("not-what-is-left", text)
    if [sample for share in shares for sample in share] == rest and all(shares):
        raise WrongAnswer(
            "one-piece-each",
            f"rank 0 has the first {len(shares[0])} samples of what is left in one piece, rank 1 "
            f"those after them. Then the first batch is not made of the next {now} samples of the "
            "order: deal them out like cards",
        )
    sizes = [len(share) for share in shares]
    if max(sizes) - min(sizes) > 1:
        raise WrongAnswer("unfair", f"the shares have {sizes} samples: not even within one")
    for step in range(min(sizes)):
        batch = {share[step] for share in shares}
        if batch != set(rest[step * now : (step + 1) * now]):
            raise WrongAnswer(
                "other-batches",
                "each sample is there once, but the ranks' next samples together are not the next "
                "ones of the order. The batches would be others than without the death, and the "
                "loss curve could not be compared with any",
            )


# ---- go on with the survivors -----------------------------------------------------------------

SURVIVOR_HINTS = [
    "Everybody knows only its own number of steps. First all of them have to learn all of them; "
    "then whoever has done most tells the others everything that the next step depends on.",
    "`dist.all_gather_object(list, mine, group=group)` fills the list with everyone's. "
    "`dist.broadcast_object_list([a, b], group=group, group_src=r)` gives rank r's objects to "
    "all. What a step depends on: the model's `state_dict()` *and* the optimizer's.",
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

    from .judge_survivors import judge_survivors, observe_survivors

    need_process_group()
    judge_survivors(observe_survivors(go_on))
    return "All survivors have the weights, the momentum and the step of the one furthest on."


# ---- a file that is there as a whole ----------------------------------------------------------

SAVE_HINTS = [
    "Never touch the file that you may need. Write another one beside it, and when that is "
    "complete, change names.",
    "`os.replace(new, path)` changes the name in one step, whether there was a file or not, as "
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
    return "Whenever the process dies, there is one whole checkpoint: the old or the new."


# ---- how often ----------------------------------------------------------------------------------

INTERVAL_HINTS = [
    "Two losses work against each other: saving costs `save_s` in every interval, and a failure "
    "costs half an interval on average. What matters is how often *any* of the ranks fails.",
    "With N ranks some rank fails N times as often, every lifetime_s / N seconds on average: that "
    "is M. The share of time lost is save_s / t + t / (2 M). Where is its derivative by t zero?",
    "-save_s / t**2 + 1 / (2 M) = 0, so t is the square root of ... Mind the seconds.",
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
        found = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise WrongAnswer(
            "not-a-number", f"it returned a {type(found).__name__}, not seconds"
        ) from None

    def lost(interval: float) -> float:
        return save / interval + interval / (2 * between)

    usual = [
        (
            math.sqrt(2 * save * life),
            "forgets-the-other-ranks",
            f"that would be right for a single rank. Of {ranks} ranks some one fails {ranks} "
            "times as often",
        ),
        (
            math.sqrt(2 * save * life * ranks),
            "more-ranks-live-longer",
            "the mean time to the next failure shrinks with the number of ranks; yours grows",
        ),
        (
            math.sqrt(save * life / ranks),
            "forgets-the-two",
            "a failure costs *half* an interval on average, not a whole one: the factor 2 belongs "
            "under the root",
        ),
        (
            2 * save * life / ranks,
            "forgets-the-root",
            f"{found:g} would be square seconds: a time times a time. The root is missing",
        ),
        (
            right / 60,
            "minutes-not-seconds",
            "these are minutes; the function's name for its result is seconds",
        ),
        (
            save * between,
            "half-not-root",
            "`x ** 1 / 2` is half of x: the power comes first. Write `x ** 0.5` or `math.sqrt(x)`",
        ),
        (
            2 * math.sqrt(save * between),
            "two-outside-the-root",
            "the factor 2 belongs under the root, together with the two times",
        ),
        (lost(right), "share-not-seconds", "this is the share of time that is lost at the best t"),
        (
            right - save,
            "another-formula",
            "that is Young's interval less the time of a save, as in Daly's first correction; "
            "Young's is asked for",
        ),
        (
            between / 2,
            "forgets-the-save",
            "that is half of the mean time between failures, however long a save takes. The "
            "shorter a save, the oftener it pays",
        ),
    ]
    # A search for the smallest loss finds its place to about 1e-8, the root of rounding; single
    # precision gives 1e-7; the nearest mistake, whole seconds, is 5e-4 off.
    if math.isclose(found, right, rel_tol=1e-6):
        return
    for value, mistake, explanation in usual:
        if math.isclose(found, value, rel_tol=1e-6):
            raise WrongAnswer(mistake, explanation)
    told = f"for a save of {save:g} s, {ranks} ranks and a life of {life:g} s each, it returned"
    if abs(found - right) < 1:
        raise WrongAnswer("rounded", f"{told} {found:g} s: right, but rounded. Return all digits")
    if not found > 0:
        raise WrongAnswer("wrong-value", f"{told} {found:g} s, which is no time at all")
    raise WrongAnswer(
        "wrong-value",
        f"{told} {found:g} s. With that {100 * lost(found):.3g}% of the time is lost, with the "
        f"best {100 * lost(right):.3g}%",
    )
