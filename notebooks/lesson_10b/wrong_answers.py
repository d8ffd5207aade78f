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
        "not-a-number": _BYTES + "    print(16 * parameters)\n",
        "wrong-number: float32 throughout": _BYTES + "    w = 4 / ranks if stage >= 3 else 4\n"
        "    g = 4 / ranks if stage >= 2 else 4\n"
        "    o = 8 / ranks if stage >= 1 else 8\n"
        "    return parameters * (w + g + o)\n",
    },
}
