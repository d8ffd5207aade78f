"""One process, the whole batch: what all others have to equal."""

import torch
import torch.nn.functional as F
from toy import RATE, STEPS, model_and_data, report

model, inputs, labels = model_and_data()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(losses)
