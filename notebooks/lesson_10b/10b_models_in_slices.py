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
# # 10b Models in slices and shards
#
# **The one idea.** If a model is too large for one device, you can also cut through its layers. In tensor parallelism every rank computes with its slice of each layer, on the same samples. In ZeRO and FSDP every rank stores a shard of the model, works on its own samples, and borrows the other shards just in time.
#
# **You will be able to**
# - cut a linear layer by columns and by rows, and say which all-reduce belongs in the forward pass and which in the backward pass;
# - do the same to a whole transformer, by hand and with DTensor, and prove that it computes the same as the uncut one;
# - compute the loss over a large vocabulary without gathering its logits;
# - shard an optimizer by hand, and choose between the three stages of ZeRO by the bytes that a rank holds and sends in each;
# - use `ZeroRedundancyOptimizer`, and `fully_shard` in mixed precision and on the meta device;
# - lay out a 2 x 2 mesh, for data and slices or for replicas and shards, and say what travels in each of its groups;
# - work out on paper how much memory and traffic a model of 70 billion parameters needs.
#
# **Prerequisites:** lesson 08 (DDP), and reduce-scatter and all-gather from lessons 02 and 03.
#
# **Time.** The notebook runs in about 25 s (*measured here*: 4 ranks on 2 cores). Allow 190 minutes to study it with its three exercises; the end of section 5 is a good place for a break.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, hint, solution, yours_or_solution
from rank_by_rank.lesson_10b.figures import bytes_on_each_rank, gpus_needed, product_in_chunks
from rank_by_rank.lesson_10b.figures import sequence_in_slices, sliced_mlp

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# The model is a small transformer that reads the 8 rows of a digit as 8 tokens. It has two blocks of attention and MLP, 64 numbers wide, with 4 attention heads. It computes in float64, so that a mistake can't hide among rounding errors, and on the CPU, so that all claims hold with and without GPUs.

# %%
# %%px
from datetime import timedelta

import torch_mpi4py  # lets torch.distributed talk through MPI
from torch import nn
from torch.nn import functional as F
from torch_mpi4py import Traffic

from course_lib.parallel.invariants import assert_matches_serial, assert_replicas_equal
from course_lib.training import data
from course_lib.training.models import parameter_count
from course_lib.training.transformer import Transformer, TransformerMLP

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
training, _, _ = data.load_available("digits")


# %%
# %%px
def new_model():
    """The same weights on every rank, and in every call."""
    torch.manual_seed(0)
    return Transformer(size=8, width=64, heads=4, depth=2).double()


def batch(step, part=0, parts=1):
    """Part number `part` of `parts` of the 32 samples of this step."""
    images, labels = training[32 * step : 32 * (step + 1)]
    return images.double().chunk(parts)[part], labels.chunk(parts)[part]


model = new_model()
whole_bytes = 8 * parameter_count(model)
if rank == 0:
    print(f"{parameter_count(model):,} parameters, {whole_bytes:,} bytes")

# %% [markdown]
# ## 1. What fills the memory
#
# Training needs memory for more than the parameters. The cell below takes one step with Adam and adds up what is in memory after it.
#
# **Predict.** By what factor does training with Adam multiply the memory that the parameters alone take? Count parameters, gradients and Adam's state.

# %%
prediction = None


# %%
# %%px
def local_bytes(tensors):
    """Bytes that this rank holds of some tensors, of which each may be cut over the ranks."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(t.numel() * t.element_size() for t in local)


def state_of(optimizer):
    """The tensors of an optimizer's state; its counters of steps, single numbers, left out."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in values if torch.is_tensor(value) and value.dim() > 0]


optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
images, labels = batch(0)
F.cross_entropy(model(images), labels).backward()
optimizer.step()
parts = [list(model.parameters()), [p.grad for p in model.parameters()], state_of(optimizer)]
times = sum(map(local_bytes, parts)) / whole_bytes

# %%
compare(prediction, cluster.view["times"][0], within=0.01)

# %% [markdown]
# The factor is four: there are the parameters, the gradients, and two running means for each parameter. With DDP *every* rank holds all of this, so adding ranks does not make room for a larger model. (The *activations*, the layers' outputs that the backward pass will need, come on top. They grow with the batch size; sections 5 and 9 return to them.)

# %%
assert cluster.view["times"] == [4.0] * 4

# %% [markdown]
# ## 2. One layer in slices
#
# A linear layer computes $y = xA$. In *tensor parallelism* each rank has a slice of $A$. There are two ways to cut it.
#
# - By columns, $A = [A_0, A_1, \dots]$: rank r computes $y_r = x A_r$, some of the outputs. Every rank needs the whole $x$, and no sum is needed.
# - By rows, with the $A_r$ stacked on top of each other: rank r has some of the inputs, $x_r$. Its product $x_r A_r$ has the size of the whole output, but is only one term of it: $y = \sum_r x_r A_r$.
#
# The two fit together: a layer cut by columns leaves its output in the parts that a layer cut by rows takes as input. Between them there may be an elementwise function such as GELU, a smooth relative of ReLU. An MLP therefore needs one sum at its end, and none in the middle. Megatron-LM works in this way [1].

# %%
sliced_mlp()

# %% [markdown]
# What about the backward pass? Every slice received the whole $x$, so each slice of $A$ contributes a term to $\partial L / \partial x$, and the chain rule adds up these terms. Where $x$ is copied, an operation called $f$ therefore does nothing in the forward pass and an all-reduce in the backward pass. Where the terms are added, its mirror image $g$ does an all-reduce in the forward pass; in the backward pass it hands the gradient of the sum to each term unchanged.


# %%
# %%px
class Copy(torch.autograd.Function):
    """Megatron's f: one input for all slices."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


# %%
# %%px
class Sum(torch.autograd.Function):
    """Megatron's g: one output from the terms of all slices."""

    @staticmethod
    def forward(ctx, term):
        total = term.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


# %% [markdown]
# A word on shapes. PyTorch's `nn.Linear` stores the transpose of $A$: its `weight` is (outputs, inputs). Cutting $A$ by columns therefore means cutting `weight` along dimension 0, and cutting $A$ by rows means dimension 1. A bias has one number for each output: in a layer cut by columns it is cut too; in a layer cut by rows it is added once, after the sum.
#
# **Predict.** The MLP below takes 32 samples of 8 tokens, 64 numbers wide; its inner layer is 256 wide. Each number has 8 bytes. How many bytes does each of the 4 ranks hand over to all-reduces in the forward pass, and how many in the backward pass? Write `[forward, backward]`.

# %%
prediction = None


# %%
# %%px
def own_slice(parameter, dim):
    return nn.Parameter(parameter.detach().chunk(world_size, dim)[rank].clone())


torch.manual_seed(1)
mlp = TransformerMLP(64).double()
up, up_bias = own_slice(mlp.up.weight, 0), own_slice(mlp.up.bias, 0)
down, down_bias = own_slice(mlp.down.weight, 1), nn.Parameter(mlp.down.bias.detach().clone())


def sliced(x):
    inner = F.gelu(F.linear(Copy.apply(x), up, up_bias))
    return Sum.apply(F.linear(inner, down)) + down_bias


# %%
# %%px
x = torch.randn(32, 8, 64, generator=torch.Generator().manual_seed(2)).double()  # on all ranks
inputs = [x.clone().requires_grad_() for _ in range(2)]  # for the slices, for the whole
with Traffic() as forward:
    y = sliced(inputs[0])
for parameter in (up, up_bias, down, down_bias):
    parameter.grad = None
with Traffic() as backward:
    y.square().mean().backward()
calls, counted = zip(*(t.collectives["all_reduce"] for t in (forward, backward)), strict=True)

# %%
compare(prediction, list(cluster.view["counted"][0]))

# %% [markdown]
# There is one all-reduce each way, of 32 · 8 · 64 · 8 bytes: $y$ in the forward pass, and $\partial L / \partial x$, which has the same shape, in the backward pass. The inner values, 256 per token, stay on their ranks, and so do the weights and their gradients.

# %%
assert cluster.view["calls"] == [(1, 1)] * 4
assert cluster.view["counted"] == [(131_072, 131_072)] * 4

# %% [markdown]
# And are the numbers right? Each rank also computes the uncut MLP, and compares the outputs, the gradient of the inputs and the gradients of its own slices. Cutting changes the order in which terms are added, so we allow a difference of $10^{-12}$: the numbers here are about 1, and float64 rounds them by about $10^{-16}$.

# %%
# %%px
mlp.zero_grad()
inputs[1].grad = None
y_whole = mlp(inputs[1])
y_whole.square().mean().backward()


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


