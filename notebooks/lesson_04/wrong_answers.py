"""The usual wrong answers to lesson 04: from a mistake's name to a function that makes it."""

_FORWARD = """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
"""
_ACCUMULATE = "def accumulate_gradient(model, loss_function, images, labels, most):\n"
_PIECES = "zip(images.split(most), labels.split(most), strict=True)"

WRONG_ANSWERS = {
    "04.gradients": {
        "forgets-the-relu": _FORWARD + "    return e**2 + w**2, 2 * e * x + 2 * w, 2 * e\n",
        "forgets-a-path": _FORWARD
        + """
    d_u = 2 * e if u > 0 else 0
    return e**2 + w**2, d_u * x, d_u
""",
        "forgets-a-factor": _FORWARD
        + """
    d_u = 2 * e if u > 0 else 0
    return e**2 + w**2, d_u + 2 * w, d_u
""",
        "forgets-the-two": _FORWARD
        + """
    d_u = e if u > 0 else 0
    return e**2 + w**2, d_u * x + 2 * w, d_u
""",
        "wrong-sign": _FORWARD
        + """
    d_u = -2 * e if u > 0 else 0
    return e**2 + w**2, d_u * x + 2 * w, d_u
""",
        "wrong-loss": _FORWARD
        + """
    d_u = 2 * e if u > 0 else 0
    return e**2, d_u * x + 2 * w, d_u
""",
        "not-three-numbers": _FORWARD
        + """
    d_u = 2 * e if u > 0 else 0
    return d_u * x + 2 * w, d_u
""",
        "not-exact": """
def gradients(w, b, x, y):
    def loss(w, b):
        return (max(w * x + b, 0) - y) ** 2 + w**2

    h = 1e-5
    d_w = (loss(w + h, b) - loss(w, b)) / h
    d_b = (loss(w, b + h) - loss(w, b)) / h
    return loss(w, b), d_w, d_b
""",
        "uses-autograd": """
def gradients(w, b, x, y):
    import torch

    w, b = (torch.tensor(float(number), requires_grad=True) for number in (w, b))
    loss = (torch.relu(w * x + b) - y) ** 2 + w**2
    loss.backward()
    return loss.item(), w.grad.item(), b.grad.item()
""",
        "wrong-value": _FORWARD + "    return e**2 + w**2, 0, 0\n",
        "outputs-swapped": """
def gradients(w, b, x, y):
    u = w * x + b
    e = max(u, 0) - y
    d_u = 2 * e if u > 0 else 0
    return e**2 + w**2, d_u, d_u * x + 2 * w
""",
        "forgets-the-two: of w squared": """
def gradients(w, b, x, y):
    u = w * x + b
    e = max(u, 0) - y
    d_u = 2 * e if u > 0 else 0
    return e**2 + w**2, d_u * x + w, d_u
""",
        "relu-times-its-value": """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
    return e**2 + w**2, 2 * e * h * x + 2 * w, 2 * e * h
""",
        "b-like-w": """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
    g = 2 * e * (u > 0)
    return e**2 + w**2, g * x + 2 * w, g * x
""",
        "b-like-w: the penalty": """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
    g = 2 * e if u > 0 else 0
    return e**2 + w**2, g * x + 2 * w, g + 2 * w
""",
        "relu-closed": """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
    g = 2 * e if e > 0 else 0
    return e**2 + w**2, g * x + 2 * w, g
""",
        "forgets-the-error": """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
    g = 2 if u > 0 else 0
    return e**2 + w**2, g * x + 2 * w, g
""",
        "forgets-a-factor: w for x": """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
    g = 2 * e if u > 0 else 0
    return e**2 + w**2, g * w + 2 * w, g
""",
        "forgets-the-relu: another sign": """
def gradients(w, b, x, y):
    u = w * x + b
    h = max(u, 0)
    e = h - y
    g = 2 * e if w * x > 0 else 0
    return e**2 + w**2, g * x + 2 * w, g
""",
        "uses-autograd: in a helper": """
import torch

def derivatives(loss, *inputs):
    return torch.autograd.grad(loss, inputs)

def gradients(w, b, x, y):
    w, b = torch.tensor(float(w), requires_grad=True), torch.tensor(float(b), requires_grad=True)
    loss = (torch.relu(w * x + b) - y) ** 2 + w**2
    return loss.item(), *map(float, derivatives(loss, w, b))
""",
    },
    "04.mean_gradient": {
        "mean-of-means": """
def mean_gradient(gradient, samples, group):
    total = gradient.clone()
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)
""",
        "sum-of-means": """
def mean_gradient(gradient, samples, group):
    total = gradient.clone()
    dist.all_reduce(total, group=group)
    return total
""",
        "sum-not-mean": """
def mean_gradient(gradient, samples, group):
    total = gradient * samples
    dist.all_reduce(total, group=group)
    return total
""",
        "divided-by-ranks": """
def mean_gradient(gradient, samples, group):
    total = gradient * samples
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)
""",
        "own-count": """
def mean_gradient(gradient, samples, group):
    total = gradient * samples
    dist.all_reduce(total, group=group)
    return total / samples
""",
        "too-many-collectives": """
def mean_gradient(gradient, samples, group):
    total, count = gradient * samples, torch.tensor([samples])
    dist.all_reduce(total, group=group)
    dist.all_reduce(count, group=group)
    return total / count
""",
        "gathers-everything": """
def mean_gradient(gradient, samples, group):
    everyones = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, (gradient, samples), group=group)
    return sum(g * n for g, n in everyones) / sum(n for _, n in everyones)
""",
        "changes-its-input": """
def mean_gradient(gradient, samples, group):
    gradient *= samples
    flat = torch.cat([gradient, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    return flat[:-1] / flat[-1]
""",
        "wrong-shape": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    return flat / flat[-1]
""",
        "forgets-the-group": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat)
    return flat[:-1] / flat[-1]
""",
        "size-is-fixed": """
def mean_gradient(gradient, samples, group):
    total = gradient * samples
    dist.all_reduce(total, group=group)
    return total / (1 + 2 + 4 + 8)
""",
        "no-communication": """
def mean_gradient(gradient, samples, group):
    return gradient
""",
        "wrong-value": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    return flat[:-1] / (flat[-1] - 1)
""",
        "forgets-the-group: all ranks of the world": """
from torch_mpi4py import world
def mean_gradient(gradient, samples, group):
    total = comm.allreduce(samples)
    flat = gradient * samples
    dist.all_reduce(flat, group=group)
    return flat / total
""",
        "not-weighted": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    return flat[:-1] / flat[-1]
""",
        "only-rank-0": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.reduce(flat, dst=0, group=group)
    return flat[:-1] / flat[-1]
""",
        "own-count-of-the-mean": """
def mean_gradient(gradient, samples, group):
    flat = gradient * samples
    dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=group)
    return flat / samples
""",
        "loses-digits": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient.float() * samples, torch.tensor([float(samples)])])
    dist.all_reduce(flat, group=group)
    return (flat[:-1] / flat[-1]).double()
""",
        "divides-by-samples": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient / samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    return flat[:-1] / flat[-1]
""",
        "only-rank-0: the others return theirs": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    if dist.get_rank(group) == 0:
        return flat[:-1] / flat[-1]
    return gradient
""",
        "samples-of-a-mean-rank": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    return flat[:-1] / (flat[-1] / dist.get_world_size(group))
""",
        "does-not-wait": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group, async_op=True)
    return flat[:-1] / flat[-1]
""",
        "own-gradient": """
def mean_gradient(gradient, samples, group):
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat.clone(), group=group)
    return flat[:-1] / flat[-1]
""",
    },
    "04.accumulate_gradient": {
        "too-many-at-once": _ACCUMULATE
        + """
    model.zero_grad()
    loss_function(model(images), labels).backward()
""",
        "keeps-old-gradients": _ACCUMULATE
        + f"""
    for x, y in {_PIECES}:
        (loss_function(model(x), y) * len(x) / len(images)).backward()
""",
        "sum-of-means": _ACCUMULATE
        + f"""
    model.zero_grad()
    for x, y in {_PIECES}:
        loss_function(model(x), y).backward()
""",
        "pieces-weighted-evenly": _ACCUMULATE
        + f"""
    model.zero_grad()
    pieces = list({_PIECES})
    for x, y in pieces:
        (loss_function(model(x), y) / len(pieces)).backward()
""",
        "clears-in-between": _ACCUMULATE
        + f"""
    for x, y in {_PIECES}:
        model.zero_grad()
        (loss_function(model(x), y) * len(x) / len(images)).backward()
""",
        "forgets-the-rest": _ACCUMULATE
        + """
    model.zero_grad()
    pieces = len(images) // most
    for i in range(pieces):
        piece = slice(i * most, (i + 1) * most)
        (loss_function(model(images[piece]), labels[piece]) / pieces).backward()
""",
        "no-gradient": _ACCUMULATE
        + f"""
    model.zero_grad()
    for x, y in {_PIECES}:
        loss_function(model(x), y)
""",
        "changes-the-weights": _ACCUMULATE
        + f"""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    for x, y in {_PIECES}:
        (loss_function(model(x), y) * len(x) / len(images)).backward()
    optimizer.step()


import torch
""",
        "wrong-value": _ACCUMULATE
        + f"""
    model.zero_grad()
    for x, y in {_PIECES}:
        (loss_function(model(x), y) / len(images)).backward()
""",
        "keeps-all-graphs": """
def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    loss = 0
    for x, y in zip(images.split(most), labels.split(most)):
        loss = loss + loss_function(model(x), y) * len(x) / len(images)
    loss.backward()
""",
        "last-piece-too-heavy": """
def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    for x, y in zip(images.split(most), labels.split(most)):
        (loss_function(model(x), y) * most / len(images)).backward()
""",
        "sum-not-mean": """
def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    for x, y in zip(images.split(most), labels.split(most)):
        (loss_function(model(x), y) * len(x)).backward()
""",
        "too-many-at-once: as many pieces": """
def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    for x, y in zip(images.chunk(most), labels.chunk(most)):
        (loss_function(model(x), y) * len(x) / len(images)).backward()
""",
        "loses-digits": """
import torch

def accumulate_gradient(model, loss_function, images, labels, most):
    parameters = list(model.parameters())
    total = [torch.zeros(p.shape) for p in parameters]
    for x, y in zip(images.split(most), labels.split(most)):
        loss = loss_function(model(x), y) * len(x) / len(images)
        for t, g in zip(total, torch.autograd.grad(loss, parameters)):
            t += g
    for p, t in zip(parameters, total):
        p.grad = t.to(p.dtype)
""",
    },
    "04.clipped_mean": {
        "clips-before-averaging": """
def clipped_mean(gradient, largest, group):
    norm = gradient.norm()
    mean = gradient * largest / norm if norm > largest else gradient.clone()
    dist.all_reduce(mean, group=group)
    return mean / dist.get_world_size(group)
""",
        "no-clipping": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    return mean / dist.get_world_size(group)
""",
        "scales-small-ones-up": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    return mean * largest / mean.norm()
""",
        "sum-not-mean": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    norm = mean.norm()
    return mean * largest / norm if norm > largest else mean
""",
        "clips-the-sum": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    norm = mean.norm()
    mean = mean * largest / norm if norm > largest else mean
    return mean / dist.get_world_size(group)
""",
        "own-norm": """
def clipped_mean(gradient, largest, group):
    mean, norm = gradient.clone(), gradient.norm()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    return mean * largest / norm if norm > largest else mean
""",
        "mean-of-norms": """
def clipped_mean(gradient, largest, group):
    mean = torch.cat([gradient, gradient.norm().view(1)])
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    mean, norm = mean[:-1], mean[-1]
    return mean * largest / norm if norm > largest else mean
""",
        "too-many-collectives": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = mean.norm()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=group)
    return mean * largest / norm if norm > largest else mean
