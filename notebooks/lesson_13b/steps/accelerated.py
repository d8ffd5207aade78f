"""Hugging Face Accelerate: your loop, its prepare() and backward()."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from toy import RATE, STEPS, model_and_data, report

accelerator = Accelerator(cpu=True)
rank, ranks = accelerator.process_index, accelerator.num_processes
model, inputs, labels = model_and_data()
inputs, labels = inputs[rank::ranks], labels[rank::ranks]
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
model, optimizer = accelerator.prepare(model, optimizer)
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    accelerator.backward(loss)
    optimizer.step()
    losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
report(losses, rank)
