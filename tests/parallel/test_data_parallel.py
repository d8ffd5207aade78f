"""A data-parallel step over threads is the step of one device, and nothing is moved unseen."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.parallel import data_parallel as dp
from course_lib.parallel.data_parallel import Log, VirtualDevice, virtual_devices


@pytest.fixture(params=[1, 2, 4, 5])
def devices(request):
    made = virtual_devices(request.param)
    yield made
    for device in made:
        device.close()


@pytest.fixture
def four():
    made = virtual_devices(4)
    yield made
    for device in made:
        device.close()


def small_model() -> nn.Module:
    """A tied, a frozen and an unused parameter: the cases that are easily got wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.unused = nn.Parameter(torch.zeros(2))
    return model.double()


def data(samples: int):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (samples,), generator=generator)


@pytest.mark.parametrize("samples", [20, 13, 3, 1])
def test_steps_equal_steps_on_one_device(devices, samples) -> None:
    model = small_model().to(devices[0].place)
    alone = copy.deepcopy(model)
    before = copy.deepcopy(model)
    inputs, targets = (tensor.to(devices[0].place) for tensor in data(samples))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    other = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        loss = dp.data_parallel_step(model, F.cross_entropy, optimizer, inputs, targets, devices)
        other.zero_grad()
        expected = F.cross_entropy(alone(inputs), targets)
        expected.backward()
        other.step()
        # Float64 rounds at 1e-16; sums of some 20 terms of size 1 in another order.
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-14)
        for one, two in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
    assert not torch.equal(model[0].weight, before[0].weight)
    assert torch.equal(model[0].bias, before[0].bias)


def test_two_runs_are_bitwise_equal(four) -> None:
    inputs, targets = (tensor.to(four[0].place) for tensor in data(37))
    ends = []
    for _ in range(2):
        model = small_model().to(four[0].place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            dp.data_parallel_step(model, F.cross_entropy, optimizer, inputs, targets, four)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)


def test_parameter_used_only_on_other_devices_is_updated(four) -> None:
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

        def forward(self, inputs):
            scaled = self.always * inputs
            return scaled if inputs[0, 0] < 4 else scaled + self.sometimes

    model = Sometimes().to(four[0].place)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    inputs = torch.arange(8.0, device=four[0].place).reshape(8, 1)  # 4 to 7 are on devices 2 and 3
    dp.data_parallel_step(model, lambda out, _: out.sum(), optimizer, inputs, inputs, four)
    assert model.always.item() == 1 - sum(range(8))
    assert model.sometimes.item() == 1 - 4


