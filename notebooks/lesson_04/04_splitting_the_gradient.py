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
# # 04 Splitting the gradient
#
# **The one idea.** The loss of a batch is a sum over its samples, and the derivative of a sum is the sum of the derivatives. So each rank can compute the gradient of its own part of the batch, and the ranks can then add these gradients up. This is not an approximation but an identity: the sum is exactly the gradient of the whole batch.
#
# **You will be able to**
# - draw a computational graph and work backwards through it by hand, as autograd does;
# - write SGD, momentum and Adam as functions of the gradient, and explain why this matters when you train on several ranks;
# - split a batch into shards of any size and combine their gradients with the right weights;
# - explain what breaks the identity (batch norm, dropout, uneven shards), measure the error, and remove it.
#
# **Prerequisites:** `all_reduce` (lesson 02), the chain rule from calculus, and some PyTorch: a model, a loss, `backward()`.
#
# **Time.** The notebook runs in about 20 s (*measured here*: 4 ranks on 2 cores). Allow 120 minutes to work through it, including its four exercises.

# %%
import torch

from course_lib.teaching import check, compare, hint, progress, solution
from rank_by_rank.lesson_04.figures import computational_graph, split_gradient

# %% [markdown]
# ## 1. Backwards through a graph, by hand
#
# Let us begin with one weight $w$ and one sample, which has an input $x$ and a target $y$, the number that the model should output. The model outputs $u = w x$. Its error is $e = u - y$, and the *loss* is $L = e^2$. How does $L$ change when $w$ changes a little? The answer is the derivative $\partial L / \partial w$, and training computes it over and over again.
#
# Take $w = 3$, $x = 2$, $y = 1$. **Forward**, step by step: $u = 6$, $e = 5$, $L = 25$. **Backward**, from the end to the beginning: at each step you know how $L$ changes with the *result* of the step. Multiply this by the step's *local derivative*, which says how the result changes with the step's *input*.
#
# **Predict.** What is $\partial L / \partial w$? Give a number.

# %%
prediction = None

# %%
w, x, y = 3.0, 2.0, 1.0

u = w * x  # forward
e = u - y
loss = e**2

d_loss = 1.0  # backward: d_e is the derivative of the loss with respect to e, and so on
d_e = d_loss * 2 * e
d_u = d_e * 1
d_w = d_u * x
print(f"loss {loss}, derivative with respect to w {d_w}")

# %%
compare(prediction, d_w)
assert (loss, d_w) == (25.0, 20.0)

# %% [markdown]
# You can check a derivative without any calculus: change $w$ a little in both directions, and divide the change in the loss by the change in $w$. For a quadratic loss this *difference quotient* is exact, and with a step of 1/1024 there is no rounding error either.


# %%
def loss_at(w):
    return (w * x - y) ** 2


h = 1 / 1024
quotient = (loss_at(w + h) - loss_at(w - h)) / (2 * h)
print(quotient)
assert quotient == d_w

# %% [markdown]
# A program can work backwards through any formula, provided that each number remembers how it was computed: from which inputs, and with which local derivatives. The record of all this is the *computational graph*.


# %%
class Node:
    """A number that remembers its inputs, and the local derivative with respect to each."""

    def __init__(self, value, name="", rule="", inputs=()):
        self.value, self.name, self.rule, self.inputs = value, name, rule, inputs
        self.gradient = 0.0

    def __mul__(self, other):
        inputs = [(self, other.value), (other, self.value)]
        return Node(self.value * other.value, rule=f"{self.name}·{other.name}", inputs=inputs)

    def __add__(self, other):
        rule = f"{self.name} + {other.name}"
        return Node(self.value + other.value, rule=rule, inputs=[(self, 1), (other, 1)])

    def __sub__(self, other):
        rule = f"{self.name} − {other.name}"
        return Node(self.value - other.value, rule=rule, inputs=[(self, 1), (other, -1)])

    def squared(self):
        return Node(self.value**2, rule=f"{self.name}²", inputs=[(self, 2 * self.value)])

    def called(self, name):
        self.name = name
        return self


# %% [markdown]
# Each operation creates a new node. `called` gives the node a name for the pictures.
#
# **Reverse mode.** Put the nodes in an order in which each comes after its inputs. Then go through them backwards. For each of its inputs, a node multiplies its gradient by the local derivative and passes the product to that input, where it is *added* to what is already there. This is all that PyTorch's autograd does, with tensors instead of numbers.


# %%
def nodes_in_order(node, found):
    """List all nodes behind this one, each after its inputs."""
    if node not in found:
        for source, _ in node.inputs:
            nodes_in_order(source, found)
        found.append(node)
    return found


