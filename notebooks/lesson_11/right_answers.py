"""Right answers to lesson 11 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "11.linear_intensity": {
        "layer by layer of the count": """
def linear_intensity(batch, inputs, outputs, size):
    weights = inputs * outputs + outputs
    moved = batch * (inputs + outputs) + weights
    return 2 * batch * inputs * outputs / moved / size
""",
        "by PyTorch": """
import torch
from torch.utils.flop_counter import FlopCounterMode
def linear_intensity(batch, inputs, outputs, size):
    layer, x = torch.nn.Linear(inputs, outputs), torch.zeros(batch, inputs)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        y = layer(x)
    numbers = sum(t.numel() for t in (x, y, *layer.parameters()))
    return counter.get_total_flops() / (numbers * size)
""",
    },
    "11.least_seconds": {
        "by the roof": """
def least_seconds(layers, peak, bandwidth):
    total = 0.0
    for flops, moved in layers:
        speed = min(peak, bandwidth * flops / moved)
        total += flops / speed
    return total
""",
        "by NumPy": """
import numpy as np
def least_seconds(layers, peak, bandwidth):
    return (np.array(layers) / [peak, bandwidth]).max(axis=1).sum()
""",
        "by the ridge": """
def least_seconds(layers, peak, bandwidth):
    ridge = peak / bandwidth
    return sum(f / peak if f > ridge * m else m / bandwidth for f, m in layers)
""",
    },
    "11.read_share": {
        "from where the file stands, cut by NumPy": """
import numpy as np
def read_share(file, starts, rank, world_size):
    n = len(starts) - 1
    first, last = n * rank // world_size, n * (rank + 1) // world_size
    file.seek(starts[first] - file.tell(), 1)
    block = np.frombuffer(file.read(starts[last] - starts[first]), np.uint8)
    places = np.array(starts[first + 1 : last]) - starts[first]
    return [piece.tobytes() for piece in np.split(block, places)]
""",
        "a view of the block": """
def read_share(file, starts, rank, world_size):
    n = len(starts) - 1
    mine = starts[n * rank // world_size : n * (rank + 1) // world_size + 1]
    file.seek(mine[0])
    block = memoryview(file.read(mine[-1] - mine[0]))
    return [bytes(block[a - mine[0] : b - mine[0]]) for a, b in zip(mine, mine[1:])]
""",
        "into a buffer": """
import io
def read_share(file, starts, rank, world_size):
    n = len(starts) - 1
    first, last = (n * r // world_size for r in (rank, rank + 1))
    buffer = bytearray(starts[last] - starts[first])
    file.seek(starts[first])
    file.readinto(buffer)
    block = io.BytesIO(buffer)
    return [block.read(starts[i + 1] - starts[i]) for i in range(first, last)]
""",
    },
    "11.culprit": {
        "by the share of sync, in NumPy": """
import numpy as np
def culprit(traces):
    def share(spans):
        sync = sum(end - start for name, start, end in spans if name == "sync")
        return sync / (max(s[2] for s in spans) - min(s[1] for s in spans))
    def within(s, other):
        return other[1] <= s[1] and s[2] <= other[2] and other[1:] != s[1:]
    rank = int(np.argmin([share(spans) for spans in traces]))
    syncs = [s for s in traces[rank] if s[0] == "sync"]
    left = [s for s in traces[rank] if not any(a <= s[1] and s[2] <= b for _, a, b in syncs)]
    own = {}
    for name, start, end in left:
        inside = [s for s in left + syncs if within(s, (name, start, end))]
        outer = [s for s in inside if not any(within(s, other) for other in inside)]
        own[name] = own.get(name, 0) + end - start - sum(e - s for _, s, e in outer)
    return rank, max(own, key=own.get)
""",
        "by what lies directly inside": """
def culprit(traces):
    def contains(a, b):
        return a is not b and a[1] <= b[1] and b[2] <= a[2] and (a[1], a[2]) != (b[1], b[2])

    waits = {r: sum(s[2] - s[1] for s in t if s[0] == "sync") for r, t in enumerate(traces)}
    rank = min(waits, key=waits.get)
    spans = traces[rank]
    found = {}
    for span in spans:
        around = [s for s in spans if contains(s, span)]
        if span[0] == "sync" or any(s[0] == "sync" for s in around):
            continue
        inside = [s for s in spans if contains(span, s)]
        direct = [s for s in inside if not any(contains(o, s) for o in inside)]
        own = span[2] - span[1] - sum(s[2] - s[1] for s in direct)
        found[span[0]] = found.get(span[0], 0) + own
    return [rank, max(found, key=found.get)]
""",
        "by moments": """
from collections import Counter
def culprit(traces):
    rank = min(range(len(traces)), key=lambda r: sum(b - a for n, a, b in traces[r] if n == "sync"))
    moments = sorted({t for _, a, b in traces[rank] for t in (a, b)})
    found = Counter()
    for start, end in zip(moments, moments[1:]):
        now = [s for s in traces[rank] if s[1] <= start and end <= s[2]]
        if now and not any(s[0] == "sync" for s in now):
            found[min(now, key=lambda s: s[2] - s[1])[0]] += end - start
    return rank, found.most_common(1)[0][0]
""",
    },
}
