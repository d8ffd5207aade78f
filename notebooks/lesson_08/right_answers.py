"""Right answers to lesson 08 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "08.train_epochs": {
        "by iterators": """
def train_epochs(loader, sampler, epochs, step):
    epoch = 0
    while epoch < epochs:
        sampler.set_epoch(epoch)
        batches = iter(loader)
        while (batch := next(batches, None)) is not None:
            step(batch)
        epoch += 1
""",
        "backwards, by other numbers": """
def train_epochs(loader, sampler, epochs, step):
    for epoch in reversed(range(epochs)):
        sampler.set_epoch(1000 + 7 * epoch)
        [step(batch) for batch in loader]
""",
        "by a generator": """
import itertools
def train_epochs(loader, sampler, epochs, step):
    def one(epoch):
        loader.sampler.set_epoch(epoch)
        yield from loader
    for batch in itertools.chain.from_iterable(map(one, range(epochs))):
        step(batch)
""",
    },
    "08.global_accuracy": {
        "the own part of the list": """
def global_accuracy(right, samples, group):
    mine = len(range(dist.get_rank(group), samples, dist.get_world_size(group)))
    n = right[:mine].sum().to(torch.int64)
    dist.all_reduce(n, op=dist.ReduceOp.SUM, group=group)
    return int(n) / samples
""",
        "fractions in float32": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    t = right[: -(-(samples - r) // p)].float().sum() / samples
    dist.all_reduce(t, group=group)
    return t.item()
""",
        "in Python": """
def global_accuracy(right, samples, group):
    r, p = dist.get_rank(group), dist.get_world_size(group)
    good = 0
    for i, ok in enumerate(right.tolist()):
        if ok and i * p + r < samples:
            good += 1
    t = torch.tensor([good, 0])
    dist.all_reduce(t, group=group)
    return t[0].item() / samples
""",
        "without waiting at once": """
def global_accuracy(right, samples, group):
    p, r = group.size(), group.rank()
    index = torch.arange(r, r + p * len(right), p)
    count = right[index < samples].float().sum().reshape(1).double()
    work = dist.all_reduce(count, group=group, async_op=True)
    work.wait()
    return float(count / samples)
""",
    },
    "08.accumulate": {
        "a context that does nothing": """
from contextlib import nullcontext
def accumulate(ddp, optimizer, loss_function, batches):
    n = len(batches)
    for i, (x, y) in enumerate(batches, 1):
        with nullcontext() if i == n else ddp.no_sync():
            loss = loss_function(ddp(x), y) / n
            loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
""",
        "by recursion": """
def accumulate(ddp, optimizer, loss_function, batches):
    def go(rest):
        (x, y), *more = rest
        if more:
            with ddp.no_sync():
                loss_function(ddp(x), y).div(len(batches)).backward()
            go(more)
        else:
            loss_function(ddp(x), y).div(len(batches)).backward()
    ddp.zero_grad()
    go(batches)
    optimizer.step()
""",
        "divides the gradients": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    with ddp.no_sync():
        for x, y in batches[:-1]:
            loss_function(ddp(x), y).backward()
    x, y = batches[-1]
    loss_function(ddp(x), y).backward()
    for p in ddp.parameters():
        if p.grad is not None:
            p.grad /= len(batches)
    optimizer.step()
""",
        "its own all-reduce, of one flat vector": """
def accumulate(ddp, optimizer, loss_function, batches):
    optimizer.zero_grad()
    with ddp.no_sync():
        for x, y in batches:
            (loss_function(ddp(x), y) / len(batches)).backward()
    grads = [p.grad for p in ddp.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, part in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))
    optimizer.step()
""",
    },
    "08.bfloat16_hook": {
        "divides at the end": """
def bfloat16_hook(group, bucket):
    wire = bucket.buffer().to(dtype=torch.bfloat16)
    work = dist.all_reduce(wire, group=group, async_op=True)
    p = dist.get_world_size(group)
    return work.get_future().then(lambda done: done.value()[0].to(torch.float32) / p)
""",
        "a future of its own": """
def bfloat16_hook(group, bucket):
    wire = bucket.buffer().type(torch.bfloat16) / dist.get_world_size(group)
    result = torch.futures.Future()
    work = dist.all_reduce(wire, group=group, async_op=True)
    work.get_future().add_done_callback(lambda f: result.set_result(f.value()[0].float()))
    return result
""",
        "two callbacks": """
def bfloat16_hook(group, bucket):
    wire = bucket.buffer().bfloat16()
    f = dist.all_reduce(wire, group=group, async_op=True).get_future()
    return f.then(lambda d: d.value()[0].float()).then(lambda d: d.value() / group.size())
""",
        "times 1/p": """
def bfloat16_hook(group, bucket):
    share = 1 / group.size()
    work = dist.all_reduce(bucket.buffer().bfloat16(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].float() * share)
""",
        "the library's mean": """
def bfloat16_hook(group, bucket):
    wire = bucket.buffer().to(torch.bfloat16)
    work = dist.all_reduce(wire, op=dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda f: bucket.buffer().copy_(wire))
""",
    },
    "08.resume": {
        "rank 0 reads for all": """
def resume(path, ddp, optimizer):
    box = [torch.load(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    c = box[0]
    ddp.module.load_state_dict(c['model'])
    optimizer.load_state_dict(c['optimizer'])
    torch.random.set_rng_state(c['rng'][dist.get_rank()])
    dist.barrier()
    return int(c['step'])
""",
        "names with module": """
def resume(path, ddp, optimizer):
    dist.barrier()
    with open(path, 'rb') as f:
        c = torch.load(f, weights_only=False)
    ddp.load_state_dict({f'module.{k}': v for k, v in c['model'].items()})
    optimizer.load_state_dict(c['optimizer'])
    torch.default_generator.set_state(c['rng'][torch.distributed.get_rank()])
    return c['step']
""",
        "copies tensor by tensor": """
def resume(path, ddp, optimizer):
    c = torch.load(path)
    with torch.no_grad():
        own = ddp.module.state_dict()
        for k, v in c['model'].items():
            own[k].copy_(v)
    optimizer.load_state_dict(c['optimizer'])
    torch.set_rng_state(c['rng'][comm.rank])
    return c['step']
""",
    },
}