def backward(output):
    nodes = nodes_in_order(output, [])
    for node in nodes:
        node.gradient = 0.0
    output.gradient = 1.0
    for node in reversed(nodes):
        for source, local_derivative in node.inputs:
            source.gradient += node.gradient * local_derivative


# %%
W, X, Y = Node(3.0, "w"), Node(2.0, "x"), Node(1.0, "y")  # as above, now as nodes
U = (W * X).called("u")
E = (U - Y).called("e")
L = E.squared().called("L")
backward(L)
computational_graph(L, title="One sample")

# %% [markdown]
# Read the picture twice. From left to right, the white cells hold the values. From right to left, the black cells hold the derivative of $L$ with respect to each node. The number on an edge is the local derivative. The number in each black cell is the one in the black cell to its right, times the number on the edge between them.

# %%
weight = torch.tensor(3.0, requires_grad=True)
((weight * 2.0 - 1.0) ** 2).backward()
print(W.gradient, weight.grad.item())
assert W.gradient == weight.grad.item() == d_w

# %% [markdown]
# ## 2. Two samples, one weight
#
# Now take two samples: $(x_1, y_1) = (2, 1)$ as before and $(x_2, y_2) = (1, 5)$. The loss of the two together is the sum, $L = L_1 + L_2$.
#
# **Predict.** For the first sample, the derivative with respect to $w$ was 20. Work it out for the second sample. What is $\partial L / \partial w$ for both together? Give a number.

# %%
prediction = None


# %%
def loss_of_sample(w, x, y, index):
    x, y = Node(x, f"x{index}"), Node(y, f"y{index}")
    u = (w * x).called(f"u{index}")
    e = (u - y).called(f"e{index}")
    return e.squared().called(f"L{index}")


shared = Node(3.0, "w")
both = (loss_of_sample(shared, 2.0, 1.0, "₁") + loss_of_sample(shared, 1.0, 5.0, "₂")).called("L")
backward(both)

# %%
compare(prediction, shared.gradient)
assert shared.gradient == 16.0

# %%
on_rank = {f"{letter}{index}": rank for rank, index in enumerate("₁₂") for letter in "xyueL"}
computational_graph(both, ranks=on_rank, title="Two samples, one weight")

# %% [markdown]
# Two edges leave $w$, one for each sample. The backward pass adds up what returns along them: $10 \cdot 2 = 20$ from above and $-4 \cdot 1 = -4$ from below, which makes 16.
#
# Now look at the colours. **The two halves of the picture touch only at their ends**: at $w$, of which each rank can have a copy, and in the last sum. Nothing in the upper half needs anything from the lower half. Give the upper half to rank 0 and the lower half to rank 1. Let each do its own forward and backward pass. Then add up the two numbers that arrive at $w$. That is data parallelism, and the rest of this lesson is about doing it right.

# %%
halves = []
for sample in [(2.0, 1.0), (1.0, 5.0)]:  # rank 0's x and y, rank 1's x and y
    own_copy_of_w = Node(3.0, "w")
    backward(loss_of_sample(own_copy_of_w, *sample, ""))
    halves.append(own_copy_of_w.gradient)
print(halves, "add up to", sum(halves))
assert sum(halves) == shared.gradient

# %% [markdown]
# ### Exercise 1: backward by hand
#
# Here is a loss with a *ReLU*, which computes $\max(u, 0)$, and a penalty on large weights:
#
# $$u = w x + b, \qquad h = \max(u, 0), \qquad e = h - y, \qquad L = e^2 + w^2.$$
#
# Write `gradients(w, b, x, y)`. It returns three numbers, $L$, $\partial L / \partial w$ and $\partial L / \partial b$, computed step by step without autograd. Draw the graph on paper first. How many edges leave $w$? (A ReLU has no derivative at $u = 0$, so the check leaves that point out.)


# %% tags=["exercise"] exercise="04.gradients"
def gradients(w, b, x, y):
    """Return the loss, and its derivatives with respect to w and to b."""
    ### BEGIN SOLUTION
    u = w * x + b
    h = max(u, 0)
    e = h - y
    d_u = 2 * e if u > 0 else 0
    return e**2 + w**2, d_u * x + 2 * w, d_u
    ### END SOLUTION


# %% tags=["check"]
check("04.gradients")

