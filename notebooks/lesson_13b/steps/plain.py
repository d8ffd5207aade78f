"""torch.distributed alone: broadcast, shard, average."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from toy import RATE, STEPS, model_and_data, report

from course_lib.parallel.launching import process_group

with process_group():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, inputs, labels = model_and_data()
    inputs, labels = inputs[rank::ranks], labels[rank::ranks]
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
    report(losses, rank)
