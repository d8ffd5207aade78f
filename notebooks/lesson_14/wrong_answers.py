"""The usual wrong answers to lesson 14: from a mistake's name to a function that makes it."""


def _sync(
    beta: str = "8 / (megabits * 1e6)",
    doubling: str = "math.log2(ranks) * (latency + n * beta)",
    ring: str = "2 * (ranks - 1) * (latency + n / ranks * beta)",
    one: str = "min(doubling, ring)",
    end: str = "total",
) -> str:
    return (
        "import math\n"
        "def sync_seconds(buckets, ranks, latency, megabits):\n"
        f"    beta, total = {beta}, 0.0\n"
        "    for n in buckets:\n"
        f"        doubling = {doubling}\n"
        f"        ring = {ring}\n"
        f"        total += {one}\n"
        f"    return {end}\n"
    )


def _speed(
    steps: str = "many.steps",
    fixed: str = "fixed_seconds",
    batch: str = "many.batch",
    turns: str = "-(-many.ranks // cores)",
    sync: str = "sync",
    alone: str = "one.steps * (fixed_seconds + one.batch * sample_seconds)",
    together: str = "steps * (turns * compute + sync)",
    end: str = "alone / together",
) -> str:
    return (
        "def speed_up(one, many, sample_seconds, fixed_seconds, sync, cores):\n"
        f"    steps, turns = {steps}, {turns}\n"
        f"    compute = {fixed} + {batch} * sample_seconds\n"
        f"    alone, sync = {alone}, {sync}\n"
        f"    together = {together}\n"
        f"    return {end}\n"
    )


def _looks(body: str) -> str:
    return "def time_to_target(looks, target):\n" + "".join(
        f"    {line}\n" for line in body.split("\n")
    )


def _bytes(
    server: str = "2 * model_bytes",
    ring: str = "2 * (ranks - 1) * model_bytes",
    rounds: str = "steps // every",
    synchronous: str = "steps",
) -> str:
    return (
        "def bytes_on_links(strategy, steps, ranks, model_bytes, every):\n"
        '    if strategy == "server":\n'
        f"        return steps * ({server})\n"
        f'    rounds = {rounds} if strategy == "local SGD" else {synchronous}\n'
        f"    return rounds * ({ring})\n"
    )


