"""The process group of torch.distributed."""