def test_every_byte_is_counted(four) -> None:
    p, samples = 4, 20
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).to(four[0].place)
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = Log()
    inputs = torch.ones(samples, 6, device=four[0].place)
    targets = torch.zeros(samples, dtype=torch.int64, device=four[0].place)
    dp.data_parallel_step(model, F.cross_entropy, optimizer, inputs, targets, four, log)

    parameters = 4 * ((6 * 5 + 5) + (5 + 5) + (5 * 3 + 3))
    buffers = 4 * (5 + 5) + 8  # running mean and variance, and an int64 that counts batches
    frozen = 4 * 5
    assert log.bytes_of("parameters") == (p - 1) * parameters
    assert log.bytes_of("buffers") == (p - 1) * buffers
    assert log.bytes_of("inputs") == (samples - samples // p) * 6 * 4
    assert log.bytes_of("outputs") == (samples - samples // p) * 3 * 4
    assert log.bytes_of("output gradients") == log.bytes_of("outputs")
    assert log.bytes_of("gradients") == (p - 1) * (parameters - frozen)
    kinds = {copy.what for copy in log.copies}
    assert sum(log.bytes_of(kind) for kind in kinds) == sum(c.bytes for c in log.copies)
    from_master = ("parameters", "buffers", "inputs", "output gradients")
    assert log.bytes_out(0) == sum(log.bytes_of(kind) for kind in from_master)
    assert log.bytes_in(0) == log.bytes_of("outputs") + log.bytes_of("gradients")
    assert log.bytes_out(0) == sum(log.bytes_in(i) for i in (1, 2, 3))
    assert log.bytes_in(0) == sum(log.bytes_out(i) for i in (1, 2, 3))


def test_spans_have_device_and_order(four) -> None:
    log = Log()
    model = small_model().to(four[0].place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = (tensor.to(four[0].place) for tensor in data(13))
    dp.data_parallel_step(model, F.cross_entropy, optimizer, inputs, targets, four, log)
    order = ["replicate", "scatter", "forward", "gather", "loss", "scatter back", "backward"]
    order += ["reduce", "update"]
    assert {span.label for span in log.spans} == set(order)
    for label in order:
        busy = sorted(span.device for span in log.spans if span.label == label)
        assert busy == ([0, 1, 2, 3] if label in ("forward", "backward") else [0]), label
        assert log.seconds(label) > 0
    ends = [max(s.end for s in log.spans if s.label == label) for label in order]
    starts = [min(s.start for s in log.spans if s.label == label) for label in order]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_threads_run_concurrently(four) -> None:
    together = threading.Barrier(4)

    class Meets(nn.Module):
        def forward(self, inputs):
            together.wait(timeout=60)  # broken, and an error, unless all four are here at once
            return inputs

        def __deepcopy__(self, memo):
            return Meets()

    model = Meets()
    shards = dp.scatter(torch.ones(8, 2), four)
    outputs = dp.parallel_apply(dp.replicate(model, four), shards, four)
    assert [len(output) for output in outputs] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("samples", "sizes"), [(250, [63, 63, 63, 61]), (9, [3, 3, 3]), (8, [2] * 4), (2, [1, 1])]
)
def test_shards_have_sizes_of_torch_chunks(four, samples, sizes) -> None:
    batch = torch.arange(samples * 2.0).reshape(samples, 2).to(four[0].place)
    shards = dp.scatter(batch, four)
    assert [len(shard) for shard in shards] == sizes
    assert torch.equal(dp.gather(shards, four), batch)


def test_devices_share_no_memory(four) -> None:
    model = nn.Linear(2, 2).to(four[0].place)
    replicas = dp.replicate(model, four)
    assert replicas[0] is model
    pointers = {replica.weight.data_ptr() for replica in replicas}
    assert len(pointers) == 4
    batch = torch.zeros(8, 2, device=four[0].place)
    shards = dp.scatter(batch, four)
    batch.fill_(7)
    assert [shard.unique().tolist() for shard in shards] == [[7], [0], [0], [0]]


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_devices_use_one_thread_and_keep_the_callers_setting(four, restored_threads) -> None:
    torch.set_num_threads(3)
    counted = [device.submit(torch.get_num_threads).result(timeout=60) for device in four]
    assert counted == [1, 1, 1, 1]
    assert torch.get_num_threads() == 3


def test_no_grad_applies_to_device_threads(four) -> None:
    model = nn.Linear(2, 2).to(four[0].place)
    shards = dp.scatter(torch.ones(8, 2, device=four[0].place), four)
    replicas = dp.replicate(model, four)
    with torch.no_grad():
        assert not any(o.requires_grad for o in dp.parallel_apply(replicas, shards, four))
    assert all(o.requires_grad for o in dp.parallel_apply(replicas, shards, four))


def test_replica_error_names_its_device(four) -> None:
    class Picky(nn.Module):
        def forward(self, inputs):
            if inputs[0, 0] == 2:
                raise ArithmeticError("no twos")
            return inputs

    shards = dp.scatter(torch.arange(4.0).reshape(4, 1), four)
    with pytest.raises(ArithmeticError, match="no twos") as caught:
        dp.parallel_apply(dp.replicate(Picky(), four), shards, four)
    assert caught.value.__notes__ == ["on device 2, in forward"]
    # The threads are as good as before.
    assert four[2].submit(lambda: 7).result(timeout=60) == 7


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda devices: dp.scatter(torch.ones(0, 3), devices), ValueError, "no samples"),
        (lambda devices: dp.scatter(torch.tensor(1.0), devices), ValueError, "no samples"),
        (lambda devices: virtual_devices(0), ValueError, "at least 1"),
        (
            lambda devices: dp.parallel_apply([lambda x: (x, x)], [torch.ones(1)], devices),
            TypeError,
            "one tensor, not tuple",
        ),
    ],
)
def test_bad_argument_is_named_in_the_error(four, call, error, words) -> None:
    with pytest.raises(error, match=words):
        call(four)


def test_sparse_gradient_raises(four) -> None:
    model = nn.Embedding(5, 2, sparse=True)
    model.requires_grad_()
    devices = [VirtualDevice(0), VirtualDevice(1)]
    replicas = dp.replicate(model, devices)
    outputs = dp.parallel_apply(replicas, dp.scatter(torch.tensor([1, 2]), devices), devices)
    dp.apply_backward(outputs, [torch.ones_like(output) for output in outputs], devices)
    with pytest.raises(TypeError, match="sparse"):
        dp.reduce_gradients(replicas, devices)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch.nn.DataParallel needs two GPUs")
def test_gradients_equal_torch_data_parallel() -> None:
    gpus = list(range(torch.cuda.device_count()))
    devices = [VirtualDevice(i, f"cuda:{i}") for i in gpus]
    model = small_model().to("cuda:0")
    theirs = copy.deepcopy(model)
    inputs, targets = (tensor.to("cuda:0") for tensor in data(13))
    F.cross_entropy(nn.DataParallel(theirs, gpus)(inputs), targets).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    dp.data_parallel_step(model, F.cross_entropy, optimizer, inputs, targets, devices)
    for own, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-12, atol=1e-14)