close(y, y_whole)
close(inputs[0].grad, inputs[1].grad)
close(up.grad, mlp.up.weight.grad.chunk(world_size, 0)[rank])
close(up_bias.grad, mlp.up.bias.grad.chunk(world_size, 0)[rank])
close(down.grad, mlp.down.weight.grad.chunk(world_size, 1)[rank])
close(down_bias.grad, mlp.down.bias.grad)

# %% [markdown]
# ### Break it on purpose: forget f
#
# Without `Copy` the output is still right, to the last bit, and so is every gradient inside the MLP.
#
# **Predict.** What goes wrong then? **A**: nothing; **B**: the gradient of the MLP's input is wrong, in the same way on all ranks; **C**: the gradient of the input is wrong, in a different way on each rank.

# %%
prediction = None

# %%
# %%px
broken_x = inputs[0].detach().clone().requires_grad_()
broken_y = Sum.apply(F.linear(F.gelu(F.linear(broken_x, up, up_bias)), down)) + down_bias
(broken_gradient,) = torch.autograd.grad(broken_y.square().mean(), broken_x)
wrong = not torch.allclose(broken_gradient, inputs[1].grad)
everyone = [torch.empty_like(broken_x) for _ in range(world_size)]
dist.all_gather(everyone, broken_gradient)
ranks_differ = not all(torch.equal(everyone[0], other) for other in everyone)

# %%
wrong, differ = cluster.view["wrong"][0], cluster.view["ranks_differ"][0]
compare(prediction, {(False, False): "A", (True, False): "B", (True, True): "C"}[wrong, differ])

# %% [markdown]
# The answer is C: each rank has a different gradient, which is only one term of the correct sum.

# %%
# %%px
assert wrong
assert ranks_differ
close(sum(everyone), inputs[1].grad)

# %% [markdown]
# **Symptom**: the first loss is right, but the loss then falls more slowly, and layers that should be replicas drift apart. **Diagnosis**: after one step, `assert_replicas_equal` fails on the layers before the cut; the input gradient on each rank is only one term of the sum. **Fix**: put $f$ before each layer that is cut by columns.
#
# ## 3. Your turn: the row-parallel layer
#
# Write the forward pass of a layer that is cut by rows. `inputs` has the shape (samples, inputs / p) and `weight` (outputs, inputs / p): these are this rank's parts. `bias` is whole. Return the whole output on every rank of the group. Use as few calls and send as few bytes as you can, but don't round numbers to a smaller dtype. (The check looks only at the forward pass; use `dist` directly.)


# %% tags=["exercise"] exercise="10b.row_linear"
# %%px
def row_linear(inputs, weight, bias, group):
    """Return the output (samples, outputs) of the layer whose parts the ranks of group hold."""
    ### BEGIN SOLUTION
    product = inputs @ weight.T
    dist.all_reduce(product, group=group)
    return product + bias
    ### END SOLUTION


# %% tags=["check"]
check("10b.row_linear")

# %% [markdown]
# Stuck? `hint("10b.row_linear")`, `solution("10b.row_linear")`.
#
# ## 4. A transformer in slices
#
# In *attention* each token makes three vectors: a query, a key and a value. The better its query matches another token's key, the more of that token's value it takes. A *head* does this with its own part of each vector. Attention is cut by heads, because a head's queries, keys and values do not meet those of other heads until the output layer mixes them. The query, key and value layers are therefore cut by columns, whole heads at a time, and the output layer by rows. With 4 heads and 4 ranks, each rank has one head.
#
# Your function is the forward pass of the layers cut by rows. (`yours_or_solution` uses the worked solution if yours is missing or not right yet.) Autograd does not look inside `dist.all_reduce`, so the cell also defines the backward pass. It needs no message, because the gradient of a sum goes to each term unchanged.


# %%
# %%px
from course_lib.teaching import yours_or_solution

my_row_linear = yours_or_solution("10b.row_linear")


class RowParallel(torch.autograd.Function):
    """Your forward, and the backward that belongs to it."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        y = my_row_linear(x.flatten(0, -2), weight, bias, dist.group.WORLD)
        return y.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        return gradient @ weight, rows.T @ x.flatten(0, -2), rows.sum(0)


# %%
# %%px
class ColumnLinear(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight, self.bias = own_slice(whole.weight, 0), own_slice(whole.bias, 0)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight, self.bias = own_slice(whole.weight, 1), whole.bias

    def forward(self, x):
        return RowParallel.apply(x, self.weight, self.bias)


# %%
# %%px
class Sliced(nn.Module):
    """An attention or an MLP in slices, with one f for all of its column layers."""

    def __init__(self, inner):
        super().__init__()
        for name, layer in list(inner.named_children()):
            cut = RowLinear if name in ("out", "down") else ColumnLinear
            setattr(inner, name, cut(layer))
        self.inner = inner

    def forward(self, x):
        return self.inner(Copy.apply(x))


# %% [markdown]
# All ranks process the *same* batch: together they are one worker.
#
# **Predict.** The model has two blocks. How many all-reduces does one training step take, in the forward and backward passes together?

# %%
prediction = None

# %%
# %%px
by_hand, serial_uncut = new_model(), new_model()
for block in by_hand.blocks:
    block.attention, block.mlp = Sliced(block.attention), Sliced(block.mlp)
uncut_optimizers = [
    torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (by_hand, serial_uncut)
]
for step in range(5):
    images, labels = batch(step)
    with Traffic() as traffic:
        for one, its_optimizer in zip((by_hand, serial_uncut), uncut_optimizers, strict=True):
            loss = F.cross_entropy(one(images), labels)
            its_optimizer.zero_grad()
            loss.backward()
            its_optimizer.step()
all_reduces, handed_over = traffic.collectives["all_reduce"]

# %%
compare(prediction, cluster.view["all_reduces"][0])

# %% [markdown]
# There are two blocks, each with an attention and an MLP, and each of these has one all-reduce in the forward pass and one in the backward pass: 8 in all. Each all-reduce has the size of the activations, samples · tokens · width numbers, whatever the size of the weights. Now the proof: after five steps the slices equal the matching parts of the uncut model, and the parameters that were not cut are the same on all ranks, bit for bit.


# %%
# %%px
def slice_of(tensor, name):
    """This rank's part of a tensor of the uncut model, by the name that it has there."""
    layer, _, kind = name.rpartition(".")
    if layer.endswith(("query", "key", "value", "up")):
        return tensor.chunk(world_size, 0)[rank]
    if layer.endswith(("out", "down")) and kind == "weight":
        return tensor.chunk(world_size, 1)[rank]
    return tensor


own = {name.replace("inner.", ""): p.detach() for name, p in by_hand.named_parameters()}
for name, parameter in serial_uncut.named_parameters():
    close(own[name], slice_of(parameter.detach(), name))
uncut = {n: p for n, p in own.items() if p.shape == dict(serial_uncut.named_parameters())[n].shape}
assert_replicas_equal(uncut)
assert (all_reduces, handed_over) == (8, 8 * 32 * 8 * 64 * 8)
if rank == 0:
    print(f"{local_bytes(own.values()) / whole_bytes:.3f} of the parameters on each rank")

# %% [markdown]
# That is a little more than a quarter, because every rank holds the norms, the embedding and the classifier as a whole.
#
# ### By DTensor
#
# PyTorch can do the cutting. A *DTensor* is a tensor that knows how it is spread over a *device mesh*, an array of ranks (lesson 10). `Shard(0)` means cut along dimension 0, `Replicate()` means whole everywhere, and `Partial()` means one term of a sum that has not been added up yet. Operations on DTensors insert the collectives that their placements require. `parallelize_module` takes a plan that names layers, and turns the parameters of these layers into DTensors.

# %%
# %%px
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
PLAN = {name: ColwiseParallel() for name in columns}
PLAN |= {"attention.out": RowwiseParallel(), "mlp.down": RowwiseParallel()}

mesh = init_device_mesh("cpu", (world_size,))
by_dtensor, serial_dtensor = new_model(), new_model()
for block in by_dtensor.blocks:
    parallelize_module(block, mesh, PLAN)
weight = by_dtensor.blocks[0].mlp.up.weight
if rank == 0:
    print(tuple(weight.shape), weight.placements, "here:", tuple(weight.to_local().shape))

# %% [markdown]
# **Predict.** In the handwritten version, the backward pass took 4 all-reduces for the two blocks. How many does it take with DTensor and this plan? (Where did the handwritten version apply $f$? Where can a plan apply it if it names only single layers?)

# %%
prediction = None

# %%
# %%px
images, labels = batch(0)
loss = F.cross_entropy(by_dtensor(images), labels)
with Traffic() as traffic:
    loss.backward()
F.cross_entropy(serial_dtensor(images), labels).backward()
for one, other in zip(by_dtensor.parameters(), serial_dtensor.parameters(), strict=True):
    close(one.grad.full_tensor() if isinstance(one, DTensor) else one.grad, other.grad)
