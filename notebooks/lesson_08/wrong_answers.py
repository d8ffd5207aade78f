"""The usual wrong answers to lesson 08: from a mistake's name to a function that makes it."""

WRONG_ANSWERS = {
    "08.train_epochs": {
        "same-order-every-epoch": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        for batch in loader:
            step(batch)
""",
        "set-epoch-too-late": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        for batch in loader:
            step(batch)
        sampler.set_epoch(epoch)
""",
        "ranks-shuffle-apart": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        sampler.set_epoch(epochs * sampler.rank + epoch)
        for batch in loader:
            step(batch)
""",
        "not-every-batch": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        step(next(iter(loader)))
""",
        "orders-repeat": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        sampler.set_epoch(epoch % 2)
        for batch in loader:
            step(batch)
""",
        "not-a-batch": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in sampler:
            step(batch)
""",
        "keeps-its-share": """
def train_epochs(loader, sampler, epochs, step):
    import random
    for epoch in range(epochs):
        batches = list(loader)
        random.shuffle(batches)
        for batch in batches:
            step(batch)
""",
        "goes-through-once": """
def train_epochs(loader, sampler, epochs, step):
    batches = list(loader)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in batches:
            step(batch)
""",
        "ranks-shuffle-apart: rank times epoch": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        sampler.set_epoch(epoch * (sampler.rank + 1))
        for batch in loader:
            step(batch)
""",
        "set-epoch-too-late: for each batch": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in range(epochs):
        for batch in loader:
            sampler.set_epoch(epoch)
            step(batch)
""",
    },
    "08.global_accuracy": {
        "counts-duplicates": """
def global_accuracy(right, samples, group):
    mean = right.float().mean()
    dist.all_reduce(mean, group=group)
    return mean.item() / dist.get_world_size(group)
""",
        "duplicates-in-the-numerator": """
def global_accuracy(right, samples, group):
    count = right.sum()
    dist.all_reduce(count, group=group)
    return count.item() / samples
""",
        "drops-real-samples": """
def global_accuracy(right, samples, group):
    p = dist.get_world_size(group)
    count = right[: samples // p].sum()
    dist.all_reduce(count, group=group)
    return count.item() / samples
""",
        "no-communication": """
def global_accuracy(right, samples, group):
    return right.float().mean().item()
""",
        "forgets-the-group": """
def global_accuracy(right, samples, group):
    p, r = dist.get_world_size(), dist.get_rank()
    count = (right & (r + p * torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(count)
    return count.item() / samples
""",
        "gathers-everything": """
def global_accuracy(right, samples, group):
    everyones = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, right.tolist(), group=group)
    in_order = [answer for entries in zip(*everyones) for answer in entries]
    return sum(in_order[:samples]) / samples
""",
        "too-many-collectives": """
def global_accuracy(right, samples, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    real = r + p * torch.arange(len(right)) < samples
    count, total = (right & real).sum(), real.sum()
    dist.all_reduce(count, group=group)
    dist.all_reduce(total, group=group)
    return (count / total).item()
""",
        "not-a-float": """
def global_accuracy(right, samples, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    count = (right & (r + p * torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(count, group=group)
    return count / samples
""",
        "size-is-fixed": """
def global_accuracy(right, samples, group):
    r = dist.get_rank(group)
    count = (right & (r + 4 * torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(count, group=group)
    return count.item() / samples
""",
        "wrong-value": """
def global_accuracy(right, samples, group):
    count = right.sum()
    dist.all_reduce(count, group=group)
    return count.item() / len(right)
""",
        "size-is-fixed: rank of the world": """
def global_accuracy(right, samples, group):
    p, r = dist.get_world_size(group), dist.get_rank()
    real = r + p * torch.arange(len(right)) < samples
    count = (right & real).sum()
    dist.all_reduce(count, group=group)
    return count.item() / samples
""",
        "only-rank-0": """
def global_accuracy(right, samples, group):
    p, r = dist.get_world_size(group), dist.get_rank(group)
    count = (right & (r + p * torch.arange(len(right)) < samples)).sum()
    dist.reduce(count, dst=0, group=group)
    return count.item() / samples
""",
        "mean-of-means": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    own = right[torch.arange(len(right)) * p + r < samples]
    t = own.double().mean()
    dist.all_reduce(t, group=group)
    return t.item() / p
""",
        "in-blocks": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r * len(right) + torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(n, group=group)
    return n.item() / samples
""",
        "adds-booleans": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    good = (right & (r + p * torch.arange(len(right)) < samples))
    dist.all_reduce(good, group=group)
    return good.sum().item() / samples
""",
        "per-cent": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r + p * torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(n, group=group)
    return 100 * n.item() / samples
""",
        "duplicates-in-the-denominator": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r + p * torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(n, group=group)
    return n.item() / (len(right) * p)
""",
        "count-not-fraction": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r + p * torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(n, group=group)
    return n.item()
""",
        "never-waits": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r + p * torch.arange(len(right)) < samples)).sum()
    dist.all_reduce(n, group=group, async_op=True)
    return n.item() / samples
