"""PyTorch's DistributedDataParallel."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from toy import RATE, STEPS, model_and_data, report

from course_lib.parallel.launching import process_group

with process_group():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, inputs, labels = model_and_data()
    inputs, labels = inputs[rank::ranks], labels[rank::ranks]
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
    report(losses, rank)
