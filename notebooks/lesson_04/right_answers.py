"""Right answers to lesson 04 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "04.clipped_mean": {
        "by clip_grad_norm_": """
def clipped_mean(gradient, largest, group):
    mean = gradient / dist.get_world_size(group)
    dist.all_reduce(mean, group=group)
    parameter = torch.nn.Parameter(torch.zeros_like(mean))
    parameter.grad = mean
    torch.nn.utils.clip_grad_norm_([parameter], largest)
    return parameter.grad
""",
        "by renorm": """
def clipped_mean(gradient, largest, group):
    mean = gradient.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    return mean.unsqueeze(0).renorm(2, 0, largest).squeeze(0)
""",
    },
}
