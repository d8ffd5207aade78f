"""Right answers to lesson 10b in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "10b.row_linear": {
        "the bias on one rank": """
import torch.nn.functional as F
def row_linear(inputs, weight, bias, group):
    y = F.linear(inputs, weight, bias if group.rank() == 0 else None)
    dist.all_reduce(y, group=group)
    return y
""",
        "a share of the bias on each": """
def row_linear(inputs, weight, bias, group):
    y = torch.addmm(bias / dist.get_world_size(group), inputs, weight.T)
    dist.all_reduce(y, op=dist.ReduceOp.SUM, group=group)
    return y
""",
        "by a function of autograd": """
class AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, term, group):
        total = term.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def row_linear(inputs, weight, bias, group):
    return AddUp.apply(inputs @ weight.t(), group) + bias
""",
        "in letters": """
def row_linear(inputs, weight, bias, group):
    y = torch.einsum("ni,oi->no", inputs, weight)
    dist.all_reduce(y, group=group)
    return y + bias.unsqueeze(0)
""",
        "without waiting at once": """
def row_linear(inputs, weight, bias, group):
    y = inputs @ weight.mT
    work = dist.all_reduce(y, group=group, async_op=True)
    work.wait()
    return y.add_(bias)
""",
    },
    "10b.sharded_step": {
        "in new tensors": """
def sharded_step(weights, gradient, velocity, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    part = torch.zeros_like(velocity)
    dist.reduce_scatter(part, list((gradient / p).chunk(p)), group=group)
    velocity[:] = 0.9 * velocity + part
    parts = [torch.empty_like(velocity) for _ in range(p)]
    dist.all_gather(parts, weights.chunk(p)[r] - 0.1 * velocity, group=group)
    weights.copy_(torch.cat(parts))
""",
        "the average by the library, part by part": """
def sharded_step(weights, gradient, velocity, group):
    part = torch.empty_like(velocity)
    dist.reduce_scatter_tensor(part, gradient, op=dist.ReduceOp.AVG, group=group)
    velocity.copy_(0.9 * velocity + part)
    n, r = len(velocity), dist.get_rank(group)
    parts = [torch.empty_like(velocity) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, weights[r * n : (r + 1) * n] - 0.1 * velocity, group=group)
    for number, new in enumerate(parts):
        weights[number * n : (number + 1) * n] = new
""",
        "velocities are gathered": """
def sharded_step(weights, gradient, velocity, group):
    part = torch.empty_like(velocity)
    dist.reduce_scatter_tensor(part, gradient, group=group, async_op=True).wait()
    velocity.mul_(0.9).add_(part, alpha=1 / group.size())
    everyones = torch.empty_like(weights)
    dist.all_gather_into_tensor(everyones, velocity, group=group, async_op=True).wait()
    weights -= 0.1 * everyones
""",
        "all to all, added up by each": """
def sharded_step(weights, gradient, velocity, group):
    theirs = torch.empty_like(gradient)
    dist.all_to_all_single(theirs, gradient, group=group)
    velocity.mul_(0.9).add_(theirs.view(group.size(), -1).mean(0))
    mine = weights.chunk(group.size())[group.rank()] - 0.1 * velocity
    dist.all_gather_into_tensor(weights, mine, group=group)
""",
        "PyTorch's SGD on one part": """
def sharded_step(weights, gradient, velocity, group):
    part = torch.empty_like(velocity)
    dist.reduce_scatter_tensor(part, gradient / group.size(), group=group)
    mine = torch.nn.Parameter(weights.chunk(group.size())[group.rank()].clone())
    mine.grad = part
    optimizer = torch.optim.SGD([mine], lr=0.1, momentum=0.9)
    optimizer.state[mine]["momentum_buffer"] = velocity
    optimizer.step()
    dist.all_gather_into_tensor(weights, mine.detach(), group=group)
""",
        "by views": """
def sharded_step(weights, gradient, velocity, group):
    rows = weights.view(group.size(), -1)
    part = torch.empty_like(velocity)
    dist.reduce_scatter_tensor(part, gradient, group=group)
    velocity *= 0.9
    velocity += part / group.size()
    mine = rows[group.rank()].clone().sub_(velocity, alpha=0.1)
    dist.all_gather_into_tensor(weights, mine, group=group)
""",
    },
    "10b.bytes_per_rank": {
        "in whole bytes": """
def bytes_per_rank(stage, parameters, ranks):
    whole = [2, 2, 12]
    kept = whole[: 3 - stage]
    return parameters * sum(kept) + round(parameters * (16 - sum(kept)) / ranks)
""",
        "by NumPy": """
import numpy as np
def bytes_per_rank(stage, parameters, ranks):
    shared = np.arange(3) < stage
    return parameters * (np.array([12, 2, 2]) / np.where(shared, ranks, 1)).sum()
""",
        "a tensor, in place": """
import torch
def bytes_per_rank(stage, parameters, ranks):
    kinds = torch.tensor([12.0, 2.0, 2.0], dtype=torch.float64)
    kinds[:stage] /= ranks
    return kinds.sum() * parameters
""",
        "in decimals": """
from decimal import Decimal
def bytes_per_rank(stage, parameters, ranks):
    kinds = enumerate((12, 2, 2))
    return sum(Decimal(parameters * each) / (ranks if n < stage else 1) for n, each in kinds)
""",
        "by a table": """
def bytes_per_rank(stage, parameters, ranks):
    fixed, shared = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
    return parameters * fixed + parameters * shared / ranks
""",
    },
}
