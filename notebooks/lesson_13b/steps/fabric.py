"""Lightning Fabric: your loop, its launch, devices and wrapping."""

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from toy import RATE, STEPS, model_and_data, report

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
rank, ranks = fabric.global_rank, fabric.world_size
model, inputs, labels = model_and_data()
inputs, labels = inputs[rank::ranks], labels[rank::ranks]
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
model, optimizer = fabric.setup(model, optimizer)
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    fabric.backward(loss)
    optimizer.step()
    losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean").item())
report(losses, rank)
