"""A small lesson that keeps all rules, to be broken in one way at a time."""

GOOD = '''\
# %% [markdown]
# # 90 A lesson
#
# **The one idea.** There is one.
#
# **You will be able to** say so.
#
# **Prerequisites:** nothing.
#
# **Time.** It runs in 1 s (*measured here*). Allow 5 minutes to study it.

# %%
from course_lib.teaching import check

# %% [markdown]
# **Predict.** What is 2 + 2?

# %%
print(2 + 2)

# %% tags=["exercise"] exercise="90.double"
def double(x):
    """Return twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


# %% tags=["check"]
check("90.double")

# %% [markdown]
# Stuck? `hint("90.double")`, `solution("90.double")`.

# %% tags=["exercise"] exercise="90.total"
# %%px
def total(comm):
    """Return the sum of all ranks' numbers, each rank's own plus one."""
    ### BEGIN SOLUTION
    return comm.allreduce(comm.rank + 1)
    ### END SOLUTION


# %% tags=["check"]
check("90.total")

# %% [markdown]
# Stuck? `hint("90.total")`, `solution("90.total")`.

# %% [markdown]
# ## Recap
#
# | what | how |
# |---|---|
# | double | `2 * x` |
#
# ## Further reading
# - Nothing.
'''

# What can be executed without a cluster.
SHORT = """\
# %% [markdown]
# # 90 A lesson

# %%
print(2 + 2)

# %% tags=["raises-exception"]
1 / 0

# %%
print(3)
"""
