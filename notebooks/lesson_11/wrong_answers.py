"""The usual wrong answers to lesson 11: from a mistake's name to a function that makes it."""

_INTENSITY = "def linear_intensity(batch, inputs, outputs, size):\n"
_LEAST = "def least_seconds(layers, peak, bandwidth):\n"
_SHARE = "def read_share(file, starts, rank, world_size):\n"
_SHARE_ENDS = (
    _SHARE + "    n = len(starts) - 1\n"
    "    first, last = n * rank // world_size, n * (rank + 1) // world_size\n"
)
_CUT = "    return [block[starts[i] - begin : starts[i + 1] - begin] for i in range(first, last)]\n"
_CULPRIT = (
    "from collections import Counter\n"
    "def waits(spans):\n"
    "    return sum(end - start for name, start, end in spans if name == 'sync')\n"
    "def self_times(spans):\n"
    "    found, around = Counter(), []\n"
    "    for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):\n"
    "        while around and around[-1][1] <= start:\n"
    "            around.pop()\n"
    "        found[name] += end - start\n"
    "        if around:\n"
    "            found[around[-1][0]] -= end - start\n"
    "        around.append((name, end))\n"
    "    return found\n"
    "def in_sync(span, spans):\n"
    "    return any(n == 'sync' and a <= span[1] and span[2] <= b for n, a, b in spans)\n"
    "def outside(spans):\n"
    "    kept = [s for s in spans if s[0] == 'sync' or not in_sync(s, spans)]\n"
    "    found = self_times(kept)\n"
    "    found.pop('sync', None)\n"
    "    return found\n"
    "def culprit(traces):\n"
    "    ranks = range(len(traces))\n"
)
_LATEST = "    rank = min(ranks, key=lambda r: waits(traces[r]))\n"


def _by_sync(measure: str) -> str:
    """Return the answer that takes the rank for which a measure of its syncs is smallest."""
    return (
        "def measure(spans):\n"
        "    syncs = [span for span in spans if span[0] == 'sync']\n"
        f"    return {measure}\n"
        f"{_CULPRIT}    rank = min(ranks, key=lambda r: measure(traces[r]))\n"
        "    found = outside(traces[rank])\n"
        "    return rank, max(found, key=found.get)\n"
    )


