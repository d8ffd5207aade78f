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
# # 10c Long sequences and experts
#
# **The one idea.** Attention is the only place in a transformer where tokens meet, and it can be computed part by part. This lets you split a long sequence across ranks: queries stay on their rank, while keys and values travel. Everywhere else each token is processed on its own, so the tokens themselves can travel: in a mixture of experts the weights stay, and each token goes to the ranks that hold the weights it needs.
#
# **You will be able to**
# - say what grows with the length of a sequence, and how much a rank must hold for a million tokens;
# - merge partial softmaxes exactly, and build ring attention on this, forward and backward;
# - balance the work between ranks under a causal mask;
# - turn slices of a sequence into slices of the heads (Ulysses), and choose between Ulysses and the ring by the bytes that they send;
# - send tokens to experts and back, measure imbalance, count dropped tokens, and average each gradient over the right ranks.
#
# **Prerequisites:** lesson 10b (attention, sequence parallelism, meshes) and the all-to-all from lesson 02.
#
# **Time.** The notebook runs in about 25 s (*measured here*: 4 ranks on 2 cores). Allow 150 minutes for reading it and solving its five exercises; the end of section 6 is a good place for a break.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, hint, solution, yours_or_solution
from rank_by_rank.lesson_10c.figures import (
    causal_work,
    expert_loads,
    ring_of_keys,
    tokens_to_experts,
)

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %%
# %%px
import re
import time
from datetime import timedelta

import torch_mpi4py  # lets torch.distributed talk through MPI
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch_mpi4py import Traffic

from course_lib.parallel.invariants import assert_replicas_equal
from course_lib.teaching import yours_or_solution
from course_lib.training import data

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


# %% [markdown]
# All numbers are float64, as in lesson 10b, so a tolerance of $10^{-12}$ separates rounding errors from mistakes.
#
# ## 1. What grows with the sequence
#
# A transformer block represents each of a sequence's $s$ tokens by $h$ numbers. Most of what the block keeps for backward is proportional to $s \cdot h$: about $34 \cdot s \cdot h$ bytes with 16-bit numbers (lesson 10b, section 9). Attention's *scores* grow faster. A score says how well one query matches one key, so every head has an $s \times s$ matrix of scores.
#
# **Predict.** At 2 bytes per number, how many terabytes ($10^{12}$ bytes) do the scores of one head in one block occupy for a million tokens ($2^{20}$)?

# %%
prediction = None

# %%
million = 2**20
compare(prediction, 2 * million**2 / 1e12, within=0.1, unit="TB", source="By the formula")

# %% [markdown]
# And that is only one of 64 heads, in one of 80 blocks. For long sequences the scores are therefore never stored: *FlashAttention* [1] computes them tile by tile in the GPU's fast memory, discards them, and computes them again in backward. (`F.scaled_dot_product_attention` does this where it can.) A softmax needs all the scores, but it does not need them all at once; section 2 shows why.
#
# The next cell takes the 70-billion-parameter model of lesson 10b (80 blocks of width 8,192) with 16-bit numbers. It computes how much the model still keeps for backward if it stores no scores, and how many operations forward takes. The weights need 2 operations per parameter and token. In each block, attention needs $4h$ operations for each pair of a query and a key: $2h$ for the scores of all heads, and $2h$ for the weighted sum of the values. A causal mask (section 4) halves the number of pairs.

# %%
width, blocks, parameters = 8192, 80, 70_553_706_496
print("tokens       kept for backward    with checkpointing    operations: weights   attention")
for tokens in (8192, million):
    kept, inputs_only = (n * tokens * width * blocks / 1e12 for n in (34, 2))
    weights, attention = 2 * parameters * tokens, 4 * tokens**2 / 2 * width * blocks
    row = f"{tokens:9,} {kept:17.3f} TB {inputs_only:18.3f} TB"
    print(f"{row} {weights:22.1e} {attention:11.1e}")
assert weights < attention
assert 107_000 < parameters / (width * blocks) < 108_000

# %% [markdown]
# At 8,192 tokens attention is a small part of the work, and checkpointing (lesson 10) solves the memory problem. At a million tokens the blocks' inputs alone take 1.37 TB for one sequence. Data parallelism cannot help, because it gives each rank whole sequences. Tensor and sequence parallelism inside a machine are not enough either: on 8 ranks, each still holds 172 GB. You have to split the sequence itself across so many ranks that each holds only ten or twenty thousand tokens. On 64 ranks, each then holds 21 GB of the 1.37 TB. This is called *context parallelism*. Norms and MLPs need no change, because they process one token at a time. Only attention has to be rewritten.
#
# The last two columns are equal at $s = 2 \cdot 70.55 \cdot 10^9 / (2 \cdot 8192 \cdot 80) \approx 108{,}000$. In longer sequences attention is most of the work, so the speed depends on how the ranks share it.

# %% [markdown]
# ## 2. Softmax in parts
#
# Take one query. Let $x_i$ be its score for key $i$, and $v_i$ the value of that key. Attention computes
#
# $$ y = \frac{\sum_i e^{x_i} v_i}{\sum_i e^{x_i}} $$
#
# **Predict.** All scores are equal. The first part of the keys is a single key with value 10. The second part has three keys, each with value 2. On their own, the parts give the outputs 10 and 2. What is the output of both parts together?

# %%
prediction = None

# %%
import torch

scores, values = torch.zeros(4), torch.tensor([10.0, 2.0, 2.0, 2.0])
together = float(torch.softmax(scores, 0) @ values)
compare(prediction, together)

# %% [markdown]
# You cannot average outputs, but you can add up numerators and denominators. There is one obstacle: $e^{x}$ overflows, in float32 as early as $x = 89$. Softmax therefore subtracts the largest score $m$ first, which changes numerator and denominator by the same factor. Each part of the keys has its own largest score, so each part supplies three quantities:
#
# $$ m = \max_i x_i, \qquad \ell = \sum_i e^{x_i - m}, \qquad w = \sum_i e^{x_i - m} v_i, \qquad \text{and } y = w / \ell $$
#
# As soon as two parts refer to the same $m$, they can be merged exactly [2].
#
# ### Your turn: merge two parts
#
# Write `merge(one, other)`. Each argument is a tuple of three tensors `(m, total, weighted)`, which contain $m$, $\ell$ and $w$. The first two have the shape (..., queries). The third has the shape (..., queries, d), because each value is a vector of d numbers. Return the same three tensors for both parts together, in the same dtype. No exponential may overflow. If a query sees no key of a part, that part's $m$ for this query is minus infinity, and its $\ell$ and $w$ are 0; this can happen in both parts. (Remember that $-\infty - (-\infty)$ is not a number.)


# %% tags=["exercise"] exercise="10c.merge"
# %%px
def merge(one, other):
    """Return (m, total, weighted) of the keys of both parts together."""
    ### BEGIN SOLUTION
    m = torch.maximum(one[0], other[0])
    reference = m.masked_fill(m.isneginf(), 0.0)  # where neither part has a key
    total, weighted = torch.zeros_like(one[1]), torch.zeros_like(one[2])
    for part_m, part_total, part_weighted in (one, other):
        factor = torch.exp(part_m - reference)
        total = total + factor * part_total
        weighted = weighted + factor[..., None] * part_weighted
    return m, total, weighted
    ### END SOLUTION


# %% tags=["check"]
check("10c.merge")

