"""What the judges make of logs that come about too seldom to wait for."""

from __future__ import annotations

import pytest
from rank_by_rank.lesson_01.judge_messages import judge_shift
from rank_by_rank.lesson_09.judge_gossip import judge_gossip
from torch_mpi4py import RevokedError

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.message_log import LoggedCall, Observation


def call(name: str, peer: int, *, finished: bool = False, waited: bool = True) -> LoggedCall:
    kind = name.lower().removeprefix("i")
    return LoggedCall(kind, name, peer, 0, finished=finished, waited=waited)


def verdict(judge, *logs: list[LoggedCall], **more: int) -> str:
    errors = [RevokedError("freed") for _ in logs]
    with pytest.raises(WrongAnswer) as raised:
        judge(Observation([None] * len(logs), errors, list(logs)), **more)
    return raised.value.name


@pytest.mark.parametrize("send", ["send", "isend"])
def test_send_freed_by_the_partners_exit_is_a_deadlock(send):
    swept_away = [call(send, 2, finished=True), call("recv", 2)]
    logs = [[call(send, 1)], [call(send, 0)], [call(send, 3)], swept_away]
    assert verdict(judge_gossip, *logs) == "both-send-first"


@pytest.mark.parametrize("send", ["Send", "Isend"])
def test_send_freed_by_an_exit_in_a_ring_is_a_deadlock(send):
    logs = [[call(send, 1)], [call(send, 2)], [call(send, 0, finished=True), call("Recv", 1)]]
    assert verdict(judge_shift, *logs, nbytes=32) == "everyone-sends-first"


def test_rank_without_waited_sends_is_stuck_in_the_receive():
    logs = [
        [call("isend", rank ^ 1, finished=True, waited=False), call("recv", rank ^ 1)]
        for rank in range(4)
    ]
    assert verdict(judge_gossip, *logs) == "it-hangs: in a message"


@pytest.mark.parametrize("send", ["send", "isend"])
def test_rank_freed_second_may_have_received(send):
    swept_away = [call(send, 0, finished=True), call("recv", 0, finished=True)]
    logs = [[call(send, 1, finished=send == "isend")], swept_away]
    assert verdict(judge_gossip, *logs) == "both-send-first"


def test_ranks_that_all_received_are_not_stuck_in_the_first_send():
    received = [call("isend", 1, finished=True), call("recv", 1, finished=True), call("recv", 1)]
    assert verdict(judge_gossip, received, received) == "it-hangs: in a message"
