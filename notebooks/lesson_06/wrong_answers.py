"""The usual wrong answers to lesson 06: from a mistake's name to a function that makes it."""

_BUCKETED = """
def bucketed_sync(parameters, bucket_bytes, group):
    waiting, sent = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting])
        sent.append((dist.all_reduce(flat, group=group, async_op=True), flat, list(waiting)))
        waiting.clear()

    def hook(parameter):
        waiting.append(parameter)
        if sum(p.nbytes for p in waiting) >= bucket_bytes:
            send()

    def finish():
        if waiting:
            send()
        for handle, flat, members in sent:
            handle.wait()
            parts = (flat / dist.get_world_size(group)).split([p.numel() for p in members])
            for parameter, part in zip(members, parts):
                parameter.grad.copy_(part.view_as(parameter))
        sent.clear()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
    return finish
"""


def _bucketed(right: str, wrong: str) -> str:
    """Return the right answer with one thing changed."""
    if right not in _BUCKETED:
        raise ValueError(f"{right!r} is not in the right answer")
    return _BUCKETED.replace(right, wrong)


WRONG_ANSWERS = {
    "06.epoch_seconds": {
        "one-rank-synchronises": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return samples / (ranks * batch) * (comp + sync)
""",
        "steps-not-shared": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return samples / batch * (comp + (sync if ranks > 1 else 0))
""",
        "sync-once-per-epoch": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return samples / (ranks * batch) * comp + (sync if ranks > 1 else 0)
""",
        "forgets-sync": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return samples / (ranks * batch) * comp
""",
        "sync-not-shared": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return samples / (ranks * batch) * (comp + (ranks * sync if ranks > 1 else 0))
""",
        "wrong-value": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return batch / samples * comp
""",
        "sync-of-each-pair": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return samples / (ranks * batch) * (comp + (ranks - 1) * sync)
""",
        "sync-not-shared: the batch is cut": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return samples / batch * (comp / ranks + (sync if ranks > 1 else 0))
""",
        "off-by-a-factor": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    return 1000 * samples / (ranks * batch) * (comp + (sync if ranks > 1 else 0))
""",
        "returns-nothing": """
def epoch_seconds(samples, batch, comp, sync, ranks):
    print(samples / (ranks * batch) * (comp + (sync if ranks > 1 else 0)))
""",
    },
    "06.fewest_ranks": {
        "counts-equality": """
def fewest_ranks(comp, sync_of, most):
    for ranks in range(2, most + 1):
        if sync_of(ranks) / comp <= ranks - 1:
            return ranks
    return None
""",
        "ranks-instead-of-ranks-minus-one": """
def fewest_ranks(comp, sync_of, most):
    for ranks in range(2, most + 1):
        if sync_of(ranks) / comp < ranks:
            return ranks
    return None
""",
        "sync-of-two-ranks": """
def fewest_ranks(comp, sync_of, most):
    sync = sync_of(2)
    for ranks in range(2, most + 1):
        if sync / comp < ranks - 1:
            return ranks
    return None
""",
        "stops-too-early": """
def fewest_ranks(comp, sync_of, most):
    for ranks in range(2, most):
        if sync_of(ranks) / comp < ranks - 1:
            return ranks
    return None
""",
        "ignores-comp": """
def fewest_ranks(comp, sync_of, most):
    for ranks in range(2, most + 1):
        if sync_of(ranks) < ranks - 1:
            return ranks
    return None
""",
        "not-none": """
def fewest_ranks(comp, sync_of, most):
    for ranks in range(2, most + 1):
        if sync_of(ranks) / comp < ranks - 1:
            break
    return ranks
""",
        "best-not-fewest": """
def fewest_ranks(comp, sync_of, most):
    good = [r for r in range(2, most + 1) if sync_of(r) / comp < r - 1]
    return max(good, key=lambda r: r / (1 + sync_of(r) / comp), default=None)
""",
        "wrong-value": """
def fewest_ranks(comp, sync_of, most):
    return 2
""",
        "halves-the-range": """
def fewest_ranks(comp, sync_of, most):
    def pays(ranks):
        return sync_of(ranks) / comp < ranks - 1

    if not pays(most):
        return None
    low, high = 2, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle + 1, high)
    return low
""",
        "gives-up": """
def fewest_ranks(comp, sync_of, most):
    for r in range(2, most + 1):
        if sync_of(r) / comp < r - 1:
            return r
        else:
            return None
""",
        "compares-with-one": """
def fewest_ranks(comp, sync_of, most):
    for r in range(2, most + 1):
        if sync_of(r) < comp:
            return r
    return None
""",
        "wrong-value: powers of two": """
def fewest_ranks(comp, sync_of, most):
    r = 2
    while r <= most:
        if sync_of(r) / comp < r - 1:
            return r
        r *= 2
    return None
""",
        "wrong-value: 0 for None": """
def fewest_ranks(comp, sync_of, most):
    for r in range(2, most + 1):
        if sync_of(r) < (r - 1) * comp:
            return r
    return 0
""",
        "wrong-value: a list": """
def fewest_ranks(comp, sync_of, most):
    return [r for r in range(2, most + 1) if sync_of(r) < (r - 1) * comp]
""",
    },
    "06.bucketed_sync": {
        "returns-no-function": _bucketed("    return finish\n", ""),
        "no-communication": _bucketed("register_post_accumulate_grad_hook(hook)", "requires_grad"),
        "forgets-the-group": _bucketed("group=group, ", ""),
        "sends-after-backward": _bucketed(">= bucket_bytes", ">= float('inf')"),
        "a-message-per-parameter": _bucketed(">= bucket_bytes", ">= 0"),
        "one-bucket": _bucketed(
            "sum(p.nbytes for p in waiting) >= bucket_bytes", "len(waiting) == len(parameters)"
        ),
        "last-bucket-lost": _bucketed("        if waiting:\n            send()\n", ""),
        "forward-order": """
def bucketed_sync(parameters, bucket_bytes, group):
    buckets, sent, ready = [[]], [], set()
    for parameter in parameters:
        buckets[-1].append(parameter)
        if sum(p.nbytes for p in buckets[-1]) >= bucket_bytes:
            buckets.append([])
    buckets = [bucket for bucket in buckets if bucket]

    def hook(parameter):
        ready.add(parameter)
        if len(ready) == len(parameters):
            for bucket in buckets:
                flat = torch.cat([p.grad.flatten() for p in bucket])
                handle = dist.all_reduce(flat, group=group, async_op=True)
                sent.append((handle, flat, bucket))
            ready.clear()

    def finish():
        for handle, flat, members in sent:
            handle.wait()
            parts = (flat / dist.get_world_size(group)).split([p.numel() for p in members])
            for parameter, part in zip(members, parts):
                parameter.grad.copy_(part.view_as(parameter))
        sent.clear()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
    return finish
""",
        "wrong-buckets": _bucketed(">= bucket_bytes", ">= bucket_bytes / 2"),
        "waits-in-the-hook": _bucketed(
            "        waiting.clear()\n", "        waiting.clear()\n        sent[-1][0].wait()\n"
        ),
        "never-waits": _bucketed("            handle.wait()\n", ""),
        "sum-not-mean": _bucketed("(flat / dist.get_world_size(group))", "flat"),
        "gradients-not-replaced": _bucketed(
            "parameter.grad.copy_(part.view_as(parameter))", "pass"
        ),
        "works-once": _bucketed(
            "        waiting.append(parameter)\n",
            "        if hasattr(parameter, 'seen'):\n            return\n"
            "        parameter.seen = True\n        waiting.append(parameter)\n",
        ),
        "size-is-fixed": _bucketed("flat / dist.get_world_size(group)", "flat / 4"),
        "wrong-value": _bucketed("dist.get_world_size(group)", "bucket_bytes"),
        "never-forgets-handles": """
def bucketed_sync(parameters, bucket_bytes, group):
    waiting, sent = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting])
        sent.append((dist.all_reduce(flat, group=group, async_op=True), flat, list(waiting)))
        waiting.clear()

    def hook(parameter):
        waiting.append(parameter)
        if sum(p.grad.nbytes for p in waiting) >= bucket_bytes:
            send()

    def finish():
        if waiting:
            send()
        for handle, flat, bucket in sent:
            handle.wait()
            mean = flat / dist.get_world_size(group)
            for p, part in zip(bucket, mean.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
    return finish
""",
        "divides-twice": _bucketed(
            "[p.grad.flatten() for p in waiting])",
            "[p.grad.flatten() for p in waiting]) / dist.get_world_size(group)",
        ),
        "sent-before-complete": _bucketed(
            "parameter.register_post_accumulate_grad_hook(hook)",
            "parameter.register_hook(lambda gradient, parameter=parameter: hook(parameter))",
        ),
        "hooks-too-late": _bucketed(
            "    for parameter in parameters:\n"
            "        parameter.register_post_accumulate_grad_hook(hook)\n    return finish\n",
            "    return finish\n",
        ).replace(
            "        sent.clear()\n",
            "        sent.clear()\n        for parameter in parameters:\n"
            "            parameter.register_post_accumulate_grad_hook(hook)\n",
        ),
        "sends-again": _bucketed("        waiting.clear()\n", ""),
        "wrong-value: the largest": _bucketed(
            "group=group, async_op", "op=dist.ReduceOp.MAX, group=group, async_op"
        ),
        "it-raises: gradients of another shape": _bucketed(
            "parameter.grad.copy_(part.view_as(parameter))", "parameter.grad = part"
        ),
        "it-raises: the list of those that wait, not a copy": _bucketed("list(waiting)", "waiting"),
        "wrong-buckets: more than full": _bucketed(">= bucket_bytes", "> bucket_bytes"),
        "sends-after-backward: elements for bytes": _bucketed("p.nbytes for", "p.numel() for"),
        "never-waits: but for the last": _bucketed("            handle.wait()\n", "").replace(
            "        for handle, flat", "        sent[-1][0].wait()\n        for handle, flat"
        ),
    },
    "06.waiting_share": {
        "slowest-rank-of-all": """
def waiting_share(times):
    totals = [sum(column) for column in zip(*times)]
    return 1 - sum(totals) / (len(totals) * max(totals))
""",
        "mean-of-shares": """
def waiting_share(times):
    shares = [1 - sum(step) / len(step) / max(step) for step in times]
    return sum(shares) / len(shares)
""",
        "slowdown": """
def waiting_share(times):
    return len(times[0]) * sum(map(max, times)) / sum(map(sum, times)) - 1
""",
        "seconds": """
def waiting_share(times):
    return sum(max(step) - own for step in times for own in step)
""",
        "busy-share": """
def waiting_share(times):
    return sum(map(sum, times)) / (len(times[0]) * sum(map(max, times)))
""",
        "only-rank-0": """
def waiting_share(times):
    return 1 - sum(step[0] for step in times) / sum(map(max, times))
""",
        "forgets-the-ranks": """
def waiting_share(times):
    return 1 - sum(map(sum, times)) / sum(map(max, times))
""",
        "wrong-value": """
def waiting_share(times):
    return 0.5
""",
        "over-one-rank": """
def waiting_share(times):
    waiting = sum(max(s) - t for s in times for t in s)
    return waiting / sum(map(max, times))
""",
        "steps-for-ranks": """
def waiting_share(times):
    steps = len(times)
    spent = steps * sum(max(s[r] for s in times) for r in range(len(times[0])))
    return (spent - sum(map(sum, times))) / spent
""",
        "longest-of-all-steps": """
def waiting_share(times):
    top = max(max(s) for s in times)
    n = len(times) * len(times[0])
    return (n * top - sum(map(sum, times))) / (n * top)
""",
        "only-the-first-step": """
def waiting_share(times):
    for s in times:
        return sum(max(s) - t for t in s) / (len(s) * max(s))
""",
        "only-the-last-step": """
def waiting_share(times):
    for s in times:
        share = sum(max(s) - t for t in s) / (len(s) * max(s))
    return share
""",
        "only-the-quickest": """
def waiting_share(times):
    return sum(max(s) - min(s) for s in times) / sum(map(max, times))
""",
        "off-by-a-factor": """
def waiting_share(times):
    spent = sum(len(s) * max(s) for s in times)
    return 100 * (1 - sum(map(sum, times)) / spent)
""",
        "wrong-value: one for each rank": """
def waiting_share(times):
    spent = sum(map(max, times))
    return [1 - sum(s[r] for s in times) / spent for r in range(len(times[0]))]
""",
    },
    "06.read_efficiency": {
        "baseline-is-one-rank": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = rate / base_rate / ranks
    return efficiency, 1 / efficiency - 1
""",
        "speed-up": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = rate / base_rate
    return efficiency, 1 / efficiency - 1
""",
        "upside-down": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = (base_rate / base_ranks) / (rate / ranks)
    return efficiency, 1 / efficiency - 1
""",
        "loss-instead-of-ratio": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = (rate / ranks) / (base_rate / base_ranks)
    return efficiency, 1 - efficiency
""",
        "inverse-instead-of-ratio": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = (rate / ranks) / (base_rate / base_ranks)
    return efficiency, 1 / efficiency
""",
        "per-cent": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = (rate / ranks) / (base_rate / base_ranks)
    return 100 * efficiency, 1 / efficiency - 1
""",
        "not-two-numbers": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    return (rate / ranks) / (base_rate / base_ranks)
""",
        "wrong-value": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    return 1.0, 0.0
""",
        "speed-up: with another ratio": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    return rate / base_rate, ranks / base_ranks
""",
        "per-cent: in both numbers": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    e = 100 * rate / ranks / (base_rate / base_ranks)
    return e, 1 / e - 1
""",
        "wrong-order": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    e = rate / ranks / (base_rate / base_ranks)
    return 1 / e - 1, e
""",
        "wrong-value: only the ratio": """
def read_efficiency(base_ranks, base_rate, ranks, rate):
    e = rate / ranks / (base_rate / base_ranks)
    return e, e / (1 - e)
""",
    },
}