in_backward = traffic.collectives["all_reduce"].messages

# %%
compare(prediction, cluster.view["in_backward"][0])

# %% [markdown]
# With DTensor, the backward pass takes eight (*measured here*, PyTorch 2.13). The gradients are the same, but query, key and value each have their own $f$, so attention takes three all-reduces instead of one.

# %%
assert cluster.view["in_backward"] == [8] * 4

# %% [markdown]
# A `PrepareModuleInput` for the whole attention turns its input into a DTensor before the three layers use it, which brings the three all-reduces down to one:

# %%
# %%px
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import PrepareModuleInput

f = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
by_better_plan = new_model()
for block in by_better_plan.blocks:
    parallelize_module(block, mesh, PLAN | {"attention": f})
images, labels = batch(0)
serial_dtensor.zero_grad()
F.cross_entropy(serial_dtensor(images), labels).backward()
loss = F.cross_entropy(by_better_plan(images), labels)
with Traffic() as traffic:
    loss.backward()
for one, other in zip(by_better_plan.parameters(), serial_dtensor.parameters(), strict=True):
    close(one.grad.full_tensor() if isinstance(one, DTensor) else one.grad, other.grad)
assert traffic.collectives["all_reduce"].messages == 4

# %% [markdown]
# The backward pass takes four all-reduces again. Count the messages before you trust a plan.
#
# ### The logits, cut by the vocabulary
#
# For each token, the last layer of a language model returns one number for each entry of the vocabulary. These numbers are the *logits*. The loss is the cross-entropy of their softmax.
#
# **Predict.** Llama 3 has a vocabulary of 128,256 entries (*published* [5]). How many gigabytes ($10^9$ bytes) do the logits of one sequence of 8,192 tokens take in float32?

# %%
prediction = None

# %%
vocabulary, tokens, t = 128256, 8192, 8
logits_gb = 4 * tokens * vocabulary / 1e9
compare(prediction, logits_gb, within=0.02, unit="GB", source="By the formula")

# %%
print(f"logits of {tokens:,} tokens, bfloat16         {logits_gb / 2:6.2f} GB")
print(f"... in float32                               {logits_gb:6.2f} GB")
print(f"... with what the loss keeps, and gradients  {3 * logits_gb:6.2f} GB")
print(f"... each cut over {t} GPUs                     {3 * logits_gb / t:6.2f} GB")
assert 12 < 3 * logits_gb < 13

# %% [markdown]
# The backward pass needs the softmax of the logits and computes their gradient; each is as large as the logits themselves. If nothing is freed or overwritten early, the three take 12.6 GB for a single sequence.
#
# If the layer is cut by columns, each rank has the logits of its part of the vocabulary, for all tokens. Gathering these logits would put all 4.2 GB on every rank again. But the loss of a token needs much less from the other ranks. If the token's logits are $z_v$, the loss is
#
# $$ L = \ln \sum_v e^{z_v} - z_\text{label} $$
#
# Each rank adds up the exponentials of its own columns, and an all-reduce adds up these sums. Only one rank has the label's logit. The other ranks contribute zero, so that the same all-reduce brings this logit to every rank. (As in any softmax, the largest logit is subtracted first, so that no exponential overflows. That takes an all-reduce with MAX.) The gradient of the logits is their softmax, minus one at the label. Each rank can compute its own columns of this gradient without another message. This is called *loss parallelism*; Megatron-LM computes its loss this way [1].
#
# To keep the code short, `at_labels` builds a whole matrix of zeros and ones. Real code looks up one number per token, and computes the gradient in place.


# %%
# %%px
def at_labels(labels, logits):
    """One where a column of this rank's logits is its token's label, zero elsewhere."""
    width = logits.shape[1]
    return (labels[:, None] == rank * width + torch.arange(width)).to(logits)