# %% [markdown]
# Stuck? `hint("04.gradients")` gives one hint at a time, and `solution("04.gradients")` shows a worked solution. No later cell needs your function.
#
# ## 3. What an optimizer does with a gradient
#
# A network has many weights. Together they form the vector $\theta$, and their derivatives form the *gradient* $g$, a vector of the same length. An *optimizer* turns $g$ into a step. Here are three well-known ones, with the learning rate $\lambda$:
#
# - **SGD** (stochastic gradient descent) [1]: $\theta \leftarrow \theta - \lambda g$.
# - **Momentum** [2]: a velocity $v \leftarrow \mu v + g$ adds up past gradients, each of which counts $\mu$ times as much as the next one. Then $\theta \leftarrow \theta - \lambda v$.
# - **Adam** [3] maintains running means of the gradient, $m \leftarrow \beta_1 m + (1 - \beta_1) g$, and of its square, $s \leftarrow \beta_2 s + (1 - \beta_2) g^2$. Both start at zero; correcting for that gives $\hat m$ and $\hat s$. The update is $\theta \leftarrow \theta - \lambda\, \hat m / (\sqrt{\hat s} + \varepsilon)$, in which the small number $\varepsilon$ prevents division by zero.


# %%
def sgd(theta, g, state, rate):
    return theta - rate * g


def momentum(theta, g, state, rate, mu=0.9):
    state["v"] = mu * state.get("v", torch.zeros_like(g)) + g
    return theta - rate * state["v"]


