"""DeepSpeed: an engine that owns model and optimizer, and a dict of settings."""

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from toy import BATCH, RATE, STEPS, model_and_data, report

deepspeed.init_distributed("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model, inputs, labels = model_and_data()
inputs, labels = inputs[rank::ranks], labels[rank::ranks]
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
settings = {"train_batch_size": BATCH, "zero_optimization": {"stage": 0}}
engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
losses = []
for _ in range(STEPS):
    loss = F.cross_entropy(engine(inputs), labels)
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    losses.append(mean.item() / ranks)
report(losses, rank)