WRONG_ANSWERS = {
    "14.sync_seconds": {
        "bits-for-bytes": _sync(beta="1 / (megabits * 1e6)"),
        "bits-the-wrong-way": _sync(beta="1 / (8 * megabits * 1e6)"),
        "mebi-for-mega": _sync(beta="8 / (megabits * 2**20)"),
        "one-latency-for-all-buckets": _sync().replace("in buckets", "in [sum(buckets)]"),
        "one-bucket-s-latency": _sync(end="total + latency")
        .replace("    beta,", "    latency, once = 0, latency\n    beta,")
        .replace("total + latency", "total + once"),
        "forgets-latency": _sync(
            doubling="math.log2(ranks) * n * beta", ring="2 * (ranks - 1) / ranks * n * beta"
        ),
        "forgets-bytes": _sync(doubling="math.log2(ranks) * latency", one="doubling"),
        "only-ring": _sync(one="ring"),
        "only-doubling": _sync(one="doubling"),
        "only-doubling: all bytes in each step of the ring": _sync(
            ring="2 * (ranks - 1) * (latency + n * beta)"
        ),
        "one-algorithm-for-all-buckets": """
import math
def sync_seconds(buckets, ranks, latency, megabits):
    beta = 8 / (megabits * 1e6)
    doubling = sum(math.log2(ranks) * (latency + n * beta) for n in buckets)
    ring = sum(2 * (ranks - 1) * (latency + n / ranks * beta) for n in buckets)
    return min(doubling, ring)
""",
        "the-dearer": _sync(one="max(doubling, ring)"),
        "one-way-round": _sync(ring="(ranks - 1) * (latency + n / ranks * beta)"),
        "p-for-p-minus-one": _sync(ring="2 * ranks * (latency + n / ranks * beta)"),
        "chunks-of-p-minus-one": _sync(ring="2 * (ranks - 1) * (latency + n / (ranks - 1) * beta)"),
        "natural-logarithm": _sync(doubling="math.log(ranks) * (latency + n * beta)"),
        "once-for-each-rank": _sync(end="ranks * total"),
        "both-directions-of-a-link": _sync(beta="16 / (megabits * 1e6)"),
        "off-by-a-factor: in milliseconds": _sync(end="1000 * total"),
        "returns-nothing": _sync(end="None"),
    },
    "14.speed_up": {
        "forgets-communication": _speed(sync="0"),
        "hides-communication": _speed(together="steps * max(turns * compute, sync)"),
        "steps-divided-by-ranks": _speed(steps="one.steps / many.ranks"),
        "same-number-of-steps": _speed(steps="one.steps"),
        "speed-up-of-an-epoch": _speed(steps="one.steps * one.batch / many.batch / many.ranks"),
        "forgets-the-fixed-part": _speed(fixed="0", alone="one.steps * one.batch * sample_seconds"),
        "divides-the-fixed-part": _speed(fixed="fixed_seconds / many.ranks"),
        "fixed-part-of-one-only": _speed(fixed="0"),
        "cores-for-all": _speed(turns="1"),
        "turns-not-whole": _speed(turns="many.ranks / cores"),
        "turns-rounded-down": _speed(turns="max(1, many.ranks // cores)"),
        "batch-divided": _speed(batch="many.batch / many.ranks"),
        "batch-of-all-ranks": _speed(batch="many.batch * many.ranks"),
        "upside-down": _speed(end="together / alone"),
        "sync-once": _speed(together="steps * turns * compute + sync"),
        "one-rank-synchronises": _speed(
            alone="one.steps * (fixed_seconds + one.batch * sample_seconds + sync)"
        ),
        "sync-divided": _speed(sync="sync / many.ranks"),
        "sync-of-each-rank": _speed(sync="sync * many.ranks"),
        "sync-in-turns": _speed(together="steps * turns * (compute + sync)"),
        "fixed-part-not-in-turns": _speed(
            together="steps * (turns * many.batch * sample_seconds + fixed_seconds + sync)"
        ),
        "same-number-of-steps: the seconds of a step": _speed(
            end="alone / one.steps / (together / steps)"
        ),
    },
    "14.time_to_target": {
        "above-only": _looks("return next((s for s, a in looks if a > target), None)"),
        "rounds-the-accuracy": _looks(
            "return next((s for s, a in looks if round(a, 1) >= target), None)"
        ),
        "the-best": _looks("return max(looks, key=lambda look: look[1])[0]"),
        "the-best-if-reached": _looks(
            "seconds, best = max(looks, key=lambda look: look[1])\n"
            "return seconds if best >= target else None"
        ),
        "the-last": _looks("return looks[-1][0]"),
        "the-last-if-reached": _looks(
            "if any(a >= target for s, a in looks):\n    return looks[-1][0]\nreturn None"
        ),
        "the-last-that-reaches-it": _looks(
            "found = None\nfor s, a in looks:\n    if a >= target:\n        found = s\nreturn found"
        ),
        "stays-above": _looks(
            "found = None\n"
            "for s, a in looks:\n"
            "    if a < target:\n"
            "        found = None\n"
            "    elif found is None:\n"
            "        found = s\n"
            "return found"
        ),
        "interpolates": _looks(
            "before = None\n"
            "for s, a in looks:\n"
            "    if a >= target:\n"
            "        if before is None:\n"
            "            return s\n"
            "        t, b = before\n"
            "        return t + (s - t) * (target - b) / (a - b)\n"
            "    before = s, a\n"
            "return None"
        ),
        "one-look-early": _looks(
            "before = looks[0][0]\n"
            "for s, a in looks:\n"
            "    if a >= target:\n"
            "        return before\n"
            "    before = s\n"
            "return None"
        ),
        "the-number-of-the-look": _looks(
            "return next((i for i, (s, a) in enumerate(looks) if a >= target), None)"
        ),
        "the-accuracy": _looks("return next((a for s, a in looks if a >= target), None)"),
        "the-nearest-accuracy": _looks(
            "good = [(a, s) for s, a in looks if a >= target]\n"
            "return sorted(good)[0][1] if good else None"
        ),
        "not-none": _looks("for s, a in looks:\n    if a >= target:\n        break\nreturn s"),
        "zero-for-none": _looks("return next((s for s, a in looks if a >= target), 0)"),
    },
    "14.bytes_on_links": {
        "server-one-way": _bytes(server="model_bytes"),
        "server-for-all-workers": _bytes(server="2 * (ranks - 1) * model_bytes"),
        "server-as-a-worker": _bytes(server="2 * ranks * model_bytes"),
        "one-rank-of-the-ring": _bytes(ring="2 * (ranks - 1) / ranks * model_bytes"),
        "p-for-p-minus-one": _bytes(ring="2 * ranks * model_bytes"),
        "half-a-ring": _bytes(ring="(ranks - 1) * model_bytes"),
        "every-pair": _bytes(ring="ranks * (ranks - 1) * model_bytes"),
        "wrong-p-in-the-ring": _bytes(ring="ranks * 2 * (ranks - 2) / (ranks - 1) * model_bytes"),
        "local-in-every-step": _bytes(rounds="steps"),
        "local-multiplied": _bytes(rounds="steps * every"),
        "local-rounds-up": _bytes(rounds="-(-steps // every)"),
        "local-last-round-lost": _bytes(rounds="(steps - 1) // every"),
        "local-to-the-nearest": _bytes(rounds="round(steps / every)"),
        "local-fractions": _bytes(rounds="steps / every"),
        "every-for-all": _bytes(synchronous="steps // every"),
    },
}