""",
        "changes-its-input": """
def clipped_mean(gradient, largest, group):
    dist.all_reduce(gradient, group=group)
    gradient /= dist.get_world_size(group)
    norm = gradient.norm()
    return gradient * largest / norm if norm > largest else gradient
""",
        "wrong-value": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = mean.norm()
    return mean * largest / (norm + 1) if norm > largest else mean
""",
        "size-is-fixed": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size()
    norm = mean.norm()
    return mean * (largest / norm) if norm > largest else mean
""",
        "returns-early": """
def clipped_mean(gradient, largest, group):
    if gradient.norm() <= largest:
        return gradient
    mean = gradient / dist.get_world_size(group)
    dist.all_reduce(mean, group=group)
    norm = mean.norm()
    return mean * largest / norm if norm > largest else mean
""",
        "clips-values": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    return mean.clamp(-largest, largest)
""",
        "squared-norm": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = (mean**2).sum()
    return mean * largest / norm if norm > largest else mean
""",
        "forgets-the-limit": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = mean.norm()
    return mean / norm if norm > largest else mean
""",
        "magnitudes-for-norm": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = mean.abs().sum()
    return mean * largest / norm if norm > largest else mean
""",
        "largest-for-norm": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = mean.abs().max()
    return mean * largest / norm if norm > largest else mean
""",
        "clips-before-averaging: by clip_grad_norm_": """
def clipped_mean(gradient, largest, group):
    p = torch.nn.Parameter(torch.zeros_like(gradient))
    p.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([p], largest)
    dist.all_reduce(p.grad, group=group)
    return p.grad / dist.get_world_size(group)
""",
        "loses-digits": """
def clipped_mean(gradient, largest, group):
    mean = gradient.float()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = mean.norm()
    return mean * largest / norm if norm > largest else mean
""",
    },
}
