"""The usual wrong answers to lesson 10b: from a mistake's name to a function that makes it."""

_ROW = "import torch.nn.functional as F\ndef row_linear(inputs, weight, bias, group):\n"
_STEP = "def sharded_step(weights, gradient, velocity, group):\n"
_STEP_SIZES = _STEP + "    p, r = dist.get_world_size(group), dist.get_rank(group)\n"
_SCATTER = (
    "    part = torch.empty_like(velocity)\n"
    "    dist.reduce_scatter(part, list(gradient.chunk(p)), group=group)\n"
)
_GATHER = (
    "    mine = weights.chunk(p)[r] - 0.1 * velocity\n"
    "    dist.all_gather(list(weights.chunk(p)), mine, group=group)\n"
)
_BYTES = "def bytes_per_rank(stage, parameters, ranks):\n"


def _kinds(
    weights: str = "stage >= 3", gradients: str = "stage >= 2", optimizer: str = "stage >= 1"
) -> str:
    """Return the formula, with the conditions under which each kind is divided."""
    return (
        f"{_BYTES}    w = 2 / ranks if {weights} else 2\n"
        f"    g = 2 / ranks if {gradients} else 2\n"
        f"    o = 12 / ranks if {optimizer} else 12\n"
        "    return parameters * (w + g + o)"
    )