""",
        "counts-duplicates: one of them": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r + p * torch.arange(len(right)) <= samples)).sum()
    dist.all_reduce(n, group=group)
    return n.item() / samples
""",
        "too-few-bits": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r + p * torch.arange(len(right)) < samples)).sum().to(torch.uint8)
    dist.all_reduce(n, group=group)
    return n.item() / samples
""",
        "too-few-bits: float16": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    n = (right & (r + p * torch.arange(len(right)) < samples)).sum().half()
    dist.all_reduce(n, group=group)
    return n.item() / samples
""",
    },
    "08.accumulate": {
        "a-round-per-micro-batch": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    for inputs, targets in batches:
        (loss_function(ddp(inputs), targets) / len(batches)).backward()
    optimizer.step()
""",
        "forward-outside-no-sync": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    for index, (inputs, targets) in enumerate(batches):
        loss = loss_function(ddp(inputs), targets) / len(batches)
        if index < len(batches) - 1:
            with ddp.no_sync():
                loss.backward()
        else:
            loss.backward()
    optimizer.step()
""",
        "never-synchronises": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    with ddp.no_sync():
        for inputs, targets in batches:
            (loss_function(ddp(inputs), targets) / len(batches)).backward()
    optimizer.step()
""",
        "synchronises-too-early": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    (inputs, targets), *others = batches
    (loss_function(ddp(inputs), targets) / len(batches)).backward()
    with ddp.no_sync():
        for inputs, targets in others:
            (loss_function(ddp(inputs), targets) / len(batches)).backward()
    optimizer.step()
""",
        "gradient-too-large": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    *first, (inputs, targets) = batches
    with ddp.no_sync():
        for x, y in first:
            loss_function(ddp(x), y).backward()
    loss_function(ddp(inputs), targets).backward()
    optimizer.step()
""",
        "zeroes-each-time": """
def accumulate(ddp, optimizer, loss_function, batches):
    *first, (inputs, targets) = batches
    with ddp.no_sync():
        for x, y in first:
            optimizer.zero_grad()
            (loss_function(ddp(x), y) / len(batches)).backward()
    optimizer.zero_grad()
    (loss_function(ddp(inputs), targets) / len(batches)).backward()
    optimizer.step()
""",
        "never-zeroes": """
def accumulate(ddp, optimizer, loss_function, batches):
    *first, (inputs, targets) = batches
    with ddp.no_sync():
        for x, y in first:
            (loss_function(ddp(x), y) / len(batches)).backward()
    (loss_function(ddp(inputs), targets) / len(batches)).backward()
    optimizer.step()
""",
        "steps-each-time": """
def accumulate(ddp, optimizer, loss_function, batches):
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss_function(ddp(inputs), targets).backward()
        optimizer.step()
""",
        "never-steps": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    *first, (inputs, targets) = batches
    with ddp.no_sync():
        for x, y in first:
            (loss_function(ddp(x), y) / len(batches)).backward()
    (loss_function(ddp(inputs), targets) / len(batches)).backward()
""",
        "last-not-divided": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    *first, (inputs, targets) = batches
    with ddp.no_sync():
        for x, y in first:
            (loss_function(ddp(x), y) / len(batches)).backward()
    loss_function(ddp(inputs), targets).backward()
    optimizer.step()
""",
        "all-at-once": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    x = torch.cat([b[0] for b in batches]); y = torch.cat([b[1] for b in batches])
    loss_function(ddp(x), y).backward()
    optimizer.step()
""",
        "keeps-all-graphs": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    losses = [loss_function(ddp(inputs), targets) for inputs, targets in batches]
    (sum(losses) / len(batches)).backward()
    optimizer.step()
""",
        "micro-batches-missing": """
def accumulate(ddp, optimizer, loss_function, batches):
    with ddp.no_sync():
        for x, y in batches[:-1]:
            optimizer.zero_grad()
            (loss_function(ddp(x), y) / len(batches)).backward()
    x, y = batches[-1]
    (loss_function(ddp(x), y) / len(batches)).backward()
    optimizer.step()
""",
        "own-all-reduces": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    with ddp.no_sync():
        for x, y in batches:
            (loss_function(ddp(x), y) / len(batches)).backward()
    for p in ddp.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
""",
        "divides-by-the-ranks": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    n = len(batches) * dist.get_world_size()
    with ddp.no_sync():
        for x, y in batches[:-1]:
            (loss_function(ddp(x), y) / n).backward()
    x, y = batches[-1]
    (loss_function(ddp(x), y) / n).backward()
    optimizer.step()
""",
        "wrong-length": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    with ddp.no_sync():
        for x, y in batches[:-1]:
            (loss_function(ddp(x), y) / (len(batches) - 1)).backward()
    x, y = batches[-1]
    (loss_function(ddp(x), y) / (len(batches) - 1)).backward()
    optimizer.step()
""",
        "no-sync-not-entered": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        if i < len(batches) - 1:
            ddp.no_sync()
        (loss_function(ddp(x), y) / len(batches)).backward()
    optimizer.step()
""",
    },
    "08.bfloat16_hook": {
        "sum-not-mean": """
def bfloat16_hook(group, bucket):
    compressed = bucket.buffer().to(torch.bfloat16)
    work = dist.all_reduce(compressed, group=group, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))