# %% [markdown]
# Stuck? `hint("10c.merge")`, `solution("10c.merge")`.
#
# The next cell computes one such part from queries $Q$, keys $K$ and values $V$, each of the shape (sequences, heads, tokens, d). The score of a query and a key is their dot product divided by $\sqrt{d}$. `visible` says which query may see which key. The cell after that splits the keys into three parts of different lengths, and compares the merged output with PyTorch's attention over all keys. (`WANTED` is used for backward in section 3.)

# %%
# %%px
my_merge = yours_or_solution("10c.merge")
SEQUENCES, HEADS, TOKENS, D = 2, 4, 64, 16


def part_of(q, k, v, visible=None):
    """Return (m, total, weighted) of all queries q over the keys k."""
    scores = q @ k.mT / D**0.5
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    m = scores.amax(-1)
    exponentials = torch.exp(scores - m.nan_to_num(neginf=0.0)[..., None])
    return m, exponentials.sum(-1), exponentials @ v


# %%
# %%px
generator = torch.Generator().manual_seed(0)  # the same numbers on all ranks
Q, K, V, WANTED = torch.randn(4, SEQUENCES, HEADS, TOKENS, D, generator=generator).double()
lengths = [5, 40, 19]
parts = [part_of(Q, k, v) for k, v in zip(K.split(lengths, 2), V.split(lengths, 2), strict=True)]
_, total, weighted = my_merge(my_merge(parts[0], parts[1]), parts[2])
close(weighted / total[..., None], F.scaled_dot_product_attention(Q, K, V))

# %% [markdown]
# ## 3. Ring attention
#
# Now each of $p$ ranks has the queries, keys and values of $s/p$ tokens. Its queries stay where they are. Keys and values go round the ring: in each of $p$ steps a rank computes with the keys and values that it currently holds, and merges the result with those of the earlier steps. Between two steps it passes the keys and values on to its right neighbour. This is *ring attention* [3].

# %%
ring_of_keys()


# %%
# %%px
def pass_on(*tensors):
    """Send tensors to the right neighbour, return those of the left one."""
    received = [torch.empty_like(tensor) for tensor in tensors]
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    messages = [dist.P2POp(dist.isend, tensor, right) for tensor in tensors]
    messages += [dist.P2POp(dist.irecv, tensor, left) for tensor in received]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return received


def ring_forward(q, k, v):
    merged = part_of(q, k, v)
    for _ in range(world_size - 1):
        k, v = pass_on(k, v)
        merged = my_merge(merged, part_of(q, k, v))
    return merged


# %% [markdown]
# (A real implementation hides the messages: it starts them before it computes with the keys that it already has. Here it computes first and sends afterwards, which keeps the code readable.)
#
# **Predict.** There are 4 ranks, 2 sequences of 64 tokens, and 4 heads with $d = 16$; each number has 8 bytes. How many bytes does each rank send in forward?

# %%
prediction = None

# %%
# %%px
own = [tensor.chunk(world_size, 2)[rank].contiguous() for tensor in (Q, K, V, WANTED)]
with Traffic() as forward:
    m, total, weighted = ring_forward(*own[:3])
whole = F.scaled_dot_product_attention(Q, K, V)
close(weighted / total[..., None], whole.chunk(world_size, 2)[rank])
sent_forward = forward.sent.bytes

# %%
compare(prediction, cluster.view["sent_forward"][0])

# %% [markdown]
# Each rank passes on the keys and values of $s/p$ tokens $p - 1$ times. For each sequence that makes $2 (p-1) \cdot \frac{s}{p} h$ numbers, where $h$ is the number of heads times $d$. The output equals that of PyTorch's attention over the whole sequence, although no rank ever held all the keys at once.