WRONG_ANSWERS = {
    "11.linear_intensity": {
        "a-product-is-one-operation": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + outputs + batch * outputs\n"
        "    return batch * inputs * outputs / (size * numbers)\n",
        "numbers-not-bytes": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + outputs + batch * outputs\n"
        "    return 2 * batch * inputs * outputs / numbers\n",
        "always-four-bytes": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + outputs + batch * outputs\n"
        "    return 2 * batch * inputs * outputs / (4 * numbers)\n",
        "forgets-the-weights": _INTENSITY
        + "    return 2 * batch * inputs * outputs / (size * batch * (inputs + outputs))\n",
        "only-the-weights": _INTENSITY
        + "    return 2 * batch * inputs * outputs / (size * inputs * outputs)\n",
        "forgets-the-output": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + outputs\n"
        "    return 2 * batch * inputs * outputs / (size * numbers)\n",
        "forgets-the-input": _INTENSITY
        + "    numbers = batch * outputs + inputs * outputs + outputs\n"
        "    return 2 * batch * inputs * outputs / (size * numbers)\n",
        "forgets-the-bias": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + batch * outputs\n"
        "    return 2 * batch * inputs * outputs / (size * numbers)\n",
        "weights-for-every-sample": _INTENSITY
        + "    of_one = inputs + inputs * outputs + outputs + outputs\n"
        "    return 2 * inputs * outputs / (size * of_one)\n",
        "bias-for-every-sample": _INTENSITY
        + "    numbers = batch * (inputs + outputs + outputs) + inputs * outputs\n"
        "    return 2 * batch * inputs * outputs / (size * numbers)\n",
        "bias-among-the-operations": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + outputs + batch * outputs\n"
        "    return batch * outputs * (2 * inputs + 1) / (size * numbers)\n",
        "bytes-for-each-flop": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + outputs + batch * outputs\n"
        "    return size * numbers / (2 * batch * inputs * outputs)\n",
        "flop-not-intensity": _INTENSITY + "    return 2 * batch * inputs * outputs\n",
        "returns-nothing": _INTENSITY + "    print(2 * batch * inputs * outputs)\n",
        "wrong-value: operations of one sample": _INTENSITY
        + "    numbers = batch * inputs + inputs * outputs + outputs + batch * outputs\n"
        "    return 2 * inputs * outputs / (size * numbers)\n",
        "it-raises: a name that is not there": _INTENSITY + "    return 2 * b * inputs\n",
    },
    "11.least_seconds": {
        "roof-over-the-total": _LEAST + "    flops = sum(f for f, _ in layers)\n"
        "    moved = sum(m for _, m in layers)\n"
        "    return max(flops / peak, moved / bandwidth)\n",
        "roof-over-the-total: by the total's intensity": _LEAST
        + "    flops, moved = map(sum, zip(*layers))\n"
        "    return flops / min(peak, bandwidth * flops / moved)\n",
        "adds-the-two-times": _LEAST
        + "    return sum(f / peak + m / bandwidth for f, m in layers)\n",
        "takes-the-smaller-time": _LEAST
        + "    return sum(min(f / peak, m / bandwidth) for f, m in layers)\n",
        "arithmetic-only": _LEAST + "    return sum(f for f, _ in layers) / peak\n",
        "memory-only": _LEAST + "    return sum(m for _, m in layers) / bandwidth\n",
        "slowest-layer-only": _LEAST
        + "    return max(max(f / peak, m / bandwidth) for f, m in layers)\n",
        "mean-not-sum": _LEAST + "    times = [max(f / peak, m / bandwidth) for f, m in layers]\n"
        "    return sum(times) / len(times)\n",
        "first-layer-only": _LEAST + "    total = 0\n"
        "    for f, m in layers:\n"
        "        total += max(f / peak, m / bandwidth)\n"
        "        return total\n",
        "flop-and-bytes-exchanged": _LEAST
        + "    return sum(max(m / peak, f / bandwidth) for f, m in layers)\n",
        "speed-not-time": _LEAST
        + "    return sum(min(peak, bandwidth * f / m) for f, m in layers)\n",
        "a-list-not-a-sum": _LEAST
        + "    return [max(f / peak, m / bandwidth) for f, m in layers]\n",
        "returns-nothing": _LEAST + "    total = 0\n"
        "    for f, m in layers:\n"
        "        total += max(f / peak, m / bandwidth)\n",
        "off-by-a-factor: in milliseconds": _LEAST
        + "    return 1000 * sum(max(f / peak, m / bandwidth) for f, m in layers)\n",
    },
    "11.read_share": {
        "returns-nothing": _SHARE_ENDS + "    file.seek(starts[first])\n"
        "    block = file.read(starts[last] - starts[first])\n",
        "one-piece-not-a-list": _SHARE_ENDS + "    file.seek(starts[first])\n"
        "    return file.read(starts[last] - starts[first])\n",
        "every-size-th-sample": _SHARE + "    found = []\n"
        "    for i in range(rank, len(starts) - 1, world_size):\n"
        "        file.seek(starts[i])\n"
        "        found.append(file.read(starts[i + 1] - starts[i]))\n"
        "    return found\n",
        "drops-the-remainder": _SHARE + "    each = (len(starts) - 1) // world_size\n"
        "    first, last = rank * each, (rank + 1) * each\n"
        "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read(starts[last] - begin)\n" + _CUT,
        "remainder-to-the-last": _SHARE + "    n = len(starts) - 1\n"
        "    each = n // world_size\n"
        "    first, last = rank * each, n if rank == world_size - 1 else (rank + 1) * each\n"
        "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read(starts[last] - begin)\n" + _CUT,
        "wrong-place-in-the-file": _SHARE_ENDS + "    begin = starts[first]\n"
        "    block = file.read(starts[last] - begin)\n" + _CUT,
        "wrong-place-in-the-file: from the end of the header": _SHARE_ENDS
        + "    begin = starts[first]\n"
        "    file.seek(begin - starts[0])\n"
        "    block = file.read(starts[last] - begin)\n" + _CUT,
        "cut-in-wrong-places": _SHARE_ENDS + "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read(starts[last] - begin)\n"
        "    return [block[starts[i] : starts[i + 1]] for i in range(first, last)]\n",
        "one-sample-too-few": _SHARE_ENDS + "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read(starts[last] - begin)\n"
        "    return [block[starts[i] - begin : starts[i + 1] - begin]\n"
        "            for i in range(first, last - 1)]\n",
        "reads-the-whole-file": _SHARE_ENDS + "    file.seek(0)\n"
        "    whole = file.read()\n"
        "    return [whole[starts[i] : starts[i + 1]] for i in range(first, last)]\n",
        "a-read-for-each-sample": _SHARE_ENDS + "    file.seek(starts[first])\n"
        "    return [file.read(starts[i + 1] - starts[i]) for i in range(first, last)]\n",
        "reads-too-much": _SHARE_ENDS + "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read(starts[last] - begin + 4)\n" + _CUT,
        "everything": _SHARE + "    file.seek(starts[0])\n"
        "    return [file.read(b - a) for a, b in zip(starts, starts[1:])]\n",
        "not-bytes": _SHARE + "    return len(starts)\n",
        "takes-starts-for-samples": _SHARE + "    n = len(starts)\n"
        "    first, last = n * rank // world_size, n * (rank + 1) // world_size\n"
        "    last = min(last, n - 1)\n"
        "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read(starts[last] - begin)\n" + _CUT,
        "not-by-read: by the system's number of the file": "import os\n"
        + _SHARE_ENDS
        + "    begin = starts[first]\n"
        "    block = os.pread(file.fileno(), starts[last] - begin, begin)\n" + _CUT,
        "not-by-read: opened once more": _SHARE_ENDS + "    whole = open(file.name, 'rb').read()\n"
        "    return [whole[starts[i] : starts[i + 1]] for i in range(first, last)]\n",
        "reads-the-whole-file: from its share on": _SHARE_ENDS + "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read()\n" + _CUT,
        "it-raises: the list of starts is too short": _SHARE + "    n = len(starts)\n"
        "    first, last = n * rank // world_size, n * (rank + 1) // world_size\n"
        "    begin = starts[first]\n"
        "    file.seek(begin)\n"
        "    block = file.read(starts[last] - begin)\n" + _CUT,
    },
    "11.culprit": {
        "blames-the-one-that-waits": _CULPRIT
        + "    rank = max(ranks, key=lambda r: waits(traces[r]))\n"
        "    found = outside(traces[rank])\n"
        "    return rank, max(found, key=found.get)\n",
        "blames-the-collective": _CULPRIT + "    found = [self_times(spans) for spans in traces]\n"
        "    rank = max(ranks, key=lambda r: max(found[r].values()))\n"
        "    return rank, max(found[rank], key=found[rank].get)\n",
        "total-not-self-time": _CULPRIT + _LATEST + "    found = Counter()\n"
        "    for name, start, end in traces[rank]:\n"
        "        if name != 'sync':\n"
        "            found[name] += end - start\n"
        "    return rank, max(found, key=found.get)\n",
        "longest-single-span": _CULPRIT
        + _LATEST
        + "    own = [s for s in traces[rank] if 'aten' in s[0] and not in_sync(s, traces[rank])]\n"
        "    return rank, max(own, key=lambda span: span[2] - span[1])[0]\n",
        "most-calls": _CULPRIT
        + _LATEST
        + "    return rank, Counter(span[0] for span in traces[rank]).most_common(1)[0][0]\n",
        "counts-what-is-inside-sync": _CULPRIT + _LATEST + "    found = self_times(traces[rank])\n"
        "    del found['sync']\n"
        "    return rank, max(found, key=found.get)\n",
        "sync-left-in-what-surrounds-it": _CULPRIT
        + _LATEST
        + "    found = self_times([s for s in traces[rank] if not in_sync(s, traces[rank])])\n"
        "    return rank, max(found, key=found.get)\n",
        "operators-only": _CULPRIT + _LATEST + "    found = outside(traces[rank])\n"
        "    found = {name: own for name, own in found.items() if name.startswith('aten::')}\n"
        "    return rank, max(found, key=found.get)\n",
        "first-step-only": _CULPRIT + "    def first_wait(spans):\n"
        "        start, end = min((a, b) for name, a, b in spans if name == 'sync')\n"
        "        return end - start\n"
        "    rank = min(ranks, key=lambda r: first_wait(traces[r]))\n"
        "    found = outside(traces[rank])\n"
        "    return rank, max(found, key=found.get)\n",
        "longest-or-last-sync": _by_sync("max(b - a for _, a, b in syncs)"),
        "longest-or-last-sync: the last step": _by_sync("max((a, b - a) for _, a, b in syncs)[1]"),
        "wrong-rank: the shortest sync": _by_sync("min(b - a for _, a, b in syncs)"),
        "wrong-rank: the median": _by_sync("sorted(b - a for _, a, b in syncs)[len(syncs) // 2]"),
        "longest-or-last-sync: the last of the list": _by_sync("syncs[-1][2] - syncs[-1][1]"),
        "wrong-rank: the longest load": _by_sync(
            "-sum(b - a for name, a, b in spans if name == 'load')"
        ),
        "returns-nothing": _CULPRIT + _LATEST,
        "not-a-pair": _CULPRIT + _LATEST + "    return rank\n",
        "wrong-rank: the last one": _CULPRIT + "    found = outside(traces[-1])\n"
        "    return len(traces) - 1, max(found, key=found.get)\n",
        "wrong-name: always load": _CULPRIT + _LATEST + "    return rank, 'load'\n",
    },
}
