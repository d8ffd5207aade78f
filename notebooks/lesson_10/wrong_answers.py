"""The usual wrong answers to lesson 10: from a mistake's name to a function that makes it."""

_MICRO = "def micro_batches_for(stages, most):\n"
_ORDER = "def order(number, stages, micro_batches):\n"
_CUT = "def cut(costs, stages):\n"


def _turns(ahead: str = "min(stages - 1 - number, micro_batches)") -> str:
    """Return 1F1B, of which a stage runs so many micro-batches ahead."""
    return (
        f"{_ORDER}    a = {ahead}\n"
        '    tasks = [("F", m) for m in range(a)]\n'
        "    for m in range(a, micro_batches):\n"
        '        tasks += [("F", m), ("B", m - a)]\n'
        '    return tasks + [("B", m) for m in range(micro_batches - a, micro_batches)]\n'
    )


def _best_by(measure: str, best: str = "min") -> str:
    """Return the cut for which a measure of the stages' costs is smallest, or largest."""
    return (
        f"{_CUT}    from itertools import combinations\n"
        "    def costs_of(ends):\n"
        "        e = [0, *ends, len(costs)]\n"
        "        return [sum(costs[a:b]) for a, b in zip(e, e[1:])]\n"
        f"    key = lambda ends: {measure}\n"
        f"    ends = {best}(combinations(range(1, len(costs)), stages - 1), key=key)\n"
        "    e = [0, *ends, len(costs)]\n"
        "    return [b - a for a, b in zip(e, e[1:])]\n"
    )