""",
        "divides-twice": """
def bfloat16_hook(group, bucket):
    p = dist.get_world_size(group)
    compressed = bucket.buffer().to(torch.bfloat16) / p
    work = dist.all_reduce(compressed, group=group, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0] / p))
""",
        "not-compressed": """
def bfloat16_hook(group, bucket):
    rounded = bucket.buffer().to(torch.bfloat16).float() / dist.get_world_size(group)
    work = dist.all_reduce(rounded, group=group, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))
""",
        "stays-compressed": """
def bfloat16_hook(group, bucket):
    compressed = bucket.buffer().to(torch.bfloat16) / dist.get_world_size(group)
    work = dist.all_reduce(compressed, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
""",
        "waits-in-the-hook": """
def bfloat16_hook(group, bucket):
    compressed = bucket.buffer().to(torch.bfloat16) / dist.get_world_size(group)
    dist.all_reduce(compressed, group=group)
    future = torch.futures.Future()
    future.set_result(bucket.buffer().copy_(compressed))
    return future
""",
        "no-future": """
def bfloat16_hook(group, bucket):
    compressed = bucket.buffer().to(torch.bfloat16) / dist.get_world_size(group)
    dist.all_reduce(compressed, group=group)
    return bucket.buffer().copy_(compressed)
""",
        "forgets-the-group": """
def bfloat16_hook(group, bucket):
    compressed = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    work = dist.all_reduce(compressed, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))
""",
        "size-is-fixed": """
def bfloat16_hook(group, bucket):
    compressed = bucket.buffer().to(torch.bfloat16) / 4
    work = dist.all_reduce(compressed, group=group, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))
""",
        "no-communication": """
def bfloat16_hook(group, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer().to(torch.bfloat16).float())
    return future
""",
        "overflows": """
def bfloat16_hook(group, bucket):
    compressed = bucket.buffer().to(torch.float16) / dist.get_world_size(group)
    work = dist.all_reduce(compressed, group=group, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))
""",
        "waits-in-the-hook: for the future": """
def bfloat16_hook(group, bucket):
    g = bucket.buffer()
    w = g.to(torch.bfloat16) / dist.get_world_size(group)
    work = dist.all_reduce(w, group=group, async_op=True)
    f = work.get_future()
    f.wait()
    return f.then(lambda d: g.copy_(d.value()[0]))
""",
        "too-many-collectives": """
def bfloat16_hook(group, bucket):
    ws = [g.to(torch.bfloat16) / dist.get_world_size(group) for g in bucket.gradients()]
    works = [dist.all_reduce(w, group=group, async_op=True) for w in ws]
    f = torch.futures.collect_all([w.get_future() for w in works])
    return f.then(lambda d: torch.cat([w.flatten().float() for w in ws]))
""",
        "own-gradient": """
def bfloat16_hook(group, bucket):
    g = bucket.buffer()
    work = dist.all_reduce(g.to(torch.bfloat16), group=group, async_op=True)
    g /= dist.get_world_size(group)
    return work.get_future().then(lambda d: g)
""",
        "no-future: the handle": """