WRONG_ANSWERS = {
    "10b.row_linear": {
        "bias-on-every-rank": _ROW + "    y = F.linear(inputs, weight, bias)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y\n",
        "no-communication": _ROW + "    return F.linear(inputs, weight) + bias\n",
        "forgets-the-bias": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y\n",
        "mean-not-sum": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y / dist.get_world_size(group) + bias\n",
        "gathers-everything": _ROW + "    y = F.linear(inputs, weight)\n"
        "    parts = [torch.empty_like(y) for _ in range(dist.get_world_size(group))]\n"
        "    dist.all_gather(parts, y, group=group)\n"
        "    return sum(parts) + bias\n",
        "too-many-collectives": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.reduce(y, group=group, group_dst=0)\n"
        "    dist.broadcast(y, group=group, group_src=0)\n"
        "    return y + bias\n",
        "forgets-the-group": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y)\n"
        "    return y + bias\n",
        "changes-its-inputs": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    y += bias\n"
        "    inputs.relu_()\n"
        "    return y\n",
        "no-tensor": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    y += bias\n",
        "not-on-every-rank: reduced to one": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.reduce(y, group=group, group_dst=0)\n"
        "    return y + bias\n",
        "does-not-wait": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, group=group, async_op=True)\n"
        "    return y + bias\n",
        "loses-digits": _ROW + "    y = F.linear(inputs, weight).bfloat16()\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y.double() + bias\n",
        "not-by-dist": "import torch.distributed._functional_collectives as functional\n"
        + _ROW
        + "    return functional.all_reduce(F.linear(inputs, weight), 'sum', group) + bias\n",
        "wrong-value: the largest term": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, op=dist.ReduceOp.MAX, group=group)\n"
        "    return y + bias\n",
        "mean-not-sum: the library's": _ROW + "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, op=dist.ReduceOp.AVG, group=group)\n"
        "    return y + bias\n",
        "wrong-shape: side by side": _ROW + "    y = F.linear(inputs, weight)\n"
        "    parts = [torch.empty_like(y) for _ in range(dist.get_world_size(group))]\n"
        "    dist.all_gather(parts, y, group=group)\n"
        "    return torch.cat(parts, 1)\n",
        "size-is-fixed: the bias on the world's rank 0": _ROW
        + "    y = F.linear(inputs, weight, bias if dist.get_rank() == 0 else None)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y\n",
        "changes-its-inputs: the bias": _ROW + "    bias /= dist.get_world_size(group)\n"
        "    y = F.linear(inputs, weight, bias)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y\n",
        "it-raises: on one rank": _ROW + "    if dist.get_rank(group) == 1:\n"
        "        raise KeyError('mine')\n"
        "    y = F.linear(inputs, weight)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y + bias\n",
        "it-raises: PyTorch's weight is transposed already": _ROW
        + "    y = F.linear(inputs, weight.T)\n"
        "    dist.all_reduce(y, group=group)\n"
        "    return y + bias\n",
        "it-hangs": _ROW + "    y = F.linear(inputs, weight)\n"
        "    if dist.get_rank(group) > 0:\n"
        "        dist.all_reduce(y, group=group)\n"
        "    return y + bias\n",
    },
    "10b.sharded_step": {
        "sum-not-mean": _STEP_SIZES + _SCATTER + "    velocity.mul_(0.9).add_(part)\n" + _GATHER,
        "all-reduces": _STEP_SIZES + "    dist.all_reduce(gradient, group=group)\n"
        "    velocity.mul_(0.9).add_(gradient.chunk(p)[r] / p)\n" + _GATHER,
        "own-gradient": _STEP_SIZES
        + "    velocity.mul_(0.9).add_(gradient.chunk(p)[r])\n"
        + _GATHER,
        "does-not-gather": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + "    weights.chunk(p)[r].sub_(0.1 * velocity)\n",
        "velocity-not-kept": _STEP_SIZES
        + _SCATTER
        + "    velocity = 0.9 * velocity + part / p\n"
        + _GATHER,
        "weights-not-changed": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + "    mine = weights.chunk(p)[r] - 0.1 * velocity\n"
        + "    weights = torch.empty_like(weights)\n"
        + "    dist.all_gather(list(weights.chunk(p)), mine, group=group)\n",
        "forgets-the-group": _STEP_SIZES
        + "    part = torch.empty_like(velocity)\n"
        + "    dist.reduce_scatter(part, list(gradient.chunk(p)))\n"
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER,
        "no-communication": _STEP_SIZES + "    velocity.mul_(0.9).add_(gradient.chunk(p)[r])\n",
        "no-momentum": _STEP_SIZES + _SCATTER + "    velocity.copy_(part / p)\n" + _GATHER,
        "wrong-velocity: a tenth of the gradient": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(0.1 * part / p)\n"
        + _GATHER,
        "uphill": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER.replace("- 0.1", "+ 0.1"),
        "wrong-part": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER.replace("[r]", "[0]"),
        "wrong-weights: the velocity of the step before": _STEP_SIZES
        + _SCATTER
        + "    mine = weights.chunk(p)[r] - 0.1 * velocity\n"
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + "    dist.all_gather(list(weights.chunk(p)), mine, group=group)\n",
        "gathers-too-much": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + "    weights.chunk(p)[r].sub_(0.1 * velocity)\n"
        + "    everyones = [torch.empty_like(weights) for _ in range(p)]\n"
        + "    dist.all_gather(everyones, weights, group=group)\n"
        + "    for i in range(p):\n"
        + "        weights.chunk(p)[i].copy_(everyones[i].chunk(p)[i])\n",
        "too-many-collectives: all gradients to everyone": _STEP_SIZES
        + "    everyones = [torch.empty_like(gradient) for _ in range(p)]\n"
        + "    dist.all_gather(everyones, gradient, group=group)\n"
        + "    velocity.mul_(0.9).add_(sum(everyones).chunk(p)[r] / p)\n"
        + _GATHER,
        "all-reduces-weights": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + "    new = torch.zeros_like(weights)\n"
        + "    new.chunk(p)[r].copy_(weights.chunk(p)[r] - 0.1 * velocity)\n"
        + "    dist.all_reduce(new, group=group)\n"
        + "    weights.copy_(new)\n",
        "loses-digits": _STEP_SIZES
        + "    part = torch.empty(len(velocity))\n"
        + "    dist.reduce_scatter_tensor(part, gradient.float(), group=group)\n"
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER,
        "does-not-wait": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER.replace("group=group)", "group=group, async_op=True)"),
        "size-is-fixed": _STEP
        + "    p, r = dist.get_world_size(), dist.get_rank()\n"
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER,
        "it-raises: on one rank, in the middle": _STEP_SIZES
        + _SCATTER
        + "    if r == 2:\n        raise RuntimeError('mine')\n"
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER,
        "it-raises": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + "    weights -= 0.1 * velocity\n",
        "it-hangs": _STEP_SIZES
        + "    if r == 0:\n        return\n"
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + _GATHER,
        "ranks-disagree: rank 0 tells nobody its weights": _STEP_SIZES
        + _SCATTER
        + "    velocity.mul_(0.9).add_(part / p)\n"
        + "    if r == 0:\n        return\n"
        + _GATHER,
    },
    "10b.bytes_per_rank": {
        "forgets-the-master-copy": _BYTES + "    w = 2 / ranks if stage >= 3 else 2\n"
        "    g = 2 / ranks if stage >= 2 else 2\n"
        "    o = 8 / ranks if stage >= 1 else 8\n"
        "    return parameters * (w + g + o)\n",
        "off-by-one-stage": _BYTES + "    w = 2 / ranks if stage >= 2 else 2\n"
        "    g = 2 / ranks if stage >= 1 else 2\n"
        "    return parameters * (w + g + 12 / ranks)\n",
        "shards-everything": _BYTES
        + "    return 16 * parameters / ranks if stage else 16 * parameters\n",
        "nothing-divided": _BYTES + "    return 16 * parameters\n",
        "weights-first": _BYTES + "    w = 2 / ranks if stage >= 1 else 2\n"
        "    g = 2 / ranks if stage >= 2 else 2\n"
        "    o = 12 / ranks if stage >= 3 else 12\n"
        "    return parameters * (w + g + o)\n",
        "returns-nothing": _BYTES + "    print(16 * parameters)\n",
        "not-a-number": _BYTES + "    return [2, 2, 12]\n",
        "only-one-kind": _kinds("stage == 3", "stage == 2", "stage == 1"),
        "all-ranks-together": _kinds() + " * ranks\n",
        "for-one-parameter": _kinds().replace("parameters * (w", "(w"),
        "in-gigabytes": _kinds() + " / 1e9\n",
        "wrong-number: gradients in float32": _kinds()
        .replace("g = 2", "g = 4")
        .replace("stage >= 2 else 2", "stage >= 2 else 4"),
        "wrong-number: divided by the stage": _BYTES
        + "    return 16 * parameters / (stage or 1)\n",
        "wrong-number: no fractions of a byte": _kinds().replace(" / ranks", " // ranks"),
        "it-raises": _BYTES + "    return {0: 16}[stage] * parameters\n",
        "wrong-number: float32 throughout": _BYTES + "    w = 4 / ranks if stage >= 3 else 4\n"
        "    g = 4 / ranks if stage >= 2 else 4\n"
        "    o = 8 / ranks if stage >= 1 else 8\n"
        "    return parameters * (w + g + o)\n",
    },
}