WRONG_ANSWERS = {
    "10.micro_batches_for": {
        "other-formula: share of the useful time": _MICRO + "    m = 1\n"
        "    while (stages - 1) / m > most:\n        m += 1\n    return m\n",
        "other-formula: K for K - 1": _MICRO + "    m = 1\n"
        "    while stages / (m + stages) > most:\n        m += 1\n    return m\n",
        "not-whole": _MICRO + "    return max(1, (stages - 1) * (1 - most) / most + 0.01)\n",
        "none-at-all": _MICRO + "    import math\n"
        "    return math.ceil((stages - 1) * (1 - most) / most - 1e-9)\n",
        "too-few": _MICRO + "    return max(1, int((stages - 1) * (1 - most) / most) - 1)\n",
        "too-many: a power of two": _MICRO + "    m = 1\n"
        "    while (stages - 1) / (m + stages - 1) > most:\n        m *= 2\n    return m\n",
        "returns-nothing": _MICRO + "    print(stages, most)\n",
        "not-a-number: none is enough": _MICRO + "    return float('inf')\n",
        "not-a-number: a text": _MICRO + "    return '3'\n",
        "the-bubble": _MICRO + "    m = 1\n"
        "    while (stages - 1) / (m + stages - 1) > most:\n        m += 1\n"
        "    return (stages - 1) / (m + stages - 1)\n",
        "too-few: rounded to the nearest": _MICRO
        + "    return max(1, round((stages - 1) * (1 - most) / most))\n",
        "too-many: smaller, not at most": _MICRO + "    m = 1\n"
        "    while (stages - 1) / (m + stages - 1) >= most:\n        m += 1\n    return m\n",
        "other-formula: K over M": _MICRO + "    m = 1\n"
        "    while stages / m > most:\n        m += 1\n    return m\n",
        "too-many: four times the stages": _MICRO + "    return 4 * stages\n",
        "it-raises": _MICRO + "    return 1 / (stages - stages)\n",
    },
    "10.order": {
        "holds-too-many: GPipe": _ORDER + "    n = range(micro_batches)\n"
        '    return [("F", m) for m in n] + [("B", m) for m in n]\n',
        "runs-not-ahead: each forward at once followed by its backward": _ORDER
        + '    return [task for m in range(micro_batches) for task in (("F", m), ("B", m))]\n',
        "waits-for-ever: backward first": _ORDER + "    n = range(micro_batches)\n"
        '    return [task for m in n for task in (("B", m), ("F", m))]\n',
        "not-each-once: the last backwards are forgotten": _ORDER
        + "    a = min(stages - 1 - number, micro_batches)\n"
        '    tasks = [("F", m) for m in range(a)]\n'
        "    for m in range(a, micro_batches):\n"
        '        tasks += [("F", m), ("B", m - a)]\n'
        "    return tasks\n",
        "not-each-once: more forwards than micro-batches": _ORDER + "    a = stages - 1 - number\n"
        '    tasks = [("F", m) for m in range(a)]\n'
        "    for m in range(a, micro_batches):\n"
        '        tasks += [("F", m), ("B", m - a)]\n'
        '    return tasks + [("B", m) for m in range(max(0, micro_batches - a), micro_batches)]\n',
        "holds-too-many: one more ahead": _ORDER + "    a = min(stages - number, micro_batches)\n"
        '    tasks = [("F", m) for m in range(a)]\n'
        "    for m in range(a, micro_batches):\n"
        '        tasks += [("F", m), ("B", m - a)]\n'
        '    return tasks + [("B", m) for m in range(micro_batches - a, micro_batches)]\n',
        "returns-nothing": _ORDER + "    print(number)\n",
        "no-list": _ORDER + "    return {'F': range(micro_batches), 'B': range(micro_batches)}\n",
        "from-the-other-end": _turns("min(number, micro_batches)"),
        "another-order: the last backwards in reverse": _turns()
        .replace("in range(micro_batches - a, micro", "in reversed(range(micro_batches - a, micro")
        .replace("micro_batches)]\n", "micro_batches))]\n"),
        "not-each-once: counted from one": _turns()
        .replace("range(a)", "range(1, a + 1)")
        .replace("range(a, micro_batches)", "range(a + 1, micro_batches + 1)")
        .replace("range(micro_batches - a, micro_batches)", "range(1, a + 1)"),
        "not-each-once: the forwards ahead once more": _ORDER
        + "    a = min(stages - 1 - number, micro_batches)\n"
        '    tasks = [("F", m) for m in range(a)]\n'
        "    for m in range(micro_batches):\n"
        '        tasks += [("F", m), ("B", m)]\n'
        "    return tasks\n",
        "no-pairs: words": _ORDER + "    return [f'F{m}' for m in range(micro_batches)]\n",
        "no-pairs: the number first": _ORDER + "    return [(m, 'F') for m in range(stages)]\n",
        "no-such-task": _turns().replace('"F"', '"forward"').replace('"B"', '"backward"'),
        "holds-too-many: every stage as the first": _turns("min(stages - 1, micro_batches)"),
        "it-raises: yielded": _ORDER + "    yield ('F', 0)\n    yield [][number]\n",
        "no-pairs": _ORDER + "    return list(range(micro_batches))\n",
        "it-raises": _ORDER + '    return [("F", m) for m in range(micro_batch)]\n',
    },
    "10.cut": {
        "equal-numbers": _CUT + "    n = len(costs)\n"
        "    edges = [i * n // stages for i in range(stages + 1)]\n"
        "    return [b - a for a, b in zip(edges, edges[1:])]\n",
        "not-the-best: up to the mean, the rest at the end": _CUT
        + "    goal, counts, load = sum(costs) / stages, [0], 0.0\n"
        "    for i, cost in enumerate(costs):\n"
        "        left = len(costs) - i\n"
        "        more = stages - len(counts)\n"
        "        if counts[-1] and more and (load + cost > goal or left == more):\n"
        "            counts.append(0)\n            load = 0.0\n"
        "        counts[-1] += 1\n        load += cost\n"
        "    return counts\n",
        "not-all-layers: the ends of the stages": _CUT + "    from itertools import combinations\n"
        "    def slowest(ends):\n"
        "        e = [0, *ends, len(costs)]\n"
        "        return max(sum(costs[a:b]) for a, b in zip(e, e[1:]))\n"
        "    ends = min(combinations(range(1, len(costs)), stages - 1), key=slowest)\n"
        "    return [*ends, len(costs)]\n",
        "other-number-of-stages: the cuts": _CUT + "    return [1] * (stages - 1)\n",
        "empty-stage": _CUT + "    return [len(costs)] + [0] * (stages - 1)\n",
        "changes-costs": _CUT + "    n = len(costs)\n    costs.sort()\n    costs.append(0)\n"
        "    return [n - stages + 1] + [1] * (stages - 1)\n",
        "returns-nothing": _CUT + "    print(costs)\n",
        "no-list: the slowest stage": _CUT + "    return max(costs)\n",
        "no-list: fractions of layers": _CUT + "    return [len(costs) / stages] * stages\n",
        "not-all-layers: the costs of the stages": _best_by("max(costs_of(ends))").replace(
            "[b - a for a", "[sum(costs[a:b]) for a"
        ),
        "not-the-best: the squares of the costs": _best_by("sum(c * c for c in costs_of(ends))"),
        "not-the-best: the most even": _best_by("max(costs_of(ends)) - min(costs_of(ends))"),
        "not-the-best: the fastest stage": _best_by("min(costs_of(ends))", best="max"),
        "not-the-best: the slowest cut": _best_by("max(costs_of(ends))", best="max"),
        "not-the-best: the layers need not be in order": _CUT
        + "    loads = [[0, 0] for _ in range(stages)]\n"
        "    for cost in sorted(costs, reverse=True):\n"
        "        least = min(loads)\n        least[0] += cost\n        least[1] += 1\n"
        "    return [count for _, count in loads]\n",
        "it-raises": _CUT + "    return costs[stages * 100]\n",
    },
}