def adam(theta, g, state, rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
    state["t"] = t = state.get("t", 0) + 1  # the number of this step
    state["m"] = beta1 * state.get("m", torch.zeros_like(g)) + (1 - beta1) * g
    state["s"] = beta2 * state.get("s", torch.zeros_like(g)) + (1 - beta2) * g**2
    m, s = state["m"] / (1 - beta1**t), state["s"] / (1 - beta2**t)
    return theta - rate * m / (s.sqrt() + epsilon)


# %% [markdown]
# Do these three functions compute the same as PyTorch's versions? Each takes 50 steps alongside its counterpart from `torch.optim`, in float64, with the same gradients. We allow a relative difference of $10^{-13}$: a rounding error in float64 is at most $1.1 \cdot 10^{-16}$ of the rounded number, and each step adds fewer than ten such errors to a weight. The two versions do not agree to the last bit, because PyTorch's kernels multiply and add in one operation, and so round once where our functions round twice.


# %% tags=["nbval-ignore-output"]
def largest_difference(ours, theirs, steps=50):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(1000, generator=generator, dtype=torch.float64)
    parameter = torch.nn.Parameter(theta.clone())
    optimizer, state = theirs([parameter], lr=0.1), {}
    for _ in range(steps):
        g = torch.randn(1000, generator=generator, dtype=torch.float64)
        theta = ours(theta, g, state, rate=0.1)
        parameter.grad = g
        optimizer.step()
    return ((theta - parameter).abs().max() / theta.abs().max()).item()


def sgd_with_momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


pairs = [(sgd, torch.optim.SGD), (momentum, sgd_with_momentum), (adam, torch.optim.Adam)]
for ours, theirs in pairs:
    difference = largest_difference(ours, theirs)
    print(f"{ours.__name__:8} differs from torch.optim by {difference:.1e}")
    assert difference < 1e-13

# %% [markdown]
# Now read the three functions once more, as someone who wants to spread training over several ranks. What goes in? Only the old weights, the gradient and the optimizer's own state. The data and the model do not go in, and it does not matter where the gradient came from. So **if all ranks hold the same weights and the same state, and are given the same gradient, they hold the same weights and the same state afterwards**, whichever optimizer they use. The ranks only ever have to agree on the gradient. Lesson 05 builds on this fact.
#
# ## 4. The same for a network and many samples
#
# Let $D$ be the batch, $\ell(\theta; x, y)$ the loss of one sample, and $\lambda$ the learning rate. One step of SGD on the sum of the losses is
#
# $$\theta_{\text{new}} = \theta_{\text{old}} - \lambda\, \nabla_\theta \sum_{(x, y) \in D} \ell(\theta_{\text{old}}; x, y).$$
#
# Split the batch into $R$ *shards*, $D = D_0 \cup D_1 \cup \dots \cup D_{R-1}$, so that every sample is in exactly one of them. Then
#
# $$\nabla_\theta \sum_{D} \ell = \nabla_\theta \Big( \sum_{D_0} \ell + \dots + \sum_{D_{R-1}} \ell \Big) = \underbrace{\nabla_\theta \sum_{D_0} \ell}_{g_0} + \dots + \underbrace{\nabla_\theta \sum_{D_{R-1}} \ell}_{g_{R-1}}.$$
#
# The second equals sign is the rule for the derivative of a sum, and that is the whole theory. Rank $r$ computes $g_r$ from its own shard, and an all-reduce adds up the $g_r$.

# %%
split_gradient([1, 2, 3, 4], title="A batch of ten samples on four ranks")

# %% [markdown]
# Does this hold down to the last digits, for a real network and real data? We take the handwritten digits of lesson 00 and a network with one hidden layer, in float64. `flat_gradient` returns the gradient as one long vector. `distance` returns the largest difference between corresponding entries of two vectors, relative to the largest entry of the second.

# %% tags=["nbval-ignore-output"]
from course_lib.cluster import start_cluster

cluster = start_cluster(n=4, init_process_group=True)

# %%
# %%px --local
import torch
import torch.nn.functional as F

from course_lib.training import data
from course_lib.training.models import MLP


def flat_gradient(model, images, labels, reduction="sum"):
    loss = F.cross_entropy(model(images), labels, reduction=reduction)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def distance(one, other):
    return ((one - other).abs().max() / other.abs().max()).item()


torch.manual_seed(4)
model = MLP(64, (32,)).double()
training, test = data.load("digits")
training = data.DataSet(training.images.double(), training.labels)

# %% [markdown]
# First we try it in this notebook alone. For $R$ from 1 to 8, we split the 1,437 samples in two ways: as evenly as possible, and very unevenly, in the proportions 1 : 2 : 3 and so on.
#
# **Predict.** By how much will the sum of the shards' gradients differ from the gradient of all samples at once, relative to the largest entry of the latter: about (A) $10^{-3}$, (B) $10^{-7}$ or (C) $10^{-15}$? Give a letter, such as `"A"`.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
N = len(training)
everything = flat_gradient(model, *training[:])
largest = 0.0
for R in range(1, 9):
    even = [N // R + (r < N % R) for r in range(R)]
    uneven = [2 * N * (r + 1) // (R * (R + 1)) for r in range(R)]
    uneven[-1] += N - sum(uneven)
    for sizes in even, uneven:
        assert sum(sizes) == N
        shards = zip(training.images.split(sizes), training.labels.split(sizes), strict=True)
        difference = distance(sum(flat_gradient(model, *shard) for shard in shards), everything)
        largest = max(largest, difference)
        print(f"R = {R}, {difference:.1e}, shards of {sizes}")

# %%
compare(prediction, "C" if largest < 1e-11 else "B" if largest < 1e-5 else "A")
assert largest < 1e-12

# %% [markdown]
# The two are equal except for float64 rounding, whatever the shard sizes. Why not exactly equal? Every sum is rounded, so the order of the additions affects the last digits (lesson 02).
#
# The bound of $10^{-12}$ is not arbitrary. Each of the 1,437 additions has a relative error of at most $1.1 \cdot 10^{-16}$. If all errors have the same sign, they come to $1.6 \cdot 10^{-13}$ *of the sum of the magnitudes*. But the samples' gradients differ in sign and partly cancel. The sum is then smaller, and the same error is a larger part of it. There are sums inside the network, too. The bound leaves a factor of six for both effects.
#
# Now let us try real ranks. Their shards are roughly in the proportions 1 : 2 : 3 : 4, and each rank uses only its own shard. One `all_reduce` adds up the gradients.

# %%
# %%px
sizes = [143, 287, 431, 576]
begin = sum(sizes[:rank])
mine = training[begin : begin + sizes[rank]]
own = flat_gradient(model, *mine)

total = own.clone()
dist.all_reduce(total)

everything = flat_gradient(model, *training[:])  # only to compare with
equal = distance(total, everything) < 1e-12
print(f"{len(mine[1])} samples; the sum is that of everything at once: {equal}")
assert sum(sizes) == len(training)
assert equal
assert distance(own, everything) > 0.1, "no shard alone gives the gradient of everything"

# %% [markdown]
# All ranks also got the same bits, so they will all take the same step. This matters more than agreement to twelve digits: nothing compares the replicas during training, so a difference persists and may grow with every step. `assert_replicas_equal` compares the tensors of all ranks bit for bit, and raises an error on *every* rank if they differ.

# %%
# %%px
from course_lib.parallel.invariants import assert_replicas_equal

assert_replicas_equal({"gradient": total})

# %% [markdown]
# ## 5. Sum or mean?
#
# In practice, a loss is not the sum over the batch but the *mean*: `F.cross_entropy` divides by the number of samples unless told otherwise. The length of the gradient, and hence of the step, then hardly depends on the batch size. But combining shards now needs care. Let $n_r$ be the number of samples in $D_r$, and $N$ the total number. Let $\bar g_r = g_r / n_r$ be the gradient of rank $r$'s mean loss. Then
#
# $$\bar g = \frac{1}{N} \sum_{r} g_r = \sum_{r} \frac{n_r}{N}\, \bar g_r.$$
#
# **Each rank's mean must be weighted by its share of the samples.** If all shards have the same size, the weights are all $1/R$, and the mean of the means is right. Otherwise it is not.
#
# **Predict.** The shards have 143, 287, 431 and 576 samples. Someone takes the plain mean of the four means. By what factor is the weight of each sample on rank 0 then too large? Give a number.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
sizes = cluster.view["sizes"][0]
weights = [1 / len(sizes) / size for size in sizes]  # of one sample, on each rank
compare(prediction, weights[0] * N, within=0.05, source="By the formula")

# %% [markdown]
# The factor is about two and a half: a quarter of the total weight goes to a tenth of the samples. Here are four recipes that people use. Which of them give the gradient of the mean loss?

# %%
# %%px
mean_of_everything = flat_gradient(model, *training[:], reduction="mean")
own_mean = flat_gradient(model, *mine, reduction="mean")
n, N, R = len(mine[1]), len(training), world_size
recipes = {
    "sum of sums": own,
    "sum of means": own_mean,
    "mean of means": own_mean / R,
    "weighted mean of means": own_mean * n / N,
}
errors, lengths = {}, {}
for name, contribution in recipes.items():
    together = contribution.clone()
    dist.all_reduce(together)
    errors[name] = distance(together, mean_of_everything)
    lengths[name] = (together.norm() / mean_of_everything.norm()).item()

# %% tags=["nbval-ignore-output"]
lengths, errors = cluster.view["lengths"][0], cluster.view["errors"][0]
for name in "sum of sums", "sum of means", "mean of means", "weighted mean of means":
    print(f"{name:22}  length {lengths[name]:8.3f}  relative error {errors[name]:.1e}")
assert errors["weighted mean of means"] < 1e-12
assert abs(lengths["sum of sums"] - 1437) < 1e-6
assert 3 < lengths["sum of means"] < 5
assert 0.001 < errors["mean of means"] < 0.5

# %% [markdown]
# *Length* is the norm of the vector, as a multiple of the correct norm.
#
# - The **sum of sums** points the right way but is $N$ times too long. That is harmless if you allow for it: SGD with the sum and the rate $\lambda / N$ takes the same step as SGD with the mean and the rate $\lambda$.
# - The **sum of means** is what you get from an `all_reduce` if you forget to divide. It is about $R$ times too long, so training behaves as if the learning rate were $R$ times as high. Nothing crashes; with a low learning rate, the network even learns faster for a while.
# - The **mean of means** has nearly the right length but is still wrong, by several per cent here. This is the worst of the four: the network trains, but towards a slightly different goal.
#
# How much the length of the gradient matters depends on the optimizer.
#
# **Predict.** Someone forgets to divide, so every gradient is 4 times too long. How many times as far do the weights move in the first ten steps with SGD, and how many times as far with Adam? Give a list of two numbers.

# %%
prediction = None


# %%
def distance_moved(optimizer, factor):
    """How far the weights get in ten steps, with gradients ``factor`` times too long."""
    generator = torch.Generator().manual_seed(1)
    theta, state = torch.zeros(1000, dtype=torch.float64), {}
    for _ in range(10):
        g = torch.randn(1000, generator=generator, dtype=torch.float64)
        theta = optimizer(theta, factor * g, state, rate=0.01)
    return theta.norm().item()


moved = [[distance_moved(optimizer, factor) for factor in (1, 4)] for optimizer in (sgd, adam)]

# %%
ratios = [round(too_far / right, 3) for right, too_far in moved]
compare(prediction, ratios, within=0.01)
assert ratios == [4.0, 1.0]

# %% [markdown]
# Adam divides by the typical magnitude of the gradients, so a constant factor cancels. With Adam you do not notice that the division is missing. The mistake shows only when you change to SGD, clip gradients, or add weight decay to the loss.
#
# ### Exercise 2: the mean over uneven shards
#
# Write `mean_gradient(gradient, samples, group)`. On each rank, `gradient` is a float64 vector, the gradient of the *mean* loss over that rank's shard, and `samples` is the number of samples in the shard. On every rank, return the gradient of the mean loss over all samples in the group. You may use only **one** all-reduce. No rank knows in advance how many samples the others have.


# %% tags=["exercise"] exercise="04.mean_gradient"
# %%px
def mean_gradient(gradient, samples, group):
    """Return the gradient of the mean loss over all ranks' samples, on every rank."""
    ### BEGIN SOLUTION
    flat = torch.cat([gradient * samples, gradient.new_tensor([samples])])
    dist.all_reduce(flat, group=group)
    return flat[:-1] / flat[-1]
    ### END SOLUTION


# %% tags=["check"]
check("04.mean_gradient")

# %% [markdown]
# Stuck? `hint("04.mean_gradient")`, `solution("04.mean_gradient")`.
#
# ### Exercise 3: one rank, one piece after the other
#
# The identity does not depend on *where* the shards are processed. One process can take them one after another, which lets it train with batches that do not fit in its memory. This is *gradient accumulation*.
#
# Write `accumulate_gradient(model, loss_function, images, labels, most)`. When it returns, the `grad` of each parameter must hold the gradient of the mean loss over the whole batch. Never give the model more than `most` samples at once. `loss_function(outputs, labels)` returns the mean loss over the samples that you pass. When your function is called, `parameter.grad` may still hold gradients from an earlier step.


# %% tags=["exercise"] exercise="04.accumulate_gradient"
def accumulate_gradient(model, loss_function, images, labels, most):
    """Leave the gradient of the mean loss over the whole batch in the parameters' grad."""
    ### BEGIN SOLUTION
    model.zero_grad()
    for x, y in zip(images.split(most), labels.split(most), strict=True):
        loss = loss_function(model(x), y) * len(x) / len(images)
        loss.backward()
    ### END SOLUTION


# %% tags=["check"]
check("04.accumulate_gradient")

# %% [markdown]
# Stuck? `hint("04.accumulate_gradient")`, `solution("04.accumulate_gradient")`.
#
# ### Exercise 4: clipping
#
# *Clipping* by the norm keeps a step from becoming too long. If the gradient's norm $\lVert g \rVert$ is above a limit $c$, then $g \, c / \lVert g \rVert$ replaces $g$ [4]. In one process, `torch.nn.utils.clip_grad_norm_` does this. Clipping is not a sum over samples, so it cannot be split as freely as the gradient.
#
# Write `clipped_mean(gradient, largest, group)`. Here `gradient` is the gradient of this rank's mean loss, and all shards have the same size. On every rank, return the gradient that one process with the whole batch would have after clipping to the norm `largest`. Again, use only one all-reduce.


# %% tags=["exercise"] exercise="04.clipped_mean"
# %%px
def clipped_mean(gradient, largest, group):
    """Return the ranks' mean gradient, shortened if its norm is above ``largest``."""
    ### BEGIN SOLUTION
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    norm = mean.norm()
    return mean * largest / norm if norm > largest else mean
    ### END SOLUTION


# %% tags=["check"]
check("04.clipped_mean")

# %% [markdown]
# Stuck? `hint("04.clipped_mean")`, `solution("04.clipped_mean")`.
#
# ## 6. What breaks the identity
#
# The proof used one property: **the loss is a sum of terms, and each term depends on one sample only**. In the graph of section 2, the two halves touched only at their ends. If an operation in the middle looks at *several* samples, edges run from one half to the other, and cutting them changes the result. Batch norm is the best-known example.
#
# ### Batch norm
#
# Batch normalisation [5] replaces each activation $a$ with $(a - \bar a) / \sqrt{\sigma^2 + \varepsilon}$, where $\bar a$ and $\sigma^2$ are the mean and the variance of that activation *over the batch*. On several ranks, each rank normalises over its own shard, with a different mean and a different variance. So the ranks compute a different function from that of one process.
#
# **Predict.** A batch has 40 samples, 10 for each of four ranks, all weighted correctly. How large is the relative error of the gradient: (A) below $10^{-12}$, (B) about 0.01, or (C) more than 0.1? Give a letter.

# %%
prediction = None

# %%
# %%px
from torch import nn

torch.manual_seed(5)
normed = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
).double()
batch = training[:40]
shard = training[10 * rank : 10 * (rank + 1)]


def error_on_ranks(model):
    """Relative error of the ranks' mean gradient: shards on the ranks, against all in one."""
    whole = flat_gradient(normed, *batch, reduction="mean")
    mean = flat_gradient(model, *shard) / len(batch[1])
    dist.all_reduce(mean)
    return distance(mean, whole)


batch_norm_error = error_on_ranks(normed)

# %% tags=["nbval-ignore-output"]
batch_norm_error = cluster.view["batch_norm_error"][0]
compare(prediction, "A" if batch_norm_error < 1e-12 else "B" if batch_norm_error < 0.1 else "C")
print(f"relative error {batch_norm_error:.2f}")
assert batch_norm_error > 0.05

# %% [markdown]
# This is not a rounding error: the result is the gradient of a different function. The smaller the shards, the more their means and variances vary, and the larger the error.
#
# To repair this, let the ranks agree on the mean and the variance *in the middle of the forward pass*. Both follow from three sums over the samples, which an all-reduce can compute: the sum of $a$, the sum of $a^2$, and the count. But now a message is part of the graph, so the backward pass has to go through it. Let $t = a_0 + \dots + a_{R-1}$ be the all-reduced sum. Each rank's loss depends on $t$. By the rule "add up what returns along all edges", the derivative of the total loss with respect to $a_r$ is the sum of all ranks' derivatives with respect to $t$: **the backward of an all-reduce is an all-reduce**.


# %%
# %%px
class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, numbers):
        total = numbers.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def batch_norm_over_ranks(a, epsilon=1e-5):
    own = torch.stack([a.sum(0), (a * a).sum(0), torch.full_like(a[0], len(a))])
    total, squares, count = SumOverRanks.apply(own)
    mean = total / count
    variance = squares / count - mean**2
    return (a - mean) / torch.sqrt(variance + epsilon)


# %% [markdown]
# Is this the batch norm over the whole batch? This time the shards are uneven, with 4, 8, 12 and 16 rows. Forward *and* backward must agree with `F.batch_norm` on all 40 rows, to within $10^{-12}$.

# %%
# %%px
torch.manual_seed(6)
rows, weights = torch.randn(40, 3, dtype=torch.float64), torch.randn(40, 3, dtype=torch.float64)
own_rows = slice(2 * rank * (rank + 1), 2 * (rank + 1) * (rank + 2))

whole = rows.clone().requires_grad_()
expected = F.batch_norm(whole, None, None, training=True)
(expected**3 * weights).sum().backward()

part = rows[own_rows].clone().requires_grad_()
normalised = batch_norm_over_ranks(part)
(normalised**3 * weights[own_rows]).sum().backward()

assert distance(normalised, expected[own_rows]) < 1e-12
assert distance(part.grad, whole.grad[own_rows]) < 1e-12
print(f"{len(part)} rows: forward and backward as with all 40 in one process")

# %% [markdown]
# PyTorch provides this as `torch.nn.SyncBatchNorm`, for GPUs only. The course's `SyncBatchNorm` does the same on CPUs as well, and `convert_sync_batch_norm` replaces every batch norm in a model with it. (It combines means and squared *deviations* instead of plain squares. Our line for `variance` subtracts two large numbers, which loses digits in float32.)

# %%
# %%px
import copy

from course_lib.parallel.batch_norm import convert_sync_batch_norm

synced = convert_sync_batch_norm(copy.deepcopy(normed))
repaired_error = error_on_ranks(synced)
print("repaired to rounding error:", repaired_error < 1e-12)
assert repaired_error < 1e-12

# %% [markdown]
# The repair is not free: each batch norm needs two all-reduces in every step, one forward and one backward, and every rank has to wait for them. So when every rank has 32 samples or more, people often leave batch norm local, *knowing* that the function is slightly different. Goyal and others normalise over the 32 samples of each worker [6]. Other kinds of norm (layer, group, instance) look at one sample at a time and need no repair.
#
# ### Dropout
#
# Dropout [7] sets a random half of the activations to zero. It looks at one sample at a time, but it draws *random numbers*: one mask for each sample. The gradient depends on the masks. The ranks reproduce the result of one process only if every sample gets the same mask as in that process.
#
# There are two obvious ways to seed the ranks, and neither reproduces one process. If all ranks have the same seed, every rank draws the *same* masks, so the first samples of all shards share a mask. If each rank has its own seed, the masks are independent, as they should be, but they are not the masks of one process.

# %%
# %%px
first, last = nn.Linear(64, 32).double(), nn.Linear(32, 10).double()
for layer in (first, last):  # the same weights on every rank
    nn.init.normal_(layer.weight, std=0.2, generator=torch.Generator().manual_seed(7))
    nn.init.zeros_(layer.bias)


def gradient_with_mask(images, labels, mask):
    hidden = torch.relu(first(images.flatten(1))) * mask * 2  # times 2, as half of it is gone
    loss = F.cross_entropy(last(hidden), labels, reduction="sum") / 40
    return torch.autograd.grad(loss, first.weight)[0].flatten()


def draw_mask(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(samples, 32, generator=generator) < 0.5).double()


# %% [markdown]
# A third way is to draw the masks for the *whole* batch on every rank, and keep only the rank's own rows.

# %%
# %%px
in_one_process = gradient_with_mask(*batch, draw_mask(40, seed=0))
masks = {
    "seeded alike": draw_mask(10, seed=0),
    "seeded by rank": draw_mask(10, seed=rank),
    "own rows of one mask": draw_mask(40, seed=0)[10 * rank : 10 * (rank + 1)],
}
dropout_errors = {}
for name, mask in masks.items():
    together = gradient_with_mask(*shard, mask)
    dist.all_reduce(together)
    dropout_errors[name] = distance(together, in_one_process)
assert dropout_errors["own rows of one mask"] < 1e-12
assert min(dropout_errors["seeded alike"], dropout_errors["seeded by rank"]) > 0.05

# %% tags=["nbval-ignore-output"]
for name in "seeded alike", "seeded by rank", "own rows of one mask":
    print(f"{name:21} relative error {cluster.view['dropout_errors'][0][name]:.1e}")

# %% [markdown]
# So dropout itself does not break the identity; different *masks* do. Training does not need the masks of one process, because independent masks are as good as any others. So use a different seed on each rank. When you want to *prove* that R ranks equal one process, switch dropout off, or give every sample the mask that it has in one process.
#
# ### Uneven shards
#
# You measured the effect of uneven shards in section 5. It appears whenever the number of samples is not a multiple of the number of ranks, as at the end of an epoch. It also appears when the mean is taken over something other than samples. A language model's loss is a mean over *words*, and sentences differ in length. If ranks have equal numbers of sentences but unequal numbers of words, the mean of the ranks' means is wrong, although the shards look even.
#
# | what breaks it | symptom | diagnosis | fix |
# |---|---|---|---|
# | batch norm | accuracy differs from that of one process, more so with small shards; the *running statistics* (averages of mean and variance, kept for `eval()`) differ between ranks | compare the gradient with that of one process, in float64: the error is far above rounding | use `SyncBatchNorm` or a norm over one sample; or, with large shards, accept the error |
# | dropout | two runs with different R never agree | the error disappears in `eval()` mode | independent masks on each rank; for a proof, the masks of one process |
# | uneven shards | a bias of a few per cent, at the end of an epoch or all the time | print, on each rank, the number of items in its mean | all-reduce sums and counts, divide once |
# | clipping before the sum | steps are too short when the ranks' gradients differ | compare the norms before and after the all-reduce | average, then clip |
# | losses that compare samples, such as *contrastive* ones (similar samples close together, others apart) | pairs across shards are missing | count the pairs | gather the *embeddings* (the vectors that are compared), with their gradients |
#
# ## Recap
#
# | | one process | R ranks |
# |---|---|---|
# | batch | $D$, $N$ samples | $D_r$, $n_r$ samples each, every sample on one rank |
# | sum of losses | $g = \nabla \sum_D \ell$ | $g = \sum_r g_r$: all-reduce |
# | mean of losses | $\bar g = g / N$ | $\bar g = \sum_r (n_r / N)\, \bar g_r$; the plain mean if all $n_r$ are equal |
# | step | $\theta - \lambda g$, momentum, Adam: functions of weights, gradient, state | the same on every rank, so the same result |
# | exactness | – | only rounding errors: below $10^{-12}$ in float64 |
#
# - The backward pass adds up what returns along all the edges. This is why the gradient of many samples is a sum, and why the backward of an all-reduce is an all-reduce.
# - All that the optimizer sees of the data is the gradient. Ranks that start equal and agree on every gradient stay equal.
# - Weight each rank's mean by its number of samples. A mean of means is right only for equal shards.
# - An operation that looks at several samples breaks the identity, unless the ranks communicate in the middle of it.
#
# **Next:** lesson 05 puts the identity into a training loop, and proves that four ranks train the network that one process would have trained.
#
# ## References and further reading
#
# 1. H. Robbins and S. Monro, "A Stochastic Approximation Method", *The Annals of Mathematical Statistics* 22(3), 400–407, 1951.
# 2. B. T. Polyak, "Some methods of speeding up the convergence of iteration methods", *USSR Computational Mathematics and Mathematical Physics* 4(5), 1–17, 1964.
# 3. D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", *International Conference on Learning Representations*, 2015, arXiv:1412.6980.
# 4. R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural networks", *Proceedings of the 30th International Conference on Machine Learning*, PMLR 28(3), 1310–1318, 2013.
# 5. S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift", *Proceedings of the 32nd International Conference on Machine Learning*, PMLR 37, 448–456, 2015.
# 6. P. Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv:1706.02677, 2017. Section 2.3 is about batch normalisation, section 3 about "subtleties and pitfalls of distributed SGD", among them the factor between a sum and a mean.
# 7. N. Srivastava, G. Hinton, A. Krizhevsky, I. Sutskever and R. Salakhutdinov, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", *Journal of Machine Learning Research* 15, 1929–1958, 2014.
# 8. A. Griewank and A. Walther, *Evaluating Derivatives: Principles and Techniques of Algorithmic Differentiation*, 2nd edition, SIAM, 2008: the origins and the cost of reverse mode.
# 9. A. G. Baydin, B. A. Pearlmutter, A. A. Radul and J. M. Siskind, "Automatic Differentiation in Machine Learning: a Survey", *Journal of Machine Learning Research* 18(153), 1–43, 2018.
