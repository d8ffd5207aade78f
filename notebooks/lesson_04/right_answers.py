"""Right answers to lesson 04 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "04.clipped_mean": {
        "by clip_grad_norm_": """
def clipped_mean(gradient, largest, group):
    mean = gradient / dist.get_world_size(group)
    dist.all_reduce(mean, group=group)
    parameter = torch.nn.Parameter(torch.zeros_like(mean))
    parameter.grad = mean
    torch.nn.utils.clip_grad_norm_([parameter], largest)
    return parameter.grad
""",
        "by renorm": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    return mean.unsqueeze(0).renorm(2, 0, largest).squeeze(0)
""",
        "a factor of at most 1": """
def clipped_mean(gradient, largest, group):
    total = gradient + 0
    dist.all_reduce(total, group=group)
    mean = total / dist.get_world_size(group)
    factor = (largest / mean.square().sum().sqrt()).clamp(max=1.0)
    return mean * factor
""",
        "not blocking, norm by NumPy": """
import numpy as np

def clipped_mean(gradient, largest, group):
    mean = gradient.div(dist.get_world_size(group))
    dist.all_reduce(mean, group=group, async_op=True).wait()
    length = np.linalg.norm(mean.numpy())
    return mean if length <= largest else mean * (largest / length)
""",
    },
    "04.gradients": {
        "nodes of its own": """
class Node:
    def __init__(self, value, inputs=()):
        self.value, self.inputs, self.gradient = value, inputs, 0.0

    def __mul__(self, other):
        return Node(self.value * other.value, [(self, other.value), (other, self.value)])

    def __add__(self, other):
        return Node(self.value + other.value, [(self, 1), (other, 1)])

    def __sub__(self, other):
        return Node(self.value - other.value, [(self, 1), (other, -1)])

    def relu(self):
        return Node(max(self.value, 0.0), [(self, 1.0 if self.value > 0 else 0.0)])

    def squared(self):
        return Node(self.value**2, [(self, 2 * self.value)])

def in_order(node, found):
    if node not in found:
        for source, _ in node.inputs:
            in_order(source, found)
        found.append(node)
    return found

def gradients(w, b, x, y):
    W, B = Node(w), Node(b)
    loss = ((W * Node(x) + B).relu() - Node(y)).squared() + W.squared()
    loss.gradient = 1.0
    for node in reversed(in_order(loss, [])):
        for source, local in node.inputs:
            source.gradient += node.gradient * local
    return loss.value, W.gradient, B.gradient
""",
        "an array": """
import numpy as np

def gradients(w, b, x, y):
    u = np.dot([w, b], [x, 1])
    e = np.maximum(u, 0) - y
    return np.array(
        [e**2 + w**2, 2 * e * np.heaviside(u, 0) * x + 2 * w, 2 * e * np.heaviside(u, 0)]
    )
""",
        "tensors by hand": """
import torch

def gradients(w, b, x, y):
    w, b, x, y = (torch.tensor(float(v), dtype=torch.float64) for v in (w, b, x, y))
    u = w * x + b
    e = torch.relu(u) - y
    d_u = 2 * e * (u > 0)
    return e**2 + w**2, d_u * x + 2 * w, d_u
""",
        "forward, number by number": """
def gradients(w, b, x, y):
    def forward(dw, db):
        u, du = w * x + b, dw * x + db
        h, dh = (u, du) if u > 0 else (0, 0)
        e, de = h - y, dh
        return e * e + w * w, 2 * e * de + 2 * w * dw

    return [forward(1, 0)[0], forward(1, 0)[1], forward(0, 1)[1]]
""",
    },
    "04.mean_gradient": {
        "the count first, not blocking": """
def mean_gradient(gradient, samples, group):
    message = gradient.new_empty(gradient.numel() + 1)
    torch.mul(gradient, samples, out=message[1:])
    message[0] = samples
    work = dist.all_reduce(message, group=group, async_op=True)
    work.wait()
    count, *_ = message
    return message[1:].div(count)
""",
        "padded, by ReduceOp": """
import torch.nn.functional as F

def mean_gradient(gradient, samples, group):
    padded = F.pad(gradient, (0, 1), value=1.0)
    padded = padded.mul(float(samples))
    dist.all_reduce(padded, dist.ReduceOp.SUM, group)
    total, n = torch.split(padded, [len(gradient), 1])
    return total / n.item()
""",
    },
    "04.accumulate_gradient": {
        "divides at the end": """
import torch

def accumulate_gradient(model, loss_function, images, labels, most):
    for parameter in model.parameters():
        parameter.grad = None
    first, n = 0, len(labels)
    while first < n:
        last = min(first + most, n)
        (loss_function(model(images[first:last]), labels[first:last]) * (last - first)).backward()
        first = last
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= n
""",
        "autograd.grad": """
import torch

def accumulate_gradient(model, loss_function, images, labels, most):
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for begin in range(0, images.shape[0], most):
        part = slice(begin, begin + most)
        share = len(labels[part]) / len(labels)
        loss = loss_function(model(images[part]), labels[part])
        for t, g in zip(total, torch.autograd.grad(loss, parameters)):
            t.add_(g, alpha=share)
    for p, t in zip(parameters, total):
        p.grad = t
""",
        "even pieces": """
import math

def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    pieces = math.ceil(len(images) / most)
    for x, y in zip(images.tensor_split(pieces), labels.tensor_split(pieces)):
        (len(x) / len(images) * loss_function(model(x), y)).backward()
""",
        "halves": """
def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    n = len(images)

    def go(x, y):
        if len(x) > most:
            half = len(x) // 2
            go(x[:half], y[:half])
            go(x[half:], y[half:])
        else:
            (loss_function(model(x), y) * (len(x) / n)).backward()

    go(images, labels)
""",
        "a DataLoader that shuffles": """
from torch.utils.data import DataLoader, TensorDataset

def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad(set_to_none=False)
    for x, y in DataLoader(TensorDataset(images, labels), batch_size=most, shuffle=True):
        loss = loss_function(model(x), y).mul(len(y)).div(len(labels))
        loss.backward()
""",
        "one by one": """
def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    for i in range(len(images)):
        (loss_function(model(images[i : i + 1]), labels[i : i + 1]) / len(images)).backward()
""",
        "weights as gradients": """
def accumulate_gradient(model, loss_function, images, labels, most):
    model.zero_grad()
    losses = []
    for x, y in zip(images.split(most), labels.split(most)):
        loss = loss_function(model(x), y)
        loss.backward(gradient=loss.new_tensor(len(y) / len(labels)))
        losses.append(loss.item())
    return sum(losses)
""",
    },
}