# %%
# %%px
slice_bytes = SEQUENCES * HEADS * (TOKENS // world_size) * D * 8  # one of q, k, v on one rank
assert sent_forward == 2 * (world_size - 1) * slice_bytes
assert forward.sent.messages == 2 * (world_size - 1)

# %% [markdown]
# ### Backward
#
# Autograd does not see messages, so we write backward by hand. Each rank keeps its q, k, v, the output $y$ and one number for each query, $m + \ln \ell$. With that number it can recompute the probabilities $P = e^{x - m - \ln \ell}$ for any keys (`chances` in the code). Let $g$ be the gradient of the loss with respect to $y$. For each part of the keys, the chain rule gives
#
# $$ \nabla V = P^\top g, \qquad S = P \circ (g V^\top - \textstyle\sum_d g \circ y), \qquad \nabla Q \mathrel{+}= S K / \sqrt{d}, \qquad \nabla K = S^\top Q / \sqrt{d} $$
#
# where $\circ$ multiplies element by element, and the sum runs over the $d$ numbers of a query's output. $\nabla Q$ belongs to the queries, which stay. But $\nabla K$ and $\nabla V$ belong to keys and values that are passing through, and every rank adds its own term to these gradients.
#
# **Predict.** On 4 ranks, how many times as many bytes does backward send as forward? (On which rank must each $\nabla K$ and $\nabla V$ end up?)

# %%
prediction = None


# %%
# %%px
class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        m, total, weighted = ring_forward(q, k, v)
        y = weighted / total[..., None]
        ctx.save_for_backward(q, k, v, y, m + total.log())
        return y

    @staticmethod
    def backward(ctx, g):
        return ring_backward(g, *ctx.saved_tensors)


# %%
# %%px
def ring_backward(g, q, k, v, y, log_total, visible=None):
    dq, dk, dv = (torch.zeros_like(tensor) for tensor in (q, k, v))
    inner = (g * y).sum(-1, keepdim=True)
    for step in range(world_size):
        chances = torch.exp(q @ k.mT / D**0.5 - log_total[..., None])
        if visible is not None:  # from section 4 on
            chances = chances.masked_fill(~visible(step), 0.0)
        ds = chances * (g @ v.mT - inner) / D**0.5
        dq, dk, dv = dq + ds @ k, dk + ds.mT @ q, dv + chances.mT @ g
        if step < world_size - 1:
            k, v = pass_on(k, v)
        dk, dv = pass_on(dk, dv)
    return dq, dk, dv


# %%
# %%px
inputs = [tensor.clone().requires_grad_() for tensor in own[:3]]
y = RingAttention.apply(*inputs)
with Traffic() as backward:
    (y * own[3]).sum().backward()  # so g is this rank's slice of WANTED

serial = [tensor.clone().requires_grad_() for tensor in (Q, K, V)]
(F.scaled_dot_product_attention(*serial) * WANTED).sum().backward()
for mine, everyones in zip(inputs, serial, strict=True):
    close(mine.grad, everyones.grad.chunk(world_size, 2)[rank])
ratio = backward.sent.bytes / forward.sent.bytes

# %%
compare(prediction, cluster.view["ratio"][0], within=0.01)

# %% [markdown]
# Keys and values are again passed on $p - 1$ times. Their gradients are passed on $p$ times, because they must return to the rank that the keys and values came from. That makes $4p - 2$ slices instead of $2p - 2$, here 14 instead of 6. All gradients equal those computed by one process.

# %%
# %%px
assert backward.sent.bytes == (4 * world_size - 2) * slice_bytes

# %% [markdown]
# Can the messages be hidden? In one step of the forward pass, a rank with $n = s/p$ tokens sends $4 n h$ bytes (keys and values, 2 bytes per number) and performs $4 n^2 h$ operations. With the rates of lesson 10b, 50 GB/s and 400 TFLOP/s (*assumed*), computation takes longer than the messages as soon as $n$ exceeds 8,000 tokens. So if each rank has enough tokens, the ring's messages cost no time, however many ranks there are.
#
# ## 4. A causal mask, and which rank does the work
#
# In a language model a token sees only itself and the tokens before it. A mask that hides all later tokens is called *causal*. A rank can skip keys that none of its queries may see, which saves half of the work. But does every rank save the same amount?
#
# Cut the sequence into $2p$ chunks, two for each rank. The unit of work is a pair of chunks, one of queries and one of keys. Pairs with nothing visible are skipped, and a pair on the diagonal counts as a whole one. The usual order is *contiguous*: rank 0 has chunks 0 and 1, rank 1 has chunks 2 and 3, and so on. Rank 0 computes three pairs: (0, 0), (1, 0) and (1, 1).
#
# **Predict.** How many pairs does rank 3, the last of four, compute?

# %%
prediction = None


# %%
# %%px
def contiguous(tokens, ranks):
    """Return for each rank the positions of its tokens."""
    return [list(range(r * tokens // ranks, (r + 1) * tokens // ranks)) for r in range(ranks)]


def causal_step(queries, at, keys, values, there, merged):
    """Merge what the halves of the queries see of the halves of the keys; return the pairs."""
    pairs = 0
    for half in (0, 1):
        for k, v, positions in zip(keys.chunk(2, 2), values.chunk(2, 2), there, strict=True):
            if positions[0] <= at[half][-1]:  # else nothing is visible
                part = part_of(queries[half], k, v, at[half][:, None] >= positions)
                before = merged[half]
                merged[half] = part if before is None else my_merge(before, part)
                pairs += 1
    return pairs


# %%
# %%px
def causal_ring(q, k, v, order):
    """Return y and m + ln l, and pairs and seconds of computing of each step."""
    halves = [torch.tensor(positions).chunk(2) for positions in order]  # of each rank
    queries, merged, pairs, seconds = q.chunk(2, 2), [None, None], [], []
    for step in range(world_size):
        begin = time.thread_time()
        there = halves[(rank - step) % world_size]  # positions of the keys that are here
        pairs.append(causal_step(queries, halves[rank], k, v, there, merged))
        seconds.append(time.thread_time() - begin)
        if step < world_size - 1:
            k, v = pass_on(k, v)
    m, total, weighted = (torch.cat(both, 2) for both in zip(*merged, strict=True))
    return weighted / total[..., None], m + total.log(), pairs, seconds


# %% [markdown]
# The sequence is now longer, 2,048 tokens, so that there is something to measure. `time.thread_time` counts only the CPU seconds of the rank's own thread, even if other processes share the cores.

# %%
# %%px
LONG = 2048
q, k, v = torch.randn(3, 1, HEADS, LONG, D, generator=generator).double()
causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)


def try_order(order):
    mine = torch.tensor(order[rank])
    y, _, pairs, seconds = causal_ring(*(tensor[:, :, mine] for tensor in (q, k, v)), order)
    close(y, causal[:, :, mine])
    return pairs, seconds


pairs, seconds = try_order(contiguous(LONG, world_size))

# %%
in_contiguous, seconds = cluster.view["pairs"], cluster.view["seconds"]
compare(prediction, sum(in_contiguous[3]))

# %% tags=["nbval-ignore-output"]
for r in range(4):
    print(
        f"rank {r}: pairs in each step {in_contiguous[r]}, {1000 * sum(seconds[r]):5.0f} ms in all"
    )

# %% [markdown]
# Rank 3 computes three pairs with its own keys and four with the keys of every other rank: 15 in all, five times as many as rank 0. The ranks wait for each other in every step of the ring, so each step takes as long as its busiest rank needs. The whole ring takes the time of 3 + 4 + 4 + 4 = 15 pairs, although rank 0 computes only 3. If the 36 pairs were shared equally, it would take the time of 9.

# %%
assert [sum(pairs) for pairs in in_contiguous] == [3, 7, 11, 15]

# %% [markdown]
# ### Your turn: an order that balances the work
#
# Each rank still gets two of the $2p$ chunks. Chunk $j$ contains the positions from $j \cdot s / 2p$ (inclusive) to $(j + 1) \cdot s / 2p$ (exclusive), both rounded down; $s$ need not be a multiple of $2p$. Which two chunks must go together if all ranks are to compute the same number of pairs? (It does not matter which rank gets which two.)
#
# Write `balanced_order(tokens, ranks)`, which returns one list for each rank, with that rank's positions in ascending order. Find the rule on paper first, for 4 ranks and chunks 0 to 7.


# %% tags=["exercise"] exercise="10c.balanced_order"
# %%px
def balanced_order(tokens, ranks):
    """Return for each rank the positions of its two chunks, in ascending order."""
    ### BEGIN SOLUTION
    chunks = 2 * ranks

    def positions(chunk):
        return list(range(chunk * tokens // chunks, (chunk + 1) * tokens // chunks))

    return [positions(r) + positions(chunks - 1 - r) for r in range(ranks)]
    ### END SOLUTION


# %% tags=["check"]
check("10c.balanced_order")

# %% [markdown]
# Stuck? `hint("10c.balanced_order")`, `solution("10c.balanced_order")`.

# %%
# %%px
my_order = yours_or_solution("10c.balanced_order")(LONG, world_size)
pairs, seconds = try_order(my_order)
chunks = [sorted({position * 2 * world_size // LONG for position in one}) for one in my_order]

# %% tags=["nbval-ignore-output"]
balanced, seconds = cluster.view["pairs"], cluster.view["seconds"]
for r in range(4):
    print(f"rank {r}: pairs in each step {balanced[r]}, {1000 * sum(seconds[r]):5.0f} ms in all")

# %%
assert [sum(pairs) for pairs in balanced] == [9] * 4
in_order = [[2 * r, 2 * r + 1] for r in range(4)]
causal_work({"contiguous": in_order, "balanced": cluster.view["chunks"][0]})

# %% [markdown]
# Each square is a pair of chunks, marked with the rank that computes it: rows are queries, columns are keys. The bars show how many pairs each rank computes. The balanced order is called *zigzag*, because it goes down the ranks and up again. Llama 3 was trained with it [4], and it is PyTorch's default for a causal mask (section 6). Every single step is balanced, not just the total. The outputs do not depend on the order, as long as each token keeps its position: here in the mask, in a real model also in the position embeddings.

# %%
# %%px
assert comm.allgather(pairs) == [[3, 2, 2, 2]] * 4

# %% [markdown]
# For backward in this order we use the function from section 3, which sets the probabilities of hidden keys to zero. The next cell checks the gradients on the short sequence:

# %%
# %%px
short_order = yours_or_solution("10c.balanced_order")(TOKENS, world_size)
here = torch.tensor(short_order[rank])
*here_qkv, g = (tensor[:, :, here].contiguous() for tensor in (Q, K, V, WANTED))
y, log_total, _, _ = causal_ring(*here_qkv, short_order)


def visible(step):
    return here[:, None] >= torch.tensor(short_order[(rank - step) % world_size])


gradients = ring_backward(g, *here_qkv, y, log_total, visible)
serial = [tensor.clone().requires_grad_() for tensor in (Q, K, V)]
(F.scaled_dot_product_attention(*serial, is_causal=True) * WANTED).sum().backward()
for one, everyones in zip(gradients, serial, strict=True):
    close(one, everyones.grad[:, :, here])

# %% [markdown]
# ## 5. Ulysses: heads instead of tokens
#
# There is another way for each query to meet all keys. Heads are independent of each other (lesson 10b), so a rank that has *all* tokens of *some* heads can compute their attention alone. DeepSpeed's *Ulysses* [5] therefore exchanges data before and after attention: one all-to-all turns $s/p$ tokens of all heads into all tokens of $1/p$ of the heads, and another reverses this for the output. The backward pass does the same in the opposite order.


# %%
# %%px
def exchange(parts):
    """Give part r of dimension 0 to rank r."""
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts)
    return received


def to_heads(x):
    """(sequences, heads, tokens / p, d) to (sequences, heads / p, tokens, d)."""
    return exchange(x.unflatten(1, (world_size, -1)).movedim(1, 0)).movedim(0, 2).flatten(2, 3)


def to_tokens(x):
    """The way back, for the output."""
    return exchange(x.unflatten(2, (world_size, -1)).movedim(2, 0)).movedim(0, 1).flatten(1, 2)


# %%
# %%px
class ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return to_heads(x)

    @staticmethod
    def backward(ctx, gradient):
        return to_tokens(gradient)


class ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return to_tokens(x)

    @staticmethod
    def backward(ctx, gradient):
        return to_heads(gradient)


# %% [markdown]
# **Predict.** In forward, Ulysses exchanges $q$, $k$, $v$ and the output. Each of these is one slice, of which $1/p$ stays on its rank. On 4 ranks, how many times as many bytes as Ulysses does the *ring* send in forward?

# %%
prediction = None

# %%
# %%px
inputs = [tensor.clone().requires_grad_() for tensor in own[:3]]
with Traffic() as ulysses_forward:
    by_heads = [ToHeads.apply(tensor) for tensor in inputs]
    y = ToTokens.apply(F.scaled_dot_product_attention(*by_heads, is_causal=True))
with Traffic() as ulysses_backward:
    (y * own[3]).sum().backward()

serial = [tensor.clone().requires_grad_() for tensor in (Q, K, V)]
whole = F.scaled_dot_product_attention(*serial, is_causal=True)
(whole * WANTED).sum().backward()
close(y, whole.chunk(world_size, 2)[rank])
for mine, everyones in zip(inputs, serial, strict=True):
    close(mine.grad, everyones.grad.chunk(world_size, 2)[rank])
handed_over = ulysses_forward.collectives["all_to_all_single"]
leave = handed_over.bytes * (world_size - 1) / world_size  # a p-th is for the rank itself
ring_over_ulysses = forward.sent.bytes / leave

# %%
compare(prediction, cluster.view["ring_over_ulysses"][0], within=0.01, source="From the counts")

# %% [markdown]
# Twice as many here, and $p/2$ times as many on $p$ ranks. In the ring each rank sends $2 (p-1) \cdot \frac{s}{p} h$ numbers, and this count hardly depends on $p$. With Ulysses it sends $4 \cdot \frac{p-1}{p} \cdot \frac{s}{p} h$, which shrinks like $1/p$. Ulysses sends as much in backward as in forward, whereas the ring's backward sends more than twice as much as its forward. And with Ulysses a causal mask does not unbalance the work, because every rank has all tokens.
#
# The sequence parallelism of lesson 10b also cuts attention by heads. It gathers all tokens before the layer and reduce-scatters the layer's output. Each rank sends $2 (p-1) \cdot \frac{s}{p} h$ numbers, as many as in the ring, but this method cuts the weights as well.

# %%
# %%px
assert handed_over == (4, 4 * slice_bytes)
assert ulysses_backward.collectives["all_to_all_single"] == handed_over

# %% [markdown]
# The ring has advantages too. Ulysses cannot use more ranks than there are heads. And in many models several query heads share one head of keys and values: Llama 3 70B from lesson 10b has 64 query heads, but only 8 heads of keys and values. Only an eighth of the bytes then goes round the ring.
#
# ### Your turn: predict the bytes
#
# Write `attention_bytes(way, tokens, ranks, heads, kv_heads, d)`, which returns the number of bytes that one rank sends in forward for one sequence, at 2 bytes per number. `way` is either `"ring"` or `"ulysses"`. The queries and the output have `heads` heads; the keys and the values have `kv_heads`. Do not count what stays on the rank. All divisions are exact: `ranks` divides `tokens` and, for Ulysses, both numbers of heads.


# %% tags=["exercise"] exercise="10c.attention_bytes"
def attention_bytes(way, tokens, ranks, heads, kv_heads, d):
    """Return the bytes that one rank sends in forward, 2 bytes a number."""
    ### BEGIN SOLUTION
    n = tokens // ranks
    if way == "ring":
        return 2 * (ranks - 1) * n * 2 * kv_heads * d
    return 2 * (ranks - 1) * n * (2 * heads + 2 * kv_heads) * d // ranks
    ### END SOLUTION


# %% tags=["check"]
check("10c.attention_bytes")

# %% [markdown]
# Stuck? `hint("10c.attention_bytes")`, `solution("10c.attention_bytes")`.
#
# **Predict.** For Llama 3 70B, a million tokens and 8 ranks, how many times as many bytes does the ring send as Ulysses?

# %%
prediction = None

# %%
my_attention_bytes = yours_or_solution("10c.attention_bytes")
found = {way: my_attention_bytes(way, million, 8, 64, 8, 128) for way in ("ring", "ulysses")}
compare(prediction, found["ring"] / found["ulysses"], within=0.05, source="By the formula")

# %%
for kv_heads in (64, 8):
    for way in ("ring", "ulysses"):
        gigabytes = my_attention_bytes(way, million, 8, 64, kv_heads, 128) / 1e9
        print(f"{kv_heads:2} heads of keys and values, {way:8} {gigabytes:5.1f} GB a block")
assert found == {"ring": 3_758_096_384, "ulysses": 4_227_858_432}

# %% [markdown]
# The ring sends less, but only just: with few heads of keys and values, Ulysses also sends fewer bytes in two of its four exchanges. If each query head had its own keys and values, Ulysses would send a quarter of the ring's bytes.
#
# | | ring | Ulysses |
# |---|---|---|
# | numbers sent by a rank in forward | $2(p-1) \frac{s}{p}$ · width of the keys (heads times $d$) | $\frac{p-1}{p} \frac{s}{p}$ · (sum of the widths of queries, keys, values and output) |
# | messages | to neighbours only; computation can hide them | from every rank to every other; attention waits for them |
# | number of ranks | unlimited | at most the number of heads (of keys and values, unless they are copied) |
# | causal mask | needs the zigzag order | needs nothing |
# | attention itself | must be computed in parts | any implementation |
# | choose it for | many ranks, several machines, few heads of keys and values | up to 8 or 16 ranks, inside a machine |
#
# You can also combine them: Ulysses inside each machine, a ring between machines. Llama 3 uses a third method: for 131,072 tokens, it all-gathers keys and values on 16 ranks. Keys and values of only 8 heads are small, so the all-gather takes less time than attention itself, whose work grows like $s^2$ (*published* [4]).
#
# ## 6. PyTorch's own
#
# `torch.distributed.tensor.experimental.context_parallel` is PyTorch's ring attention, marked as a prototype in PyTorch 2.13. Inside the context the listed buffers are cut along the token dimension (in zigzag order), and `F.scaled_dot_product_attention` is replaced by a version that computes partial outputs and merges them. By default a rank all-gathers keys and values while it computes with its own; after `set_rotate_method("alltoall")` the ranks pass them round. `context_parallel_unshard` returns the whole output. Does it work on CPUs? Try it, with a causal mask.

# %%
# %%px --limit 300
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard

line = init_device_mesh("cpu", (world_size,))
buffers = [tensor.clone() for tensor in (Q, K, V)]  # context_parallel cuts them in place
try:
    with context_parallel(line, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
        y = F.scaled_dot_product_attention(*buffers, is_causal=True)
        (y,) = context_parallel_unshard(line, [y], [2])
    close(y, F.scaled_dot_product_attention(Q, K, V, is_causal=True))
    outcome = "the output of one process"
except NotImplementedError as error:
    outcome = str(error)
if rank == 0:
    print(outcome)

# %% [markdown]
# It does not (*measured here*, PyTorch 2.13). The ring is implemented for three attention kernels on GPUs: flash, memory-efficient and cuDNN's. CPUs use a different kernel, for which DTensor has no rule. Without a mask the call does run, and its output is right, but there is no ring: DTensor splits attention into matrix products and all-gathers all keys and values (*measured* once on the same ranks; that call is left out here because PyTorch takes a long time to prepare it). On GPUs the code would be the same, with `cuda` instead of `cpu` and 16-bit numbers; it has not been run on GPUs for this lesson.
#
# This is a good place for a break. If you come back to a new kernel, run the first three code cells and continue here.
#
# ## 7. Experts
#
# So far we have split attention; now we turn to the other part of a block, the MLP. In a *mixture-of-experts* model a layer has $E$ MLPs, the *experts*, instead of one. A *router*, a small linear layer, gives each token a number for each expert. The token goes to the $k$ experts with the largest numbers (*top-k*), and its output is the mean of the experts' outputs, weighted by a softmax of the $k$ numbers [6]. The number of parameters therefore grows with $E$, whereas the work for each token grows only with $k$.
#
# The experts are spread over the ranks, which is called *expert parallelism*. Each rank has its own tokens, as in data parallelism, but now the tokens travel. *Dispatch* sends a copy of each token to each of its $k$ experts; *combine* sends the outputs back.

# %%
tokens_to_experts()

# %% [markdown]
# The next two cells define the layer and the *dense* computation, whose results every other version must reproduce: one process runs all experts on all tokens, and then picks each token's $k$ outputs.


# %%
# %%px
EXPERTS, CHOICES, WIDTH = 8, 2, 16  # E, k, h


class Experts(nn.Module):
    """A router and some of the experts; their first weights depend on the seed only."""

    def __init__(self, first=0, count=EXPERTS):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        layers = [(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)) for _ in range(EXPERTS)]
        self.experts = nn.ModuleList(nn.Sequential(*some) for some in layers[first : first + count])
        self.register_buffer("bias", torch.zeros(EXPERTS))  # zero until section 9

    def choose(self, x):
        """Return the experts of each token and their weights, both (tokens, k)."""
        logits = self.router(x)
        self.chances = logits.softmax(-1)  # for section 9
        self.chosen = (logits + self.bias).topk(CHOICES, -1).indices
        return self.chosen, logits.gather(-1, self.chosen).softmax(-1)


# %%
# %%px
def dense(layer, x):
    chosen, weights = layer.choose(x)
    every = torch.stack([expert(x) for expert in layer.experts], 1)  # (tokens, E, h)
    picked = every.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
    return (weights[..., None] * picked).sum(1)


# %% [markdown]
# ### Your turn: what goes where
#
# `dist.all_to_all_single` sends the first rows of a tensor to rank 0, the next ones to rank 1, and so on; you tell it how many rows go to each rank. First, however, you have to sort the copies by expert. Expert e lives on rank e // (E / p).
#
# Write `dispatch(chosen, experts, ranks)`. `chosen` is an int64 tensor of the shape (copies,), which contains the expert of each copy. It may be empty. Return two int64 tensors. `order` contains the indices of the copies in `chosen`, sorted by expert, so that `chosen[order]` is ascending. `counts`, of the shape (ranks, experts // ranks), says how many copies go to each expert on each rank, zeros included.


# %% tags=["exercise"] exercise="10c.dispatch"
# %%px
def dispatch(chosen, experts, ranks):
    """Return the order of the copies, and how many go to each expert of each rank."""
    ### BEGIN SOLUTION
    order = torch.argsort(chosen, stable=True)
    counts = torch.bincount(chosen, minlength=experts).view(ranks, experts // ranks)
    return order, counts
    ### END SOLUTION


# %% tags=["check"]
check("10c.dispatch")

# %% [markdown]
# Stuck? `hint("10c.dispatch")`, `solution("10c.dispatch")`.
#
# The function in the next cell sends rows to the experts at dispatch, and back at combine. Its backward sends the gradients in the opposite direction, with the counts swapped.


# %%
# %%px
class SendRows(torch.autograd.Function):
    """Send sending[j] rows to rank j of a group, and receive receiving[j] from it."""

    @staticmethod
    def forward(ctx, rows, sending, receiving, group):
        ctx.way_back = receiving, sending, group
        received = rows.new_empty(sum(receiving), rows.shape[1])
        dist.all_to_all_single(received, rows.contiguous(), receiving, sending, group=group)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return SendRows.apply(gradient, *ctx.way_back), None, None, None


def put(rows, places):
    """Return rows in another order: row i at places[i]."""
    return torch.zeros_like(rows).index_copy(0, places, rows)


# %% [markdown]
# A rank receives rows for its experts from every rank; the rows from one sender are sorted by expert. `theirs[j, e]` says how many rows rank j sends to expert number e of this rank. A small all-to-all delivers these counts before the rows.


# %%
# %%px
my_dispatch = yours_or_solution("10c.dispatch")


def by_own_experts(layer, rows, theirs):
    expert = torch.arange(theirs.shape[1]).repeat(len(theirs)).repeat_interleave(theirs.flatten())
    order = expert.argsort(stable=True)
    parts = rows[order].split(theirs.sum(0).tolist())
    outputs = [one(part) for one, part in zip(layer.experts, parts, strict=True)]
    return put(torch.cat(outputs), order)


# %%
# %%px
def mixture(layer, x, group):
    chosen, weights = layer.choose(x)
    order, counts = my_dispatch(chosen.flatten(), EXPERTS, group.size())
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts, group=group)
    sending, receiving = counts.sum(1).tolist(), theirs.sum(1).tolist()
    rows = SendRows.apply(x[order // CHOICES], sending, receiving, group)  # copy i: token i // k
    done = by_own_experts(layer, rows, theirs)
    copies = put(SendRows.apply(done, receiving, sending, group), order)
    layer.travelled = len(order), len(rows)
    return (weights[..., None] * copies.view(len(x), CHOICES, WIDTH)).sum(1)


# %% [markdown]
# **Predict.** Every rank has 32 tokens. Count the rows that a rank hands over: copies of its tokens at dispatch, outputs of its experts at combine. In which of the two do all ranks hand over the same number of rows? **A**: both; **B**: dispatch only; **C**: combine only.

# %%
prediction = None


# %%
# %%px
HELD = EXPERTS // world_size  # experts on a rank


def new_layer(first=0, count=EXPERTS):
    torch.manual_seed(1)
    return Experts(first, count).double()


def try_mixture(sizes):
    """Compare with the dense layer; rank r has sizes[r] tokens. Return traffic and layers."""
    layer = new_layer(rank * HELD, HELD)
    numbers = torch.Generator().manual_seed(0)  # the same numbers on all ranks
    everyones, wanted = torch.randn(2, sum(sizes), WIDTH, generator=numbers).double()
    x, y_wanted = everyones.split(sizes)[rank].clone().requires_grad_(), wanted.split(sizes)[rank]
    with Traffic() as traffic:
        y = mixture(layer, x, dist.group.WORLD)
    (y * y_wanted).sum().backward()
    serial, everyones = new_layer(), everyones.requires_grad_()
    whole = dense(serial, everyones)
    (whole * wanted).sum().backward()
    close(y, whole.split(sizes)[rank])
    close(x.grad, everyones.grad.split(sizes)[rank])
    return traffic, layer, serial


# %%
# %%px
traffic, layer, serial = try_mixture([32] * world_size)
rows_of_all = comm.allgather(layer.travelled)
same = [len(set(rows)) == 1 for rows in zip(*rows_of_all, strict=True)]

# %%
there, back = cluster.view["same"][0]
compare(prediction, {(True, True): "A", (True, False): "B", (False, True): "C"}[there, back])
print("rows handed over (dispatch, combine):", cluster.view["rows_of_all"][0])

# %% [markdown]
# At dispatch, each rank hands over $k$ copies of each of its 32 tokens. At combine, the number of rows depends on how many tokens chose the rank's experts, so the router determines both the traffic and the work. The cells above have already checked that the outputs and the tokens' gradients equal those of the dense layer. The next one checks the bytes, and the gradients of the experts and of the router:

# %%
# %%px
copies, received = layer.travelled
assert traffic.collectives["all_to_all_single"] == (
    3,
    8 * EXPERTS + 8 * WIDTH * (copies + received),
)
assert copies == CHOICES * 32
assert sum(back for _, back in rows_of_all) == world_size * copies
for one, other in zip(layer.experts, serial.experts[rank * HELD : (rank + 1) * HELD], strict=True):
    for own_parameter, its_parameter in zip(one.parameters(), other.parameters(), strict=True):
        close(own_parameter.grad, its_parameter.grad)
router_gradient = layer.router.weight.grad.clone()
dist.all_reduce(router_gradient)
close(router_gradient, serial.router.weight.grad)

# %% [markdown]
# Note the difference. An expert's gradient includes all ranks' tokens without any all-reduce, because the tokens came to the expert. The router's gradient includes only this rank's tokens. Section 8 deals with this difference.
#
# ## 8. Whose gradient is it?
#
# With more ranks there can be several copies of each expert. On a 2 x 2 mesh, ranks 0 and 1 form a team: each holds half of the experts, and they exchange tokens. Ranks 2 and 3 form another team with the same weights. All four ranks hold everything except the experts. Every rank has its own samples, and its loss is the *mean* over these. Training has to produce the same weights as one process with all samples.
#
# | weights | are on | their gradient after backward comes from |
# |---|---|---|
# | router, embedding, classifier | all 4 ranks | the rank's own samples |
# | an expert | 2 ranks, one in each team | the samples of its team |
#
# ### Your turn: average over the right ranks
#
# Write `average_gradients(shared, experts, everyone, replicas)`. `shared` and `experts` are lists of gradients, which you change in place. The first list belongs to the weights that all ranks have, the second to the rank's own experts. `everyone` is the group of all ranks; `replicas` is the group of ranks with the same experts. Afterwards every gradient has to be that of the mean loss over *all* ranks' samples. (All ranks have the same number of samples.)


# %% tags=["exercise"] exercise="10c.average_gradients"
# %%px
def average_gradients(shared, experts, everyone, replicas):
    """Turn each gradient into that of the mean loss over all samples, in place."""
    ### BEGIN SOLUTION
    for gradients, group in ((shared, everyone), (experts, replicas)):
        for gradient in gradients:
            dist.all_reduce(gradient, group=group)
            gradient /= dist.get_world_size(everyone)
    ### END SOLUTION


# %% tags=["check"]
check("10c.average_gradients")

# %% [markdown]
# Stuck? `hint("10c.average_gradients")`, `solution("10c.average_gradients")`.
#
# **Predict.** A colleague instead wraps the experts in DDP over the group `replicas`, and everything else in DDP over all ranks. DDP divides by the size of its group. The experts' gradients are then **A**: right; **B**: twice as large as they should be; **C**: half as large.

# %%
prediction = None


# %%
# %%px
class Classifier(nn.Module):
    """Digits by a mixture of experts; each image is one token."""

    def __init__(self, first=0, count=EXPERTS):
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Linear(64, WIDTH)
        self.layer = Experts(first, count)
        self.classifier = nn.Linear(WIDTH, 10)

    def forward(self, images, how, *group):
        x = torch.tanh(self.embedding(images.flatten(1)))
        return self.classifier(x + how(self.layer, x, *group))


# %%
# %%px
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "experts"))
team, replicas = mesh["experts"].get_group(), mesh["data"].get_group()
half = EXPERTS // 2
first = half * mesh["experts"].get_local_rank()
training, _, _ = data.load_available("digits")


# %%
# %%px
my_average = yours_or_solution("10c.average_gradients")


def batch(step, part=0, parts=1):
    images, labels = training[128 * step % 1280 : 128 * step % 1280 + 128]
    return images.double().chunk(parts)[part], labels.chunk(parts)[part]


def kinds(model):
    """Return the parameters that all ranks have, and the experts'."""
    named = list(model.named_parameters())
    shared = [parameter for name, parameter in named if ".experts." not in name]
    return shared, [parameter for name, parameter in named if ".experts." in name]


def average_in_two_messages(model):
    """One long vector for each kind, as in lesson 05."""
    gradients = [[parameter.grad for parameter in some] for some in kinds(model)]
    shared, experts = (torch.cat([g.flatten() for g in some]) for some in gradients)
    my_average([shared], [experts], dist.group.WORLD, replicas)
    for some, vector in zip(gradients, (shared, experts), strict=True):
        for g, part in zip(some, vector.split([g.numel() for g in some]), strict=True):
            g.copy_(part.view_as(g))


# %%
# %%px
model, one_process = Classifier(first, half).double(), Classifier().double()
for step in range(5):
    images, labels = batch(step, rank, world_size)
    model.zero_grad()
    F.cross_entropy(model(images, mixture, team), labels).backward()
    before = kinds(model)[1][0].grad.clone()
    average_in_two_messages(model)
    images, labels = batch(step)
    one_process.zero_grad()
    F.cross_entropy(one_process(images, dense), labels).backward()
    for each in (model, one_process):
        torch.optim.SGD(each.parameters(), lr=0.2).step()

# %%
# %%px
as_ddp = before.clone()
dist.all_reduce(as_ddp, group=replicas)
as_ddp /= dist.get_world_size(replicas)
right = kinds(model)[1][0].grad
too_large = (as_ddp.norm() / right.norm()).item()

# %%
compare(prediction, {1: "A", 2: "B", 0.5: "C"}[round(cluster.view["too_large"][0], 6)])

# %% [markdown]
# Twice as large. After backward an expert's gradient is already a *sum* over the two ranks of its team, each of which took the mean over its own samples. The sum over the two teams therefore contains four means, and must be divided by four, whatever the size of the group that computes the sum. (Adam, which divides by the gradient's magnitude, would hide the mistake; SGD would train the experts at twice the learning rate. Megatron-LM scales such gradients for this reason [7].) With your averages, all weights after the five steps equal those of one process, as the next cell checks:

# %%
# %%px
serial_weights = dict(one_process.named_parameters())
for name, parameter in model.named_parameters():
    number = re.search(r"experts\.(\d+)\.", name)
    if number:
        name = name.replace(number[0], f"experts.{int(number[1]) + first}.")
    close(parameter.detach(), serial_weights[name].detach())
assert_replicas_equal({n: p.detach() for n, p in model.named_parameters() if ".experts." not in n})

# %% [markdown]
# ## 9. Imbalance
#
# Nothing forces the router to use all the experts. If one expert happens to be good at the start, it is given more tokens, learns more, and is given even more tokens. The other ranks then wait, because the layer takes as long as its busiest rank. There are two remedies:
#
# - An *auxiliary loss* [8]. Let $f_e$ be the share of the copies that goes to expert e, and $P_e$ the router's softmax for this expert, averaged over the tokens. Add $a \cdot E \sum_e f_e P_e$ to the loss, with a small weight $a$. If $f$ and $P$ are uniform, this term is $a$; it is larger if the router prefers experts that already get many copies. Its gradient also affects the rest of the model.
# - A *balancing bias* [9]. For the top-k only, add a number $b_e$ to the router's number for expert e; the weights of the mean are computed without it. After each step, lower $b_e$ for experts with more copies than the mean, and raise it for the others. The bias needs no gradient and adds no second objective.
#
# **Predict.** We train for 50 steps with 128 samples each, 8 experts and k = 2. Without a remedy, how many times the mean load does the busiest expert get in the last 20 steps? (Why must the answer lie between 1 and 4?)

# %%
prediction = None


# %%
# %%px
def loads(layer):
    """Return how many copies went to each expert, over all ranks."""
    count = torch.bincount(layer.chosen.flatten(), minlength=EXPERTS)
    dist.all_reduce(count)
    return count


# %%
# %%px
def train(remedy, steps=50):
    model, history = Classifier(first, half).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for step in range(steps):
        images, labels = batch(step, rank, world_size)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images, mixture, team), labels)
        history.append(loads(model.layer))
        if remedy == "auxiliary loss":
            shares = history[-1] / history[-1].sum()
            loss = loss + 0.2 * EXPERTS * (shares * model.layer.chances.mean(0)).sum()
        loss.backward()
        average_in_two_messages(model)
        optimizer.step()
        if remedy == "bias":
            count = history[-1].double()
            model.layer.bias -= 0.05 * (count - count.mean()).sign()
    return torch.stack(history[-20:]).double().mean(0), model


# %%
# %%px
REMEDIES = ("no remedy", "auxiliary loss", "bias")
at_the_end, models = zip(*map(train, REMEDIES), strict=True)
load = [count.tolist() for count in at_the_end]
busiest = [(count.max() / count.mean()).item() for count in at_the_end]

# %% tags=["nbval-ignore-output"]
remedies, load, busiest = (cluster.view[name][0] for name in ("REMEDIES", "load", "busiest"))
compare(prediction, busiest[0], within=0.2)
for name, times in zip(remedies, busiest, strict=True):
    print(f"{name:15} busiest expert: {times:.2f} times the mean")

# %% tags=["nbval-ignore-output"]
expert_loads(dict(zip(remedies, load, strict=True)))

# %% [markdown]
# (The ratio is at most 4: a token's 2 experts out of 8 are different, so an expert gets each token at most once, and an expert that gets every token has four times the mean load.) Both remedies work. The auxiliary loss has to be weighted against the loss of the task. The bias needs only an update rate, which must be small enough to keep experts from swapping places in every step.

# %%
assert busiest[0] > 1.5 > max(busiest[1:])

# %% [markdown]
# ### Capacity and dropped tokens
#
# The older way to limit the busiest expert is a *capacity*: each expert takes at most $C = c \cdot k n / E$ copies from a rank with $n$ tokens, where the *capacity factor* $c$ lies between 1 and 2. Copies beyond the capacity are *dropped*: the expert adds nothing to the output of their tokens. In return, all messages have the same size, known in advance, so no counts need to be sent. The next cell finds the copies that are kept, first come, first served:


# %%
# %%px
def kept(chosen, capacity):
    """Tell for each copy whether it is among the first `capacity` of its expert."""
    place = F.one_hot(chosen, EXPERTS).cumsum(0).gather(1, chosen[:, None]).squeeze(1)
    return place <= capacity


# %%
# %%px
def dropped_share(model, factor):
    images, _ = batch(9, rank, world_size)
    with torch.no_grad():
        model.layer.choose(torch.tanh(model.embedding(images.flatten(1))))
    chosen = model.layer.chosen.flatten()
    capacity = int(factor * len(chosen) / EXPERTS)
    beyond = (torch.bincount(chosen, minlength=EXPERTS) - capacity).clamp(min=0).sum()
    keep = kept(chosen, capacity)
    assert (~keep).sum() == beyond
    return (~keep).double().mean()


FACTORS = (1.0, 1.5, 2.0)
dropped = torch.stack([dropped_share(model, c) for model in models for c in FACTORS])
dist.all_reduce(dropped)
percent = (100 * dropped / world_size).view(len(models), len(FACTORS)).tolist()

# %% tags=["nbval-ignore-output"]
print(f"dropped copies, capacity factor: {cluster.view['FACTORS'][0]}")
for name, row in zip(remedies, cluster.view["percent"][0], strict=True):
    print(f"{name:15}", " ".join(f"{share:6.1f} %" for share in row))

# %% [markdown]
# Even a router that is balanced over all ranks and many steps drops some copies at $c = 1$, because the capacity applies to one rank's tokens in one step. DeepSeek-V3, described in section 10, relies on good balance instead and drops nothing. It therefore has to send the counts, as `mixture` does.

# %%
# %%px
assert all(row[0] >= row[1] >= row[2] for row in percent)
assert percent[0][0] > max(row[0] for row in percent[1:])

# %% [markdown]
# ### Break it on purpose: nothing to send
#
# A rank may have no tokens, because the last batch of an epoch has too few samples or because all the rank's tokens are padding. The function below returns early on such a rank.
#
# **Predict.** Rank 3 has no tokens. What do ranks 0 to 2 do? **A**: they get their results; **B**: they wait in the all-to-all of the counts; **C**: they wait in the all-to-all of the rows.

# %%
prediction = None


# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --limit 4
def hasty(layer, x, group):
    if len(x) == 0:
        return x  # nothing to send
    return mixture(layer, x, group)


few = torch.ones(0 if rank == 3 else 8, WIDTH).double()
y = hasty(layer, few, dist.group.WORLD)

# %%
compare(prediction, "B", source="In the report above")

# %% [markdown]
# **Symptom**: all other ranks hang. The report shows ranks 0 to 2 in an all-to-all of int64 numbers, which are the counts; rank 3 has finished the cell. **Diagnosis**: rank 3 left out a collective. It had nothing to send, but tokens of other ranks may choose its experts, and the other ranks wait for its counts, even if these are zero. **Fix**: take no shortcut around a collective. `mixture` itself has no shortcut. It works on a rank with no tokens, in backward too, and its results still equal those of the dense layer. (The next cell first creates the mesh again, because its groups ended with the hang.)

# %%
# %%px
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "experts"))
team, replicas = mesh["experts"].get_group(), mesh["data"].get_group()
_ = try_mixture([40, 1, 24, 0])
_, layer, _ = try_mixture([1, 0, 0, 0])  # at least 6 of the 8 experts get no token
assert all(parameter.grad is not None for parameter in layer.experts.parameters())

# %% [markdown]
# (An all-to-all of empty rows is a call like any other. An expert that no token chose is a similar trap: its gradient must be zero and not `None`, because it is all-reduced next. Here it is zero, because each expert is called even if it has no rows.)
#
# ## 10. On paper: DeepSeek-V3
#
# The report [10] and the released `config.json` give the sizes: 61 blocks of width 7,168. The first 3 blocks have an ordinary MLP of inner width 18,432. Each of the other 58 has 256 experts and one *shared expert*, which processes every token; each expert has an inner width of 2,048 and three matrices. A token goes to $k = 8$ of the 256 experts. Attention keeps keys and values in compressed form; the cell contains the sizes of its matrices. The vocabulary has 129,280 entries, with separate input and output matrices.
#
# **Predict.** What percentage of all parameters is used for one token? Write it as text, such as `"25%"`.

# %%
prediction = None

# %%
width, blocks, with_experts, vocabulary = 7168, 61, 58, 129_280
heads, own_part, position_part, compressed_q, compressed_kv = 128, 128, 64, 1536, 512
attention = width * compressed_q + compressed_q * heads * (own_part + position_part)
attention += width * (compressed_kv + position_part) + compressed_kv * heads * 2 * own_part
attention += heads * own_part * width  # the output layer
one_expert, dense_mlp, router = 3 * width * 2048, 3 * width * 18432, 256 * width
everywhere = blocks * attention + (blocks - with_experts) * dense_mlp + with_experts * router
total = everywhere + with_experts * 257 * one_expert + 2 * vocabulary * width
active = everywhere + with_experts * (8 + 1) * one_expert + vocabulary * width
compare(prediction, active / total, within=0.2, source="By the formula")
print(f"{total / 1e9:.1f} billion parameters, of which {active / 1e9:.1f} billion work for a token")

# %% [markdown]
# The report says 671 and 37 billion; the notes that come with the released weights say 36.6 instead of 37. (Norms and balancing biases are left out here. Of the vocabulary's two matrices only the output matrix counts as active, because the input matrix is only a lookup table.)
#
# *Published* [10]: the model was trained on 2,048 GPUs, 8 in each machine, with a pipeline of 16 stages, experts spread over 64 ranks in 8 machines, and ZeRO stage 1 over the data-parallel ranks, but without tensor parallelism. A stage therefore has 2,048 / 16 = 128 ranks. Over how many of them is each gradient summed? (DualPipe, described in lesson 10, keeps a second copy of every stage, on the ranks of the opposite stage. The gradients of both copies are added as well; the cell leaves this out.)

# %%
ranks_of_a_stage, ranks_of_experts = 2048 // 16, 64
print(f"attention, router, shared expert: summed over {ranks_of_a_stage} ranks")
replicas_of_an_expert = ranks_of_a_stage // ranks_of_experts
print(f"an expert:                        summed over {replicas_of_an_expert} ranks")
print(f"experts on a rank, in each block: {256 // ranks_of_experts}")

# %% [markdown]
# All sums are divided by 128, as in section 8. Each rank has 4 of the 256 experts of a block. Now we compute how long the tokens of one block with experts spend on the network in forward, with 4,096 tokens on each rank. Dispatch sends 1 byte per number, combine 2 (*published*). The 8 experts of a token are on at most 4 machines. The token crosses the network once for each machine, at 50 GB/s; NVLink then copies it to the experts in that machine.
#
# **Predict.** If every token goes to 4 other machines, how many milliseconds do the dispatch and combine of one block spend on the network?

# %%
prediction = None

# %%
tokens, machines, network = 4096, 4, 50e9
milliseconds = 1000 * tokens * machines * width * (1 + 2) / network
compare(prediction, milliseconds, within=0.1, unit="ms", source="By the formula")
operations = 2 * tokens * (attention + 9 * one_expert + router)
print(f"computing at 400 TFLOP/s: {1000 * operations / 400e12:.1f} ms, attention's scores left out")

# %% [markdown]
# At the rates assumed here, the messages take more than half as long as the computation. The report itself gives a ratio of about 1 : 1 for experts on other machines. That is why DeepSeek's pipeline schedule, DualPipe (lesson 10), computes one micro-batch while the tokens of another travel, and why the number of machines per token is limited. With 8 copies over the network instead of 4, messages would take longer than computation.
#
# Each expert has a balancing bias, as in section 9, which changes by 0.001 per step for most of the training. There is also a very small auxiliary loss within each sequence. No token is dropped (*published* [10]).

# %%
assert 670.9e9 < total < 671.1e9
assert 36.5e9 < active < 36.7e9
assert replicas_of_an_expert == 2
assert 0.5 < milliseconds / (1000 * operations / 400e12) < 1

# %% [markdown]
# ## Recap
#
# | | what to remember |
# |---|---|
# | what grows | activations grow with $s$, scores and their operations with $s^2$; scores are never stored |
# | partial softmax | $(m, \ell, w)$; numerators and denominators add up, outputs do not |
# | ring attention | each rank sends $2p - 2$ slices in forward, $4p - 2$ in backward; any number of ranks |
# | causal mask | contiguous: the last rank sets the pace; zigzag: chunks $j$ and $2p - 1 - j$ balance the work |
# | Ulysses | an all-to-all for each of four slices; the ring sends $p/2$ times as many bytes, unless there are few heads of keys and values; no more ranks than heads |
# | experts | tokens travel, weights stay; counts first, then rows; combine is as uneven as the choice of experts |
# | gradients | summed over the ranks that have the weight, divided by *all* ranks with samples |
# | imbalance | the busiest expert sets the pace; auxiliary loss, bias, or capacity and dropped tokens |
# | no tokens | a rank without tokens still calls every collective |
#
# As a script: `mpiexec -n 4 python scripts/experts.py` (a mesh of data and experts).
#
# **Next:** lesson 11 looks at the machine that all this runs on.
#
# ## References and further reading
#
# 1. T. Dao, D. Y. Fu, S. Ermon, A. Rudra and C. Ré, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", *NeurIPS* 2022, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135).
# 2. M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018, [arXiv:1805.02867](https://arxiv.org/abs/1805.02867).
# 3. H. Liu, M. Zaharia and P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023, [arXiv:2310.01889](https://arxiv.org/abs/2310.01889).
# 4. Llama team, "The Llama 3 Herd of Models", 2024, [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.2: context parallelism with 2p chunks, two for each rank, and all-gathered keys and values.
# 5. S. A. Jacobs and others, "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer Models", 2023, [arXiv:2309.14509](https://arxiv.org/abs/2309.14509).
# 6. N. Shazeer and others, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", *ICLR* 2017, [arXiv:1701.06538](https://arxiv.org/abs/1701.06538); D. Lepikhin and others, "GShard", 2020, [arXiv:2006.16668](https://arxiv.org/abs/2006.16668), which spreads experts over devices and has capacities.
# 7. NVIDIA, *Megatron-LM*, `megatron/core/distributed/distributed_data_parallel.py`, [github.com](https://github.com/NVIDIA/Megatron-LM).
# 8. W. Fedus, B. Zoph and N. Shazeer, "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity", *Journal of Machine Learning Research* 23, 2022, [arXiv:2101.03961](https://arxiv.org/abs/2101.03961), section 2.2.
# 9. L. Wang, H. Gao, C. Zhao, X. Sun and D. Dai, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024, [arXiv:2408.15664](https://arxiv.org/abs/2408.15664).
# 10. DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, [arXiv:2412.19437](https://arxiv.org/abs/2412.19437), sections 2.1.2, 3.2, 3.3 and 4.2; sizes in [config.json](https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json) and [README_WEIGHTS.md](https://github.com/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md).
# 11. PyTorch, "torch.distributed.tensor", section on experimental features, [docs.pytorch.org](https://docs.pytorch.org/docs/stable/distributed.tensor.html).
