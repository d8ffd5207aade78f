"""Horovod: broadcast the weights, wrap the optimizer."""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from toy import RATE, STEPS, model_and_data, report

hvd.init()
rank, ranks = hvd.rank(), hvd.size()
model, inputs, labels = model_and_data()
inputs, labels = inputs[rank::ranks], labels[rank::ranks]
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(hvd.allreduce(loss.detach()).item())
report(losses, rank)
