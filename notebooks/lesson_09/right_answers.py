"""Right answers to lesson 09 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "09.staleness": {
        "an array": """
import numpy as np


def staleness(order):
    last = {worker: 0 for worker in order}
    found = np.zeros(len(order), dtype=np.int64)
    for version, worker in enumerate(order):
        found[version] = version - last[worker]
        last[worker] = version + 1
    return found
""",
        "numbers of NumPy in a list": """
import numpy as np


def staleness(order):
    found = []
    for version, worker in enumerate(order):
        before = [v + 1 for v in range(version) if order[v] == worker]
        found.append(np.int64(version - max(before, default=0)))
    return found
""",
    },
}
