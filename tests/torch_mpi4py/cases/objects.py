"""Python objects of any size travel by the object collectives."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from tests.ranks import case


def thing(rank: int) -> dict:
    return {"rank": rank, "text": "x" * (1 + 1000 * rank), "tensor": torch.full((rank,), rank)}


def check(actual: dict, rank: int) -> None:
    expected = thing(rank)
    assert torch.equal(actual.pop("tensor"), expected.pop("tensor"))
    assert actual == expected


def case_all_gather_object(rank, size):
    found = [None] * size
    dist.all_gather_object(found, thing(rank))
    for r in range(size):
        check(found[r], r)


def case_broadcast_object_list(rank, size):
    for root in range(size):
        objects = [thing(rank), "word", None] if rank == root else [None] * 3
        dist.broadcast_object_list(objects, src=root)
        check(objects[0], root)
        assert objects[1:] == ["word", None]


def case_gather_object(rank, size):
    for root in range(size):
        found = [None] * size if rank == root else None
        dist.gather_object(thing(rank), found, dst=root)
        if rank == root:
            for r in range(size):
                check(found[r], r)


def case_scatter_object_list(rank, size):
    for root in range(size):
        objects = [thing(r) for r in range(size)] if rank == root else None
        output = [None]
        dist.scatter_object_list(output, objects, src=root)
        check(output[0], rank)


@case(sizes=(2, 3, 4))
def case_send_and_recv_object_list(rank, size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that pickles are trusted
        if rank == 0:
            for peer in range(1, size):
                dist.send_object_list([thing(3), peer], peer)
        else:
            objects = [None, None]
            assert dist.recv_object_list(objects, src=0) == 0
            check(objects[0], 3)
            assert objects[1] == rank
