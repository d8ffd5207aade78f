"""The usual wrong answers to lesson 12: from a mistake's name to a function that makes it."""

WRONG_ANSWERS = {
    "12.name_the_bugs": {
        "blames-the-waiting": """
def name_the_bugs():
    return {
        "A": ("skipped collective", {0, 1, 3}),
        "B": ("endless loop", {3}),
        "C": ("wrong tag", {0, 1}),
    }
""",
        "no-circle": """
def name_the_bugs():
    return {
        "A": ("skipped collective", {2}),
        "B": ("deadlock", {0, 1, 2}),
        "C": ("wrong tag", {0, 1}),
    }
""",
        "stops-too-early": """
def name_the_bugs():
    return {
        "A": ("skipped collective", {2}),
        "B": ("missing send", {0}),
        "C": ("wrong tag", {0, 1}),
    }
""",
        "finished-is-not-dead": """
def name_the_bugs():
    return {"A": ("death", {2}), "B": ("endless loop", {3}), "C": ("wrong tag", {0, 1})}
""",
        "takes-the-consequence": """
def name_the_bugs():
    return {
        "A": ("skipped collective", {2}),
        "B": ("endless loop", {3}),
        "C": ("skipped collective", {0, 1}),
    }
""",
        "overlooks-the-send": """
def name_the_bugs():
    return {
        "A": ("skipped collective", {2}),
        "B": ("endless loop", {3}),
        "C": ("missing send", {0}),
    }
""",
        "sees-a-circle": """
def name_the_bugs():
    return {
        "A": ("skipped collective", {2}),
        "B": ("endless loop", {3}),
        "C": ("deadlock", {0, 1}),
    }
""",
        "does-not-fit": """
def name_the_bugs():
    return {
        "A": ("wrong tag", {2}),
        "B": ("endless loop", {3}),
        "C": ("wrong tag", {0, 1}),
    }
""",
        "unknown-bug": """
def name_the_bugs():
    return {"A": ("hang", {2}), "B": ("endless loop", {3}), "C": ("wrong tag", {0, 1})}
""",
        "not-all-three": """
def name_the_bugs():
    return {"A": ("skipped collective", {2})}
""",
        "not-ranks": """
def name_the_bugs():
    bugs = "skipped collective", "endless loop", "wrong tag"
    return dict(zip("ABC", zip(bugs, ({"2"}, {3}, {0, 1}))))
""",
        "blames-the-waiting: and those who wait for the two": """
def name_the_bugs():
    bugs = "skipped collective", "endless loop", "wrong tag"
    return dict(zip("ABC", zip(bugs, ({2}, {3}, {0, 1, 2, 3}))))
""",
    },
    "12.rest_of_epoch": {
        "not-a-list": """
def rest_of_epoch(order, done, rank, world_size):
    order[done:][rank::world_size]
""",
        "starts-the-epoch-again": """
def rest_of_epoch(order, done, rank, world_size):
    return order[rank::world_size]
""",
        "leaves-out-the-dead-ones-share": """
def rest_of_epoch(order, done, rank, world_size):
    before = {(24, 8): 4, (24, 12): 4, (26, 12): 3}[len(order), done]
    return order[done:][rank::before]
""",
        "counts-done-per-rank": """
def rest_of_epoch(order, done, rank, world_size):
    return order[rank::world_size][done:]
""",
        "one-piece-each": """
def rest_of_epoch(order, done, rank, world_size):
    rest = order[done:]
    n = len(rest)
    return rest[n * rank // world_size : n * (rank + 1) // world_size]
""",
        "not-what-is-left": """
def rest_of_epoch(order, done, rank, world_size):
    return order[done + 1 :][rank::world_size]
""",
        "unfair": """
def rest_of_epoch(order, done, rank, world_size):
    return order[done:] if rank == 0 else []
""",
        "changes-its-input": """
def rest_of_epoch(order, done, rank, world_size):
    del order[:done]
    return order[rank::world_size]
""",
        "given-twice": """
def rest_of_epoch(order, done, rank, world_size):
    rest = order[done:]
    rest = rest + rest[: -len(rest) % world_size]
    return rest[rank::world_size]
""",
        "one-piece-each: of the same length, but for the last": """
def rest_of_epoch(order, done, rank, world_size):
    rest = order[done:]
    size = -(-len(rest) // world_size)
    return rest[rank * size:(rank + 1) * size]
""",
        "other-batches": """
def rest_of_epoch(order, done, rank, world_size):
    return sorted(order[done:])[rank::world_size]
""",
        "drops-the-last": """
def rest_of_epoch(order, done, rank, world_size):
    rest = order[done:]
    return rest[:len(rest) // world_size * world_size][rank::world_size]
""",
        "places-not-samples": """
def rest_of_epoch(order, done, rank, world_size):
    return list(range(done + rank, len(order), world_size))
""",
        "done-by-more-ranks": """
def rest_of_epoch(order, done, rank, world_size):
    return order[rank::world_size][done // world_size:]
""",
        "given-twice: padded in one piece each": """
def rest_of_epoch(order, done, rank, world_size):
    rest = order[done:]
    size = -(-len(rest) // world_size)
    rest = rest + rest[:size * world_size - len(rest)]
    return rest[rank * size:(rank + 1) * size]
""",
    },
    "12.go_on": {
        "replicas-differ": """
def go_on(model, optimizer, steps_done, group):
    from torch.nn.parallel import DistributedDataParallel as DDP
    ddp = DDP(model, process_group=group, init_sync=False)
    return ddp, steps_done
""",
        "forgets-the-optimizer": """
def go_on(model, optimizer, steps_done, group):
    from torch.nn.parallel import DistributedDataParallel as DDP
    ddp = DDP(model, process_group=group)
    return ddp, steps_done
""",
        "steps-differ": """
def go_on(model, optimizer, steps_done, group):
    from torch.nn.parallel import DistributedDataParallel as DDP
    state = [model.state_dict(), optimizer.state_dict()]
    last = dist.get_world_size(group) - 1
    dist.broadcast_object_list(state, group=group, group_src=last)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return DDP(model, process_group=group), steps_done
""",
        "step-and-state-do-not-fit": """
def go_on(model, optimizer, steps_done, group):
    from torch.nn.parallel import DistributedDataParallel as DDP
    steps = [0] * dist.get_world_size(group)
    dist.all_gather_object(steps, steps_done, group=group)
    state = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, group=group, group_src=0)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return DDP(model, process_group=group), max(steps)
""",
        "throws-a-step-away": """
def go_on(model, optimizer, steps_done, group):
    from torch.nn.parallel import DistributedDataParallel as DDP
    state = [model.state_dict(), optimizer.state_dict(), steps_done]
    dist.broadcast_object_list(state, group=group, group_src=0)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return DDP(model, process_group=group), state[2]
""",
        "waits-for-the-dead": """
def go_on(model, optimizer, steps_done, group):
    from torch.nn.parallel import DistributedDataParallel as DDP
    steps = [0] * dist.get_world_size()
    dist.all_gather_object(steps, steps_done)
    return DDP(model), max(steps)
""",
        "not-wrapped": """
def go_on(model, optimizer, steps_done, group):
    return model, steps_done
""",
        "another-model": """
def go_on(model, optimizer, steps_done, group):
    import copy
    from torch.nn.parallel import DistributedDataParallel as DDP
    return DDP(copy.deepcopy(model), process_group=group), steps_done
""",
        "not-a-pair": """
def go_on(model, optimizer, steps_done, group):
    from torch.nn.parallel import DistributedDataParallel as DDP
    return DDP(model, process_group=group)
""",
        "it-raises": """
def go_on(model, optimizer, steps_done, group):
    raise KeyError("step")
""",
        "a-rank-of-the-world": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    steps = [0] * dist.get_world_size(group)
    dist.all_gather_object(steps, steps_done, group=group)
    furthest = steps.index(max(steps))
    state = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, src=furthest, group=group)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return DDP(model, process_group=group), max(steps)
""",
        "counts-from-one": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    steps = [0] * dist.get_world_size(group)
    dist.all_gather_object(steps, steps_done, group=group)
    furthest = steps.index(max(steps))
    state = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, group_src=furthest, group=group)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return DDP(model, process_group=group), max(steps) + 1
""",
        "forgets-the-optimizer: throws it away": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    steps = [0] * dist.get_world_size(group)
    dist.all_gather_object(steps, steps_done, group=group)
    furthest = steps.index(max(steps))
    state = [model.state_dict()]
    dist.broadcast_object_list(state, group_src=furthest, group=group)
    model.load_state_dict(state[0])
    optimizer.state.clear()
    return DDP(model, process_group=group), max(steps)
""",
        "weights-of-no-step": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    for p in model.parameters():
        dist.all_reduce(p.data, group=group)
        p.data /= dist.get_world_size(group)
    steps = [0] * dist.get_world_size(group)
    dist.all_gather_object(steps, steps_done, group=group)
    return DDP(model, process_group=group), max(steps)
""",
        "ranks-disagree": """
from torch.nn.parallel import DistributedDataParallel as DDP
def go_on(model, optimizer, steps_done, group):
    steps = [0] * dist.get_world_size(group)
    dist.all_gather_object(steps, steps_done, group=group)
    furthest = steps.index(max(steps))
    state = [model.state_dict(), optimizer.state_dict()]
    if steps_done < max(steps):
        dist.broadcast_object_list(state, group_src=furthest, group=group)
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    return DDP(model, process_group=group), max(steps)
""",
    },
    "12.save_whole": {
        "writes-in-place": """
def save_whole(path, write):
    with open(path, "wb") as file:
        write(file)
""",
        "removes-the-old-one-first": """
import os

def save_whole(path, write):
    path.unlink(missing_ok=True)
    beside = path.with_name("beside")
    with open(beside, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
""",
        "copies-instead": """
import shutil

def save_whole(path, write):
    beside = path.with_name("beside")
    with open(beside, "wb") as file:
        write(file)
    shutil.copyfile(beside, path)
    beside.unlink()
""",
        "on-another-disk": """
import os
import shutil
import tempfile

def save_whole(path, write):
    with tempfile.NamedTemporaryFile("wb", delete=False) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    shutil.move(file.name, path)
""",
        "no-fsync": """
import os

def save_whole(path, write):
    beside = path.with_name("beside")
    with open(beside, "wb") as file:
        write(file)
    os.replace(beside, path)
""",
        "not-flushed": """
import os

def save_whole(path, write):
    beside = path.with_name("beside")
    with open(beside, "wb") as file:
        write(file)
        os.fsync(file.fileno())
        os.replace(beside, path)
""",
        "swallows-the-error": """
import os

def save_whole(path, write):
    beside = path.with_name("beside")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except Exception:
        pass
""",
        "leaves-files-behind": """
import os
import shutil

def save_whole(path, write):
    beside = path.with_name("beside")
    with open(beside, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    shutil.copyfile(path, path.with_name("run.bak"))
""",
        "never-writes": """
def save_whole(path, write):
    path.touch()
""",
        "nothing-is-there": """
import os

def save_whole(path, write):
    with open(path.with_name("beside"), "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
""",
        "removes-the-old-one-first: when the new one is complete": """
import os
def save_whole(path, write):
    beside = path.with_name(path.name + ".partial")
    with open(beside, "wb") as file:
        write(file)
        file.flush(); os.fsync(file.fileno())
    path.unlink(missing_ok=True)
    beside.rename(path)
""",
        "fsync-too-early": """
import os
def save_whole(path, write):
    beside = path.with_name(path.name + ".partial")
    with open(beside, "wb") as file:
        write(file)
        os.fsync(file.fileno())
    os.replace(beside, path)
""",
        "fsync-too-early: before writing": """
import os
def save_whole(path, write):
    beside = path.with_name(path.name + ".partial")
    with open(beside, "wb") as file:
        os.fsync(file.fileno())
        write(file)
    os.replace(beside, path)
""",
        "fsync-too-late": """
import os
def save_whole(path, write):
    beside = path.with_name(path.name + '.partial')
    with open(beside, 'wb') as file:
        write(file)
        file.flush()
        os.replace(beside, path)
        os.fsync(file.fileno())
""",
        "renames-the-half": """
import os
def save_whole(path, write):
    beside = path.with_name(path.name + '.partial')
    file = open(beside, 'wb')
    try:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    finally:
        file.close()
        os.replace(beside, path)
""",
        "not-binary": """
import os
def save_whole(path, write):
    beside = path.with_name(path.name + '.partial')
    with open(beside, 'w') as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
""",
        "not-a-file": """
import os
def save_whole(path, write):
    b = path.with_name("b")
    write(b)
    os.replace(b, path)
""",
        "no-fsync: names imported from os": """
from os import fsync, replace
def save_whole(path, write):
    part = path.parent / ("." + path.name)
    with part.open("wb") as f:
        write(f)
    replace(part, path)
""",
        "no-fsync: from memory": """
import io, os
def save_whole(path, write):
    memory = io.BytesIO()
    write(memory)
    b = path.with_name("b")
    b.write_bytes(memory.getvalue())
    b.replace(path)
""",
        "writes-in-place: from memory": """
import io
def save_whole(path, write):
    memory = io.BytesIO()
    write(memory)
    path.write_bytes(memory.getvalue())
""",
    },
    "12.best_interval": {
        "forgets-the-other-ranks": """
def best_interval(save_s, lifetime_s, ranks):
    return (2 * save_s * lifetime_s) ** 0.5
""",
        "more-ranks-live-longer": """
def best_interval(save_s, lifetime_s, ranks):
    return (2 * save_s * lifetime_s * ranks) ** 0.5
""",
        "forgets-the-two": """
def best_interval(save_s, lifetime_s, ranks):
    return (save_s * lifetime_s / ranks) ** 0.5
""",
        "forgets-the-root": """
def best_interval(save_s, lifetime_s, ranks):
    return 2 * save_s * lifetime_s / ranks
""",
        "minutes-not-seconds": """
def best_interval(save_s, lifetime_s, ranks):
    return (2 * save_s * lifetime_s / ranks) ** 0.5 / 60
""",
        "wrong-value": """
def best_interval(save_s, lifetime_s, ranks):
    return lifetime_s / ranks
""",
        "half-not-root": """
def best_interval(save_s, lifetime_s, ranks):
    return (2 * save_s * lifetime_s / ranks) ** 1/2
""",
        "two-outside-the-root": """
def best_interval(save_s, lifetime_s, ranks):
    return 2 * (save_s * lifetime_s / ranks) ** 0.5
""",
        "share-not-seconds": """
def best_interval(save_s, lifetime_s, ranks):
    M = lifetime_s / ranks
    t = (2 * save_s * M) ** 0.5
    return save_s / t + t / (2 * M)
""",
        "forgets-the-save": """
def best_interval(save_s, lifetime_s, ranks):
    return lifetime_s / ranks / 2
""",
        "rounded": """
def best_interval(save_s, lifetime_s, ranks):
    return int((2 * save_s * lifetime_s / ranks) ** 0.5)
""",
        "another-formula": """
def best_interval(save_s, lifetime_s, ranks):
    return (2 * save_s * lifetime_s / ranks) ** 0.5 - save_s
""",
        "not-a-number": """
def best_interval(*a): pass
""",
    },
}