# %%
# %%px
class SlicedCrossEntropy(torch.autograd.Function):
    """The mean loss of logits (tokens, vocabulary / p), this rank's columns of them."""

    @staticmethod
    def forward(ctx, logits, labels):
        largest = logits.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        terms = (logits - largest[:, None]).exp()
        sums = torch.stack([terms.sum(1), (logits * at_labels(labels, logits)).sum(1)])
        dist.all_reduce(sums)
        ctx.save_for_backward(terms / sums[0][:, None], labels)
        return (largest + sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax, labels = ctx.saved_tensors
        return gradient * (softmax - at_labels(labels, softmax)) / len(labels), None


# %% [markdown]
# **Predict.** There are 256 tokens, a vocabulary of 1,000 entries and 4 ranks; each number has 8 bytes. To gather the logits, each rank would hand over 512,000 bytes. How many bytes does it hand over to the two all-reduces above?

# %%
prediction = None


# %%
# %%px
def kept_by(loss_of, logits):
    """The loss, and the bytes that autograd keeps of it until backward."""
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = local_bytes([tensor])
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = loss_of(logits)
    return loss, sum(kept.values())


# %%
# %%px
torch.manual_seed(3)  # the same tokens and labels on all ranks
TOKENS, VOCABULARY = 256, 1000
hidden = torch.randn(TOKENS, 64).double()
entries = torch.randint(VOCABULARY, (TOKENS,))  # the labels: which entry comes next
head = nn.Linear(64, VOCABULARY, bias=False).double()

# %%
# %%px
own_head = own_slice(head.weight, 0)
hidden_sliced, hidden_whole = (hidden.clone().requires_grad_() for _ in range(2))
own_logits = F.linear(Copy.apply(hidden_sliced), own_head)
with Traffic() as of_the_loss:
    loss, kept = kept_by(lambda z: SlicedCrossEntropy.apply(z, entries), own_logits)
loss.backward()

head.zero_grad()
loss_whole, kept_whole = kept_by(lambda z: F.cross_entropy(z, entries), head(hidden_whole))
loss_whole.backward()
close(loss, loss_whole)
close(hidden_sliced.grad, hidden_whole.grad)
close(own_head.grad, head.weight.grad.chunk(world_size, 0)[rank])
loss_calls, loss_bytes = of_the_loss.collectives["all_reduce"]

# %%
compare(prediction, cluster.view["loss_bytes"][0])

# %% [markdown]
# The largest logit, the sum and the label's logit make three numbers per token, whatever the size of the vocabulary. For Llama 3's 8,192 tokens that is 98 kB instead of gigabytes. Loss and gradients equal those of one process, and each rank keeps only a quarter of the softmax for the backward pass.

# %%
# %%px
assert (loss_calls, loss_bytes) == (2, 3 * TOKENS * 8)
assert kept == (TOKENS * VOCABULARY // world_size + TOKENS) * 8  # and the labels
assert 0 <= kept_whole - (TOKENS * VOCABULARY + TOKENS) * 8 <= 8
if rank == 0:
    print(f"kept for backward: {kept:,} bytes here, {kept_whole:,} in one piece")

# %% [markdown]
# DTensor does the same: the layer leaves its output cut by columns, and inside `loss_parallel`, cross-entropy accepts this output. Without `loss_parallel`, and with the labels as a DTensor, the same line gathers the logits. The result is still right, so only the counts reveal the difference.

# %%
# %%px
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

by_columns = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
head_dtensor = nn.Linear(64, VOCABULARY, bias=False).double()
head_dtensor.load_state_dict(head.state_dict())
parallelize_module(head_dtensor, mesh, by_columns)
with loss_parallel():
    logits = head_dtensor(hidden)
    with Traffic() as traffic:
        loss = F.cross_entropy(logits, entries)
    loss.backward()
close(loss.full_tensor(), loss_whole)
close(head_dtensor.weight.grad.full_tensor(), head.weight.grad)
assert traffic.collectives == {"all_reduce": (3, 3 * TOKENS * 8)}

# %%
# %%px
entries_dtensor = distribute_tensor(entries, mesh, [Replicate()], src_data_rank=None)
with Traffic() as traffic:
    close(F.cross_entropy(head_dtensor(hidden), entries_dtensor).full_tensor(), loss_whole)
assert traffic.collectives == {"all_gather": (1, TOKENS * VOCABULARY // world_size * 8)}

# %% [markdown]
# With `loss_parallel` there are three all-reduces instead of our two (*measured here*, PyTorch 2.13), and the same 6,144 bytes. Without it, each rank hands over 512,000 bytes.
#
# ## 5. Sequence parallelism
#
# In section 4 every rank computes the norms of all tokens, and keeps all their activations for the backward pass. But a norm looks at one token at a time, so the norms could be cut by tokens. Then $g$ need not give every rank the whole sum: a reduce-scatter gives each rank the sum for its own tokens, and $f$ becomes the all-gather that brings the tokens together again. This is *sequence parallelism* [2].

# %%
sequence_in_slices()

# %% [markdown]
# **Predict.** A ring all-reduce of n bytes over p ranks sends $2 \frac{p-1}{p} n$ from each rank (lesson 03). You replace the all-reduce with a reduce-scatter and an all-gather. By what factor does the number of bytes sent change?

# %%
prediction = None


# %%
# %%px
def ring_bytes(traffic, p=world_size):
    """What each of p ranks would send over rings for the collectives counted on it."""
    factors = {
        "all_reduce": 2 * (p - 1) / p,  # of the whole
        "reduce_scatter": (p - 1) / p,  # of the whole
        "all_gather": p - 1,  # of the own part, which goes round
        "broadcast": p - 1,  # of the root's part, from every rank in its turn
    }
    return sum(factors[name] * count.bytes for name, count in traffic.collectives.items())


# %%
# %%px
terms = torch.arange(32 * 8.0 * 64) * (rank + 1)  # whole numbers: sums are exact in any order
with Traffic() as in_one:
    total = terms.clone()
    dist.all_reduce(total)
with Traffic() as in_two:
    part = torch.empty(len(terms) // world_size)
    dist.reduce_scatter(part, list(terms.chunk(world_size)))
    joined = torch.empty_like(terms)
    dist.all_gather(list(joined.chunk(world_size)), part)
assert torch.equal(total, joined)
ratio = ring_bytes(in_two) / ring_bytes(in_one)

# %%
compare(prediction, cluster.view["ratio"][0], within=0.01, source="From the counts")

# %% [markdown]
# The factor is 1: an all-reduce *is* a reduce-scatter and an all-gather. (The meter counts the bytes handed over, and `ring_bytes` computes from them what rings would send. Your MPI may choose other algorithms.) The rest of this lesson builds on this fact.
#
# In sequence parallelism, therefore, each rank keeps only one p-th of the bytes that the norms keep for the backward pass, and sends no more than in tensor parallelism: instead of four all-reduces, a block has eight halves of an all-reduce. One thing is still whole on every rank: the gathered $x$ that the column layers keep for the gradient of their weights. You can divide that by p too, if each rank keeps only its own tokens. But then the backward pass has to gather the tokens again, with one more all-gather for the attention and one for the MLP: ten halves instead of eight [2]. You can keep fewer bytes or send fewer bytes, but not both.

# %%
assert cluster.view["ratio"] == [1.0] * 4

# %% [markdown]
# ### Hide the messages behind the product
#
# The all-gather before a column layer costs time: the layer waits until all tokens have arrived. But it need not wait. A token's row of the product $xA_r$ depends on this token alone, so a rank can begin with its own chunk of tokens while the others arrive round a ring. The reduce-scatter after a row layer can be cut in the same way: a chunk of the result leaves while the next one is computed. This is *asynchronous tensor parallelism*. PyTorch's compiler can cut products and messages like this, and torchtitan has a setting for it [7].
#
# **Predict.** A chunk takes 1 ms to arrive and 1.5 ms to multiply (*assumed*). If one of 4 ranks first gathers all chunks and then multiplies them, this takes 3 · 1 + 4 · 1.5 = 9 ms. How long does it take if each chunk arrives while the previous one is multiplied?

# %%
prediction = None

# %%
transfer, product, ranks = 1.0, 1.5, 4
in_chunks = product + (ranks - 1) * max(transfer, product)
compare(prediction, in_chunks, unit="ms", source="By the formula")
product_in_chunks(ranks, transfer, product)

# %% [markdown]
# It takes 6 ms. The first chunk, the rank's own, is already there. Each of the others costs the longer of two times: its own transfer, or the product before it. As long as a product takes at least as long as a transfer, the all-gather costs no time. If a transfer took 2 ms, the total would be 1.5 + 3 · 2 = 7.5 ms. (A GPU is less efficient at small products than at large ones, so the chunks cannot be as small as you like.)
#
# The next cell does this on your ranks. It proves that the result is the whole product, and that the bytes are those of a ring all-gather: $p - 1$ chunks from each rank. It does not measure times, because ranks share cores here, so a message and a product compete for the same CPU.


# %%
# %%px
def gather_and_multiply(chunk, weight):
    """The product of all ranks' chunks with weight; each arrives during the product before."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    products, messages = [None] * world_size, []
    for step in range(world_size):
        if step < world_size - 1:
            arriving = torch.empty_like(chunk)
            pair = dist.P2POp(dist.isend, chunk, right), dist.P2POp(dist.irecv, arriving, left)
            messages = dist.batch_isend_irecv(list(pair))
        products[(rank - step) % world_size] = chunk @ weight
        for message in messages:
            message.wait()
        chunk, messages = arriving, []
    return torch.cat(products)


# %%
# %%px
all_tokens = x.flatten(0, 1)  # section 2's samples, one row a token
own_tokens = all_tokens.chunk(world_size)[rank].contiguous()
with Traffic() as traffic:
    y_chunks = gather_and_multiply(own_tokens, up.detach().T)
close(y_chunks, all_tokens @ up.detach().T)
assert traffic.sent.bytes == (world_size - 1) * local_bytes([own_tokens])

# %% [markdown]
# ## 6. Sharding the optimizer, by hand
#
# Now we divide what the ranks store, but not the layers. As in DDP, each rank has its own samples, and needs all the weights in both passes. But Adam's state is needed only where a weight is updated. So rank r updates part r, keeps the state of that part only, and sends the new weights to the other ranks with an all-gather. The parts are slices of one long vector that holds all parameters.

# %%
# %%px
from torch.nn.utils import parameters_to_vector, vector_to_parameters

sharded, serial_sharded = new_model(), new_model()
assert parameter_count(sharded) % world_size == 2  # so the vector is filled up with zeros
filled = -(-parameter_count(sharded) // world_size) * world_size


def as_vector(tensors):
    vector = parameters_to_vector(tensors).detach()
    return F.pad(vector, (0, filled - len(vector)))


own_part = nn.Parameter(as_vector(sharded.parameters()).chunk(world_size)[rank].clone())
own_adam = torch.optim.Adam([own_part], lr=1e-3)
serial_adam = torch.optim.Adam(serial_sharded.parameters(), lr=1e-3)

# %% [markdown]
# **Predict.** DDP all-reduces the gradients. This step does so too, and adds an all-gather of the weights, so it sends more bytes than DDP. By what factor?

# %%
prediction = None


# %%
# %%px
def step_of_shards(images, labels):
    loss = F.cross_entropy(sharded(images), labels)
    sharded.zero_grad()
    loss.backward()
    gradient = as_vector([p.grad for p in sharded.parameters()])
    dist.all_reduce(gradient)
    own_part.grad = gradient.chunk(world_size)[rank] / world_size
    own_adam.step()
    weights = torch.empty_like(gradient)
    dist.all_gather(list(weights.chunk(world_size)), own_part.detach())
    vector_to_parameters(weights[: parameter_count(sharded)], sharded.parameters())


# %%
# %%px
for step in range(5):
    with Traffic() as traffic:
        step_of_shards(*batch(step, rank, world_size))
    images, labels = batch(step)
    serial_adam.zero_grad()
    F.cross_entropy(serial_sharded(images), labels).backward()
    serial_adam.step()
step_ratio = ring_bytes(traffic) / (2 * (world_size - 1) / world_size * 8 * filled)

# %%
compare(prediction, cluster.view["step_ratio"][0], within=0.01, source="From the counts")

# %%
# %%px
assert_replicas_equal(sharded)
assert_matches_serial(sharded, serial_sharded, rtol=0, atol=1e-10)
shares = local_bytes(state_of(own_adam)), local_bytes(state_of(serial_adam))
print(f"Adam's state: {shares[0]:,} bytes here, {shares[1]:,} in one piece")

# %% [markdown]
# Four ranks, each with a quarter of Adam's state, give the same result as one process with all of it. (The tolerance is wider here, because Adam divides by the size of the gradient. A rounding error in a gradient that should be zero becomes up to $10^{-17} / 10^{-8}$ of a step, where $10^{-8}$ is Adam's epsilon; $10^{-10}$ is far above that, and far below a step of $10^{-3}$.)
#
# This is stage 1 of *ZeRO*, the zero redundancy optimizer [3]. PyTorch provides it as `ZeroRedundancyOptimizer`, for use with DDP; section 7 measures it. But you need not send 1.5 times as many bytes as DDP, because each rank uses only one part of the all-reduced gradient.

# %%
assert cluster.view["step_ratio"] == [1.5] * 4

# %% [markdown]
# ### Your turn: no more bytes than an all-reduce
#
# Write one step of SGD with momentum and sharded state. It must send no more bytes than one all-reduce of the gradient. The vectors `weights` and `gradient` have n numbers, and `velocity` has n / p (n is a multiple of p). `weights` are the same on all ranks; each rank has its own `gradient`. If m is the *mean* gradient of the group, the step is velocity ← 0.9 velocity + m and weights ← weights - 0.1 velocity. Change `weights` and `velocity` in place; return nothing.


# %% tags=["exercise"] exercise="10b.sharded_step"
# %%px
def sharded_step(weights, gradient, velocity, group):
    """Take one step of SGD with momentum; each rank of group holds a part of the velocity."""
    ### BEGIN SOLUTION
    p, r = dist.get_world_size(group), dist.get_rank(group)
    part = torch.empty_like(velocity)
    dist.reduce_scatter(part, list(gradient.chunk(p)), group=group)
    velocity.mul_(0.9).add_(part / p)
    mine = weights.chunk(p)[r] - 0.1 * velocity
    dist.all_gather(list(weights.chunk(p)), mine, group=group)
    ### END SOLUTION


# %% tags=["check"]
check("10b.sharded_step")

# %% [markdown]
# Stuck? `hint("10b.sharded_step")`, `solution("10b.sharded_step")`.
#
# ## 7. Three stages
#
# If gradients are reduce-scattered, no rank has to hold the whole gradient, so in stage 2 each rank keeps only its part. The ranks gather the weights in any case, so they can also discard a layer's weights as soon as the layer is done. In stage 3 each rank keeps only its part of the weights, and the ranks gather each layer's weights when they need them, once in the forward pass and once again in the backward pass.
#
# | stage | each rank keeps only a part of | gradients travel by | weights travel by |
# |---|---|---|---|
# | 0: DDP | nothing | all-reduce | (they do not travel) |
# | 1: `ZeroRedundancyOptimizer` | the optimizer's state | all-reduce (in PyTorch's version) | broadcasts, after the step |
# | 2: `fully_shard(..., reshard_after_forward=False)` | state, gradients | reduce-scatter | one all-gather, in the forward pass |
# | 3: `fully_shard(..., reshard_after_forward=True)` | state, gradients, parameters | reduce-scatter | two all-gathers, one in each pass |
#
# You apply `fully_shard`, also called FSDP2, to each block and then to the whole model: each call makes one unit, whose weights are gathered together. (With `reshard_after_forward=False` a rank frees the whole weights at the end of the backward pass, so this is stage 2 between the two passes, when memory is fullest. By default `fully_shard` reshards the blocks but not the root, the unit of the whole model [4], because the backward pass begins there at once. We pass True for the root as well, so that stage 3 gathers everything twice, as the table says.)

# %%
# %%px
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def fsdp(again):
    model = new_model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=again)
    return fully_shard(model, mesh=mesh, reshard_after_forward=again)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def zero(model):
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)


# %%
# %%px
WAYS = {
    "0: DDP": lambda: (model := DDP(new_model()), adam(model)),
    "1: ZeRO": lambda: (model := DDP(new_model()), zero(model)),
    "2: FSDP": lambda: (model := fsdp(again=False), adam(model)),
    "3: FSDP": lambda: (model := fsdp(again=True), adam(model)),
}

# %% [markdown]
# How many bytes of the parameters does each rank hold between the two passes, how many of the gradients after the backward pass, and how many of Adam's state? And how many bytes does it send in a step?
#
# **Predict.** A step sends more bytes in stage 3 than with DDP. By what factor?

# %%
prediction = None


# %%
# %%px
def measure(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        images, labels = batch(step, rank, world_size)
        with Traffic() as traffic:
            loss = F.cross_entropy(model(images), labels)
            parameters = local_bytes(list(model.parameters()))
            loss.backward()
            gradients = local_bytes([p.grad for p in model.parameters()])
            optimizer.step()
    state = state_of(getattr(optimizer, "optim", optimizer))
    return (parameters, gradients, local_bytes(state)), ring_bytes(traffic)


# %%
# %%px
def whole(model):
    named = {name.removeprefix("module."): p.detach() for name, p in model.named_parameters()}
    return {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in named.items()}


held, sent, final = {}, {}, {}
for way, make in WAYS.items():
    replica, its_optimizer = make()
    held[way], sent[way] = measure(replica, its_optimizer)
    final[way] = whole(replica)

# %%
held, sent = cluster.view["held"][0], cluster.view["sent"][0]
whole_bytes = cluster.view["whole_bytes"][0]
compare(prediction, sent["3: FSDP"] / sent["0: DDP"], within=0.01, source="From the counts")
print("rank 0: bytes held    parameters  gradients    Adam       sent / DDP's")
for way, numbers in held.items():
    row = " ".join(f"{nbytes:11,}" for nbytes in numbers)
    print(f"{way:20}{row} {sent[way] / sent['0: DDP']:12.2f}")

# %%
bytes_on_each_rank(held, whole_bytes)

# %% [markdown]
# Do all four ways end with the same weights, and do the bytes match the formulas? With n bytes of parameters, each rank holds 1/p of everything that is sharded, and sends $\frac{p-1}{p} n$ for each full reduce-scatter or all-gather. The tolerance of 1% allows for sizes that are not multiples of 4: `fully_shard` cuts each parameter along its first dimension and pads it, while `ZeroRedundancyOptimizer` gives each rank whole parameters.

# %%
# %%px
n, once = whole_bytes, (world_size - 1) / world_size * whole_bytes
for stage, (way, (parameters, gradients, state)) in enumerate(held.items()):
    found = parameters, gradients, state, sent[way]
    predicted = (
        n / world_size if stage >= 3 else n,
        n / world_size if stage >= 2 else n,
        2 * n / world_size if stage >= 1 else 2 * n,
        {0: 2, 1: 3, 2: 2, 3: 3}[stage] * once,
    )
    assert all(abs(a - b) < 0.01 * b for a, b in zip(found, predicted, strict=True)), (way, found)
    assert_replicas_equal(final[way])
    assert_matches_serial(final[way], final["0: DDP"], rtol=0, atol=1e-10)

# %% [markdown]
# (The bytes held are *measured here*; those sent are *predicted*: the ring's formula, applied to the counted bytes.) Stage 2 is free: a rank holds a quarter of the gradients and the state, and sends no more than DDP. Stage 3 sends half as much again, but holds only a quarter of the parameters too, as the ZeRO paper says (*published* [3]). The next block can be gathered while the current one is computed, so a good network hides the cost, as in lesson 06.
#
# ### In mixed precision
#
# In mixed precision (lesson 08) the layers of a model compute in bfloat16, which has two bytes per number and 8 significant bits. A `MixedPrecisionPolicy` gives `fully_shard` two dtypes: weights are gathered and used in `param_dtype`, and gradients are summed in `reduce_dtype`. The stored shards keep the model's own dtype, here float32. These are the *master weights* [8], which the optimizer updates.
#
# **Predict.** Stage 3 gathers weights in bfloat16 and sums gradients in float32. How many bytes does it send, as a fraction of what it sends with everything in float32? Write a fraction.

# %%
prediction = None

# %%
# %%px
from torch.distributed.fsdp import MixedPrecisionPolicy

BF16, FP32 = torch.bfloat16, torch.float32
POLICIES = {
    "float32, float32": MixedPrecisionPolicy(),
    "bfloat16, float32": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32),
    "bfloat16, bfloat16": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=BF16),
}


def shard_units(model, mesh=mesh, policy=POLICIES["float32, float32"]):
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    return model


# %%
# %%px
def gradient_of(model):
    """The whole gradient as one vector, on every rank."""
    whole = [p.grad.full_tensor() if isinstance(p, DTensor) else p.grad for p in model.parameters()]
    return torch.cat([gradient.flatten() for gradient in whole]).float()


# %%
# %%px
mixed_traffic, mixed_gradient = {}, {}
for policy_name, policy in POLICIES.items():
    mixed = shard_units(new_model().float(), policy=policy)
    images, labels = batch(0, rank, world_size)
    with Traffic() as traffic:
        F.cross_entropy(mixed(images.float()).float(), labels).backward()
    mixed_traffic[policy_name] = traffic
    mixed_gradient[policy_name] = gradient_of(mixed)
    assert {p.dtype for p in mixed.parameters()} == {FP32}
    assert {p.grad.dtype for p in mixed.parameters()} == {FP32}
mixed_sent = {policy_name: ring_bytes(traffic) for policy_name, traffic in mixed_traffic.items()}

# %%
mixed_sent = cluster.view["mixed_sent"][0]
compare(
    prediction,
    mixed_sent["bfloat16, float32"] / mixed_sent["float32, float32"],
    within=0.01,
    source="From the counts",
)

# %% [markdown]
# The answer is two thirds: 2 + 2 + 4 bytes travel for each parameter instead of 4 + 4 + 4. The counts show in which dtype each collective sends its data: a rank hands its shard to two all-gathers, and the whole gradient to the reduce-scatter. (Each parameter is padded to a multiple of 4 rows.)

# %%
# %%px
filled_up = sum(
    -(-len(p) // world_size) * world_size * p[0].numel() for p in new_model().parameters()
)
for policy_name, traffic in mixed_traffic.items():
    gathered, reduced = (2 if word == "bfloat16" else 4 for word in policy_name.split(", "))
    counts = {kind: count.bytes for kind, count in traffic.collectives.items()}
    assert counts["all_gather"] == 2 * gathered * filled_up // world_size
    assert counts["reduce_scatter"] == reduced * filled_up
    if rank == 0:
        print(f"{policy_name:20} {counts}")

# %% [markdown]
# Why not sum in bfloat16 as well, and halve those bytes too?
#
# **Predict.** Each of 1,000 ranks has the gradient 1. The sum goes from rank to rank, and each rank adds its own gradient, in bfloat16. What is the result?

# %%
prediction = None

# %%
# %%px
running_sum = torch.zeros((), dtype=BF16)
for _ in range(1000):
    running_sum += 1
came_out = running_sum.item()

# %%
compare(prediction, cluster.view["came_out"][0], source="Computed here")

# %% [markdown]
# The result is 256. The next whole number, 257, needs nine significant bits, so from there on $256 + 1$ is rounded to 256. This holds at any scale: in bfloat16 a sum stops growing when it is a few hundred times as large as the next term. The more ranks there are, the more of a gradient can be lost, and it is lost before the optimizer sees it.
#
# With four ranks little is lost, but you can measure it. The next cell compares the sharded gradients with those of one process that computes the four ranks' gradients one after another in bfloat16 and averages them in float32. (This course's backend adds bfloat16 numbers in float32 and rounds once; see lesson 08. A ring with bfloat16 messages rounds at every hop.)

# %%
# %%px
in_one_process = torch.zeros_like(mixed_gradient["bfloat16, float32"])
for part in range(world_size):
    rounded = new_model().to(BF16)
    images, labels = batch(0, part, world_size)
    F.cross_entropy(rounded(images.to(BF16)).float(), labels).backward()
    in_one_process += gradient_of(rounded) / world_size
errors = [
    ((mixed_gradient[f"bfloat16, {word}"] - in_one_process).norm() / in_one_process.norm()).item()
    for word in ("float32", "bfloat16")
]
assert errors[0] < 1e-6
assert errors[1] > 1e-4
if rank == 0:
    print(f"a gradient summed in bfloat16 is off by about {errors[1]:.1%}, in float32 by rounding")

# %% [markdown]
# And why do we need master weights? The same rounding can prevent the update of a weight. The weights of this model's five norms start at 1, and a step of Adam changes each by about 0.001.
#
# **Predict.** The five norms have 5 · 64 = 320 weights. How many of these have moved after 2 steps if the stored weights themselves are in bfloat16?

# %%
prediction = None


# %%
# %%px
def moved(model):
    """How many weights of the norms are not 1 any more after two steps of Adam."""
    optimizer = adam(model)
    for step in range(2):
        optimizer.zero_grad()
        images, labels = batch(step, rank, world_size)
        images = images.to(next(model.parameters()).dtype)
        F.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()
    scales = [p.full_tensor() for n, p in model.named_parameters() if n.endswith("norm.weight")]
    return sum((scale != 1).sum().item() for scale in scales)


moved_master = moved(shard_units(new_model().float(), policy=POLICIES["bfloat16, float32"]))
moved_bfloat16 = moved(shard_units(new_model().to(BF16)))

# %%
compare(prediction, cluster.view["moved_bfloat16"][0])

# %% [markdown]
# None of them has moved. In bfloat16 the next number below 1 is $1 - 2^{-8} \approx 0.996$, and the next above 1 is $1 + 2^{-7}$, so $0.999$ and $1.001$ are rounded back to 1 at every step. The master weights have all moved. Master weights cost memory, but no messages: 4 bytes for each master weight, 4 for its gradient and 8 for Adam's state, all sharded. That makes 16 bytes per parameter. (Section 9 arrives at 16 by another route: 2 for a weight in bfloat16, 2 for its gradient, and 12 for the optimizer with its master weight.)

# %%
assert cluster.view["moved_master"] == [320] * 4
assert cluster.view["moved_bfloat16"] == [0] * 4

# %% [markdown]
# ### Build it in shards: the meta device
#
# One thing is still whole on every rank: the model before `fully_shard` cuts it. A rank that cannot hold the whole model cannot even build it. Tensors on PyTorch's *meta device* have a shape and a dtype but no memory. You build the model there, shard it, and let `to_empty` allocate memory for the shards alone.
#
# **Predict.** The cell looks at the memory of the parameters three times: after the model is built, after it is sharded, and after memory is allocated. If a model is built as usual, the most that a rank ever holds is the whole model. What is the most with the meta device? Write a fraction of the whole.

# %%
prediction = None


# %%
# %%px
def memory_of(model):
    """Bytes of memory of this rank's parameters; those on the meta device have none."""
    local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return sum(t.untyped_storage().nbytes() for t in local if not t.is_meta)


def built_on(device):
    """A sharded model, and the bytes of its parameters when built, sharded and allocated."""
    with torch.device(device):
        model = new_model()
    seen = [memory_of(model)]
    seen.append(memory_of(shard_units(model)))
    if device == "meta":
        model.to_empty(device="cpu")
    return model, [*seen, memory_of(model)]


(_, as_usual), (from_meta, by_meta) = built_on("cpu"), built_on("meta")
most = max(by_meta) / whole_bytes

# %%
compare(prediction, cluster.view["most"][0], within=0.01)
for how in ("as_usual", "by_meta"):
    built, cut, allocated = cluster.view[how][0]
    print(f"{how:9} built {built:9,}   sharded {cut:9,}   allocated {allocated:9,} bytes")

# %%
# %%px
assert as_usual == [whole_bytes, 8 * filled_up // world_size, 8 * filled_up // world_size]
assert by_meta == [0, 0, 8 * filled_up // world_size]

# %% [markdown]
# With the meta device, a rank never holds more than a quarter. But `to_empty` does not initialise anything: every tensor, including those in the norms, contains whatever was in that memory before. You have to fill every parameter and every buffer. The obvious way is this: all ranks set the same seed, and each layer draws its weights with `reset_parameters`, straight into the shards.
#
# **Predict.** Each rank has a quarter of the rows of `up.weight` in the first MLP. How many distinct quarters are there among the four?

# %%
prediction = None

# %%
# %%px
import warnings

torch.manual_seed(0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch's, that DTensor draws properly on GPUs only
    for module in from_meta.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
drawn = from_meta.blocks[0].mlp.up.weight.full_tensor().detach()
different = len({tuple(quarter.flatten().tolist()) for quarter in drawn.chunk(world_size)})
usual = new_model().blocks[0].mlp.up.weight.detach()

# %%
compare(prediction, cluster.view["different"][0])

# %% [markdown]
# There is only one: all four quarters are equal, because equal seeds and equal shapes give equal numbers. Mean and spread look right, so only a comparison reveals the mistake. (On GPUs DTensor prevents this: each rank draws from its own place in one sequence of random numbers. On CPUs it only warns.) There is another gap: `position` is a parameter outside every layer, so no `reset_parameters` fills it.

# %%
# %%px
assert different == 1
assert abs(drawn.std() / usual.std() - 1) < 0.05
assert not torch.equal(drawn, usual)

# %% [markdown]
# A different seed on each rank gives weights that are as good as any, but not those of one process, because the numbers come in a different order. You get the same bits only if one generator draws whole tensors in one order, or if the ranks read them from a file. Here rank 0 has the whole tensors, and `set_model_state_dict` broadcasts them one after another; each rank keeps its part. Only rank 0 needs memory for a whole model. (A checkpoint in parts, lesson 12, avoids even that.)

# %%
# %%px
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

of_rank_0 = new_model().state_dict() if rank == 0 else {}
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(from_meta, of_rank_0, options=options)
for mine, ordinary in zip(from_meta.parameters(), new_model().parameters(), strict=True):
    assert torch.equal(mine.full_tensor(), ordinary)
assert memory_of(from_meta) == by_meta[-1]

# %% [markdown]
# ## 8. Both: a 2 x 2 mesh
#
# You can combine slices and shards on a mesh of two dimensions. Ranks 0 and 1 slice the layers for one half of the batch, ranks 2 and 3 for the other half. Each slice is sharded over the two ranks that hold it: 0 and 2, or 1 and 3.
#
# **Predict.** What fraction of all parameters does each rank store? Write a fraction such as `1/3`.

# %%
prediction = None

# %%
# %%px
mesh_2d = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
both, serial_both = new_model(), new_model()
for block in both.blocks:
    parallelize_module(block, mesh_2d["tensor"], PLAN)
    fully_shard(block, mesh=mesh_2d["data"])
fully_shard(both, mesh=mesh_2d["data"])
stored = local_bytes(list(both.parameters())) / whole_bytes

both_optimizers = [
    torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (both, serial_both)
]
for step in range(3):
    halves = batch(step, mesh_2d["data"].get_local_rank(), 2), batch(step)
    for one, its_optimizer, (images, labels) in zip(
        (both, serial_both), both_optimizers, halves, strict=True
    ):
        its_optimizer.zero_grad()
        F.cross_entropy(one(images), labels).backward()
        its_optimizer.step()
images, _ = batch(3)
close(both(images), serial_both(images))  # the same function, so the same weights

# %%
compare(prediction, cluster.view["stored"][0], within=0.05)

# %% [markdown]
# Each rank stores a little more than a quarter, because the layers that tensor parallelism leaves whole are cut only in two. With more ranks, put the tensor dimension where the links are fastest, inside a machine. Its all-reduces come in the middle of each block, and this code computes nothing in the meantime. (Chunks, as in section 5, hide a part of the all-reduces.) The data dimension goes over the network, because its messages overlap with whole blocks.

# %%
assert all(0.25 < stored < 0.26 for stored in cluster.view["stored"])

# %% [markdown]
# ### Replicas of shards: HSDP
#
# You can also give a two-dimensional mesh to `fully_shard` itself. It then shards the model along the second dimension and replicates it along the first. This is *HSDP*, hybrid sharded data parallelism [4]. Ranks 0 and 1 each hold half of the model, and so do ranks 2 and 3. Every rank has its own samples.
#
# Each rank therefore belongs to two groups. Its *shard* group, say the GPUs of one machine, gathers weights and reduce-scatters gradients, as in stage 3. Its *replicate* group consists of the ranks that hold the same shard, one in each machine; after the reduce-scatter, these ranks all-reduce their part of the gradient.
#
# **Predict.** In one step, how many bytes does each rank send in its shard group, and how many in its replicate group? Count in units of n, the bytes of all parameters, and write `[shard, replicate]`.

# %%
prediction = None

# %%
# %%px
mesh_hsdp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
groups = {kind: mesh_hsdp[kind].get_group() for kind in ("shard", "replicate")}


def accumulate(model, step, micro):
    """Gradients of this rank's samples of a step, in so many micro-batches."""
    parts = [tensor.chunk(micro) for tensor in batch(step, rank, world_size)]
    for number, (images, labels) in enumerate(zip(*parts, strict=True)):
        model.set_requires_all_reduce(number == micro - 1)
        (F.cross_entropy(model(images), labels) / micro).backward()


# %%
# %%px
hsdp, plain = shard_units(new_model(), mesh_hsdp), shard_units(new_model())
one_process = new_model()
three = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (hsdp, plain, one_process)]
of_group = {}
for step, micro in enumerate((1, 2)):
    with Traffic(groups["shard"]) as in_shard, Traffic(groups["replicate"]) as in_replicate:
        accumulate(hsdp, step, micro)
    of_group[micro] = [ring_bytes(t, 2) / whole_bytes for t in (in_shard, in_replicate)]
    accumulate(plain, step, micro)
    images, labels = batch(step)
    F.cross_entropy(one_process(images), labels).backward()
    for its_optimizer in three:
        its_optimizer.step()
        its_optimizer.zero_grad()

# %%
# %%px
for sharded_model in (hsdp, plain):
    for mine, whole_one in zip(sharded_model.parameters(), one_process.parameters(), strict=True):
        close(mine.full_tensor(), whole_one.detach())

# %%
of_group = cluster.view["of_group"][0]
compare(prediction, of_group[1], source="From the counts")

# %% [markdown]
# With $p_\text{shard}$ ranks in a shard group and $p_\text{replicate}$ in a replicate group, each rank sends
#
# $$ 3 \, \frac{p_\text{shard} - 1}{p_\text{shard}} \, n \quad \text{in its shard group,} \qquad 2 \, \frac{p_\text{replicate} - 1}{p_\text{replicate}} \cdot \frac{n}{p_\text{shard}} \quad \text{in its replicate group} $$
#
# Each rank holds $n / p_\text{shard}$ bytes of parameters, half of them here, whereas with plain stage 3 it holds a quarter. After two steps HSDP, plain stage 3 and one process have the same weights. The second step used two micro-batches. Each micro-batch needs its own gathers and reduce-scatters, so the shard group sends twice as much. The replicate group works only once, after the last micro-batch, because `set_requires_all_reduce` delays it until then.

# %%
assert of_group == {1: [1.5, 0.5], 2: [3.0, 0.5]}
for micro, (shard_group, replicate_group) in of_group.items():
    print(f"micro-batches: {micro}   shard group: {shard_group} n   replicate: {replicate_group} n")

# %%
# %%px
assert 2 * local_bytes(list(hsdp.parameters())) == whole_bytes
assert set(in_shard.collectives) == {"all_gather", "reduce_scatter"}
assert set(in_replicate.collectives) == {"all_reduce"}

# %% [markdown]
# How much network traffic does HSDP save? Less than you may think. The next cell computes the traffic for a model of 8 billion parameters on 8 machines with 8 GPUs each (*assumed*), in mixed precision: gathers move 2 bytes per parameter, and reductions 4. A ring through all 64 GPUs leaves each machine at one place, so the bytes that leave a machine are those that one GPU sends. (NCCL makes several rings, for example one for each network card, and each carries a part. The sum stays the same.) With HSDP each of the 8 GPUs of a machine has its own ring, through the GPUs with the same shard in the other machines.

# %%
model_size, machines, per_machine = 8e9, 8, 8
all_gpus = machines * per_machine
flat = (2 + 2 + 4) * (all_gpus - 1) / all_gpus * model_size / 1e9
across = per_machine * 2 * (machines - 1) / machines * 4 * model_size / per_machine / 1e9
assert across < flat < 1.2 * across
print("GB                                       stage 3   HSDP")
for micro in (1, 4):
    print(f"leave each machine, micro-batches: {micro}   {micro * flat:8.0f} {across:6.0f}")
held_flat, held_hsdp = (16 * model_size / ranks / 1e9 for ranks in (all_gpus, per_machine))
print(f"held on each GPU                       {held_flat:8.0f} {held_hsdp:6.0f}")

# %% [markdown]
# With one micro-batch, nearly as many bytes leave a machine under HSDP as in stage 3 (*predicted*). What HSDP improves is where and when bytes travel. The gathers, for which a block has to wait, stay inside the machine. Only one all-reduce for each unit crosses the network, over 8 ranks instead of 64, once per step however many micro-batches there are. (Stage 3 can delay its reduce-scatter too, with `set_requires_gradient_sync`, if each rank has memory for the whole gradient.) The cost is memory: 16 GB on each GPU instead of 2. So HSDP suits a model that fits on the GPUs of one machine together.
#
# ## 9. 70 billion parameters, on paper
#
# The model is Llama 3 70B (*published* [5]). It has 80 blocks, 8,192 wide, and MLPs with three matrices and an inner width of 28,672. It has 64 query heads but only 8 heads of keys and values, each shared by eight query heads. The vocabulary of the released model has 128,256 entries (the paper rounds to 128,000), with separate input and output matrices. In all, that makes 70.55 billion parameters (a cell below adds them up). In mixed precision the weights and gradients that the layers use have 2 bytes each (bfloat16). The optimizer works in float32: its copy of the weights and Adam's two running means take 12 bytes per parameter [3].
#
# First write a function that returns how many bytes of weights, gradients and optimizer state each rank holds at a given stage, from 0 to 3. Use exact division; ignore padding.


# %% tags=["exercise"] exercise="10b.bytes_per_rank"
def bytes_per_rank(stage, parameters, ranks):
    """Return the bytes on each rank at a stage of ZeRO, in mixed precision with Adam."""
    ### BEGIN SOLUTION
    weights = 2 / ranks if stage >= 3 else 2
    gradients = 2 / ranks if stage >= 2 else 2
    optimizer = 12 / ranks if stage >= 1 else 12
    return parameters * (weights + gradients + optimizer)
    ### END SOLUTION


# %% tags=["check"]
check("10b.bytes_per_rank")

# %% [markdown]
# Stuck? `hint("10b.bytes_per_rank")`, `solution("10b.bytes_per_rank")`.
#
# **Predict.** Stage 3 stores the weights, gradients and optimizer of 70.55 billion parameters. What is the smallest number of GPUs of 80 GB (8 · 10^10 bytes) that can hold them, if nothing is left for activations?

# %%
prediction = None

# %%
import math

my_bytes = yours_or_solution("10b.bytes_per_rank")
width, inner, blocks, vocabulary = 8192, 28672, 80, 128256
attention = 2 * width * width + 2 * width * (width // 8)  # query, output; keys, values: 8 of 64
block = attention + 3 * width * inner + 2 * width  # the last: two norms
parameters = blocks * block + 2 * vocabulary * width + width
assert parameters == 70_553_706_496

least = math.ceil(16 * parameters / 80e9)
compare(prediction, least, source="By the formula")

# %%
assert my_bytes(3, parameters, least) <= 80e9 < my_bytes(3, parameters, least - 1)
gpus = [1, 4, 16, 64, 256]
stages = {f"stage {s}": [my_bytes(s, parameters, p) / 1e9 for p in gpus] for s in (0, 1, 2, 3)}
gpus_needed(gpus, stages)

# %% [markdown]
# Stages 0 to 2 never fit, whatever the number of GPUs, because the weights alone take 141 GB. Next come the activations. A block of width h keeps about 34 · s · b · h bytes for a sequence of s tokens and a batch of b sequences, if attention's s x s matrices are not kept. This holds for 16-bit numbers and the usual MLP, 4h wide (*published* [2]; Llama's block is a little different). Tensor and sequence parallelism over t ranks divide this by t, if the column layers' inputs are gathered again in the backward pass (section 5). With *activation checkpointing* (lesson 10) a block keeps only its input, 2 · s · b · h, and computes the rest again in the backward pass.
#
# Last comes the traffic of a step. All of it is *predicted*, with two rates for each GPU: 400 TFLOP/s of useful work, that is 400 · 10^12 operations per second (*assumed*), and a network of 400 Gbit/s, which is 50 GB/s (*published* [5]). Training takes 6 operations per parameter for each token: a multiplication and an addition in the forward pass, and twice as many operations in the backward pass.
#
# The factors in the cell assume 2 bytes per number. Stage 3 gathers the weights in the forward pass and again in the backward pass, and reduce-scatters the gradients; each of these three moves one number per parameter, and each rank sends $\frac{p-1}{p}$ of these numbers. Tensor parallelism sends halves of all-reduces: eight per block, or ten with sequence parallelism. In each half, each rank sends $\frac{t-1}{t}$ of one block's s · b · h numbers.

# %%
tokens, t, p = 8192, 8, 64
kept = blocks * 34 * tokens * width / 1e9
inputs_only = blocks * 2 * tokens * width / 1e9
stage_3 = 3 * (p - 1) / p * 2 * parameters / 1e9
half = (t - 1) / t * 2 * tokens * width / 1e9  # of an all-reduce
sliced, sliced_sequence = blocks * 8 * half, blocks * 10 * half
computing = 6 * parameters * tokens / 400e12
print(f"activations of one sequence of {tokens:,} tokens   {kept:6.0f} GB")
print(f"... in slices over {t} GPUs                       {kept / t:6.0f} GB")
print(f"... with checkpointing instead                  {inputs_only:6.0f} GB")
print(f"stage 3 over {p} GPUs sends from each            {stage_3:6.0f} GB   {stage_3 / 50:4.1f} s")
print(f"tensor parallelism over {t} sends from each       {sliced:6.0f} GB   {sliced / 50:4.1f} s")
further = f"{sliced_sequence:6.0f} GB   {sliced_sequence / 50:4.1f} s"
print(f"... with sequence parallelism                   {further}")
print(f"computing one sequence on one GPU                           {computing:4.1f} s")
assert kept / t < 80 < kept
assert 0.9 < (stage_3 / 50) / computing < 1.1
assert sliced / 50 > computing / t > sliced_sequence / 450

# %% [markdown]
# What do these numbers tell you? Stage 3 over 64 GPUs leaves 62 GB on each GPU for activations, which is enough for a sequence of 8,192 tokens with checkpointing. Its messages take about as long as the computation that hides them; with two sequences per step on each GPU they are well hidden.
#
# Tensor parallelism over 8 GPUs (*t*), with sequence parallelism, also divides the activations and the computation: each GPU is left with an eighth of the computation, 1.1 s. That is too little to hide the messages. Over the network they would take the time printed above, longer than the computation itself. NVLink, NVIDIA's links between the GPUs of a machine, moves 450 GB/s in each direction (900 GB/s in both together on an H100, *published* [6]); there the messages take a ninth of that time. That is why tensor parallelism stays inside the machine.
#
# ### Which parallelism when
#
# | question | choose |
# |---|---|
# | do the model and its optimizer fit on one GPU? | data parallelism: DDP; stage 1 or 2 if memory is tight |
# | do they fit on all GPUs together, and does one block fit on one GPU? | shards: FSDP2, stage 3 |
# | are sequences so long, or layers so wide, that one sample's activations do not fit? | checkpointing first; then slices, with sequence parallelism, inside one machine |
# | is the network too slow to carry a whole model's weights in each step? | stages: a pipeline between machines sends only activations |
# | do you have thousands of GPUs? | all of these: slices inside a machine, a pipeline over neighbouring machines, data parallelism over the rest; the batch size sets the limit (lesson 06) |
#
# ## Recap
#
# | | what to remember |
# |---|---|
# | columns, then rows | one all-reduce in the forward pass (g), one in the backward pass (f); each has the size of the activations |
# | attention | cut by heads |
# | sequence parallelism | norms cut by tokens; all-gather and reduce-scatter in place of f and g; as many bytes, or a quarter more if column inputs are cut as well |
# | logits | cut by the vocabulary; three numbers per token are all-reduced, and no logits are gathered |
# | asynchronous tensor parallelism | each chunk arrives while the previous one is multiplied |
# | all-reduce | reduce-scatter + all-gather, $2 \frac{p-1}{p} n$ from each rank |
# | stages 1, 2, 3 | each rank holds only a part: of the state; then of the gradients too; then of the parameters too |
# | bytes sent, with DDP = 1 | stages 1 and 2: 1 (PyTorch's stage 1: 1.5), stage 3: 1.5 |
# | bytes per parameter | 16 in mixed precision with Adam, plus the activations |
# | mixed precision | weights gathered in 2 bytes, gradients summed in 4, master weights in 4: stage 3 sends 2/3 |
# | meta device | build, shard, allocate: never more memory than the shards; fill every tensor |
# | 2 x 2 mesh | slices inside a machine, data across machines; or shards inside, replicas across (HSDP) |
#
# You can run two of these methods as scripts: `mpiexec -n 4 python scripts/tensor_parallel.py` (a mesh of data and slices) and `mpiexec -n 4 python scripts/fsdp.py`.
#
# ## References and further reading
#
# 1. M. Shoeybi, M. Patwary, R. Puri, P. LeGresley, J. Casper and B. Catanzaro, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", arXiv:1909.08053, 2019. Section 3 describes the slices, f and g.
# 2. V. A. Korthikanti, J. Casper, S. Lym, L. McAfee, M. Andersch, M. Shoeybi and B. Catanzaro, "Reducing Activation Recomputation in Large Transformer Models", *Proceedings of Machine Learning and Systems* 5, 2023, arXiv:2205.05198. Introduces sequence parallelism, and counts the bytes of activations that a block keeps.
# 3. S. Rajbhandari, J. Rasley, O. Ruwase and Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", *SC20: International Conference for High Performance Computing, Networking, Storage and Analysis*, 2020. Introduces the three stages, and counts the 16 bytes.
# 4. Y. Zhao, A. Gu and others, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", *Proceedings of the VLDB Endowment* 16(12), 2023, arXiv:2304.11277; and PyTorch, "torch.distributed.fsdp.fully_shard", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
# 5. Llama team, "The Llama 3 Herd of Models", arXiv:2407.21783, 2024. Gives the sizes of the model, and the network on which it was trained; the exact vocabulary is `vocab_size` in the released model's `config.json`.
# 6. NVIDIA, *H100 Tensor Core GPU*, specifications, [nvidia.com](https://www.nvidia.com/en-us/data-center/h100/).
# 7. PyTorch, *torchtitan*, `enable_async_tensor_parallel` in `torchtitan/distributed/compile.py`, as of August 2026, [github.com](https://github.com/pytorch/torchtitan), which sets `torch._inductor.config._micro_pipeline_tp`; the compiler's pass is `torch/_inductor/fx_passes/micro_pipeline_tp.py` in PyTorch 2.13. (Later versions of torchtitan have layers of their own for it.)
# 8. P. Micikevicius, S. Narang and others, "Mixed Precision Training", *International Conference on Learning Representations*, 2018, arXiv:1710.03740. Explains why the optimizer keeps weights in float32.