def bfloat16_hook(group, bucket):
    w = bucket.buffer().to(torch.bfloat16) / dist.get_world_size(group)
    return dist.all_reduce(w, group=group, async_op=True)
""",
        "no-future: nothing": """
def bfloat16_hook(group, bucket):
    g = bucket.buffer()
    w = g.to(torch.bfloat16) / dist.get_world_size(group)
    work = dist.all_reduce(w, group=group, async_op=True)
    work.get_future().then(lambda d: g.copy_(d.value()[0]))
""",
        "it-raises: in the callback": """
def bfloat16_hook(group, bucket):
    g = bucket.buffer()
    w = g.to(torch.bfloat16) / dist.get_world_size(group)
    work = dist.all_reduce(w, group=group, async_op=True)
    def back(d):
        return g.copy_(d.value()[1])
    return work.get_future().then(back)
""",
    },
    "08.resume": {
        "module-prefix": """
def resume(path, ddp, optimizer):
    checkpoint = torch.load(path)
    ddp.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["rng"][dist.get_rank()])
    return checkpoint["step"]
""",
        "weights-not-restored": """
def resume(path, ddp, optimizer):
    checkpoint = torch.load(path)
    ddp.load_state_dict(checkpoint["model"], strict=False)
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["rng"][dist.get_rank()])
    return checkpoint["step"]
""",
        "only-rank-0-loads": """
def resume(path, ddp, optimizer):
    checkpoint = torch.load(path)
    if dist.get_rank() == 0:
        ddp.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["rng"][dist.get_rank()])
    return checkpoint["step"]
""",
        "forgets-the-optimizer": """
def resume(path, ddp, optimizer):
    checkpoint = torch.load(path)
    ddp.module.load_state_dict(checkpoint["model"])
    torch.set_rng_state(checkpoint["rng"][dist.get_rank()])
    return checkpoint["step"]
""",
        "forgets-the-generator": """
def resume(path, ddp, optimizer):
    checkpoint = torch.load(path)
    ddp.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["step"]
""",
        "same-masks-everywhere": """
def resume(path, ddp, optimizer):
    checkpoint = torch.load(path)
    ddp.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["rng"][0])
    return checkpoint["step"]
""",
        "wrong-step": """
def resume(path, ddp, optimizer):
    checkpoint = torch.load(path)
    ddp.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["rng"][dist.get_rank()])
    return checkpoint["step"] + 1
""",
        "it-hangs": """
def resume(path, ddp, optimizer):
    if dist.get_rank() == 0:
        dist.barrier()
    c = torch.load(path)
    ddp.module.load_state_dict(c['model'])
    optimizer.load_state_dict(c['optimizer'])
    torch.set_rng_state(c['rng'][dist.get_rank()])
    return c['step']
""",
        "another-generator": """
def resume(path, ddp, optimizer):
    c = torch.load(path)
    ddp.module.load_state_dict(c['model'])
    optimizer.load_state_dict(c['optimizer'])
    torch.manual_seed(dist.get_rank())
    return c['step']
""",
        "another-ranks-generator": """
def resume(path, ddp, optimizer):
    c = torch.load(path)
    ddp.module.load_state_dict(c['model'])
    optimizer.load_state_dict(c['optimizer'])
    torch.set_rng_state(c['rng'][dist.get_rank() - 1])
    return c['step']
""",
        "wrong-step: the whole checkpoint": """
def resume(path, ddp, optimizer):
    c = torch.load(path)
    ddp.module.load_state_dict(c['model'])
    optimizer.load_state_dict(c['optimizer'])
    torch.set_rng_state(c['rng'][dist.get_rank()])
    return c
""",
        "wrong-step: nothing": """
def resume(path, ddp, optimizer):
    c = torch.load(path)
    ddp.module.load_state_dict(c['model'])
    optimizer.load_state_dict(c['optimizer'])
    torch.set_rng_state(c['rng'][dist.get_rank()])
""",
        "goes-on-differently": """
def resume(path, ddp, optimizer):
    c = torch.load(path)
    ddp.module.load_state_dict(c['model'])
    optimizer.load_state_dict(c['optimizer'])
    torch.set_rng_state(c['rng'][dist.get_rank()])
    ddp.eval()
    return c['step']
""",
        "goes-on-differently: momentum by number": """
def resume(path, ddp, optimizer):
    c = torch.load(path)
    ddp.module.load_state_dict(c['model'])
    optimizer.state = c['optimizer']['state']
    torch.set_rng_state(c['rng'][dist.get_rank()])
    return c['step']
""",
    },
}
