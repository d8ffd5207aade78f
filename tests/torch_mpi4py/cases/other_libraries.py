"""Libraries that stand on torch.distributed give the same results here as on gloo.

They are not part of the course: ``make test-others`` installs them into a folder of its own.
Each is imported where it is used, as that takes seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_lib.training.vision import declare_missing_operators
from tests.ranks import case
from tests.torch_mpi4py.beside_gloo import TIMEOUT, same_as_gloo, values_of
from tests.torch_mpi4py.helpers import raises
from tests.torch_mpi4py.serial import CLASSES, INPUTS, mlp, sgd, shard

declare_missing_operators()  # torchmetrics imports torchvision, whose operators may not load

own_group = case(group=False, seconds=180)
ROWS = 44  # not a multiple of what 3 ranks take in a step: the last batches are uneven


def rows() -> TensorDataset:
    """Return the same data on each rank."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(CLASSES, (ROWS,), generator=generator))


# --- Accelerate ---------------------------------------------------------------------------


@contextlib.contextmanager
def forgotten_accelerator() -> Iterator[None]:
    """Let the next Accelerator look at the default group again: the process keeps what it saw."""
    from accelerate.state import AcceleratorState, GradientState

    try:
        yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@forgotten_accelerator()
def train_with_accelerate(folder: Path):
    """Train with shards of the data, clipped and accumulated gradients; return what all know."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == dist.get_world_size()
    assert accelerator.process_index == dist.get_rank()
    model = mlp(seed=1 + dist.get_rank())
    parts = model, sgd(model), DataLoader(rows(), batch_size=4)
    model, optimizer, batches = accelerator.prepare(*parts)
    losses = []
    for _ in range(2):
        for inputs, labels in batches:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean"))
    answers = [
        accelerator.gather_for_metrics((model(inputs).argmax(1), labels))
        for inputs, labels in batches
    ]
    accelerator.wait_for_everyone()
    uneven = torch.full((dist.get_rank() + 1,), float(dist.get_rank()))
    padded = accelerator.gather(accelerator.pad_across_processes(uneven, pad_index=-1))
    accelerator.save_state(folder / "state")
    accelerator.wait_for_everyone()  # the main process has written it
    before = values_of(accelerator.unwrap_model(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(folder / "state")
    torch.testing.assert_close(values_of(accelerator.unwrap_model(model)), before, rtol=0, atol=0)
    return losses, answers, padded, before


@own_group
def case_accelerate(rank, size):
    same_as_gloo(train_with_accelerate, rank, size)


@case(sizes=(2, 3, 4), group=False, seconds=180)
def case_accelerate_rejects_the_backend_name(rank, size):
    """Why README.md says to initialise first; what it says there is what runs here."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    options = InitProcessGroupKwargs(backend="mpi4py", init_method="mpi://")
    with forgotten_accelerator(), raises(ValueError, "mpi4py is not available"):
        Accelerator(cpu=True, kwargs_handlers=[options])
    with forgotten_accelerator():
        dist.init_process_group("mpi4py", init_method="mpi://", timeout=TIMEOUT)
        accelerator = Accelerator(cpu=True)
        assert (accelerator.process_index, accelerator.num_processes) == (rank, size)
        total = accelerator.reduce(torch.tensor([rank + 1.0]), "sum")
        assert total.item() == size * (size + 1) / 2


# --- Lightning ----------------------------------------------------------------------------


def options_of_ddp() -> dict[str, Any]:
    """Return options that leave Lightning's DDP on the backend of the default group."""
    return {"process_group_backend": dist.get_backend(), "broadcast_buffers": False}


@own_group
def case_fabric(rank, size):
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    def program(folder: Path):
        fabric = Fabric(accelerator="cpu", devices=size, strategy=DDPStrategy(**options_of_ddp()))
        fabric.launch()
        assert (fabric.global_rank, fabric.world_size) == (rank, size)
        model = mlp(seed=1 + rank)
        model, optimizer = fabric.setup(model, sgd(model))
        batches = fabric.setup_dataloaders(DataLoader(rows(), batch_size=4))
        losses = []
        for _ in range(2):
            for step, (inputs, labels) in enumerate(batches):
                with fabric.no_backward_sync(model, enabled=step % 2 == 0):
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    fabric.backward(loss)
                if step % 2:
                    fabric.clip_gradients(model, optimizer, max_norm=1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean"))
        gathered = fabric.all_gather({"rank": torch.tensor([rank]), "loss": losses[-1]})
        said = fabric.broadcast({"from": rank}, src=size - 1)
        fabric.barrier()
        fabric.save(folder / "model.ckpt", {"model": model, "optimizer": optimizer})
        other = fabric.setup_module(mlp(seed=9))
        fabric.load(folder / "model.ckpt", {"model": other})
        torch.testing.assert_close(values_of(other), values_of(model), rtol=0, atol=0)
        return losses, values_of(model), gathered, said

    same_as_gloo(program, rank, size)


@case(group=False, seconds=180)
def case_fabric_creates_the_process_group(rank, size):
    """Lightning passes the backend's name on; the ranks are those of mpiexec."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    ddp = DDPStrategy(process_group_backend="mpi4py", init_method="mpi://", timeout=TIMEOUT)
    fabric = Fabric(accelerator="cpu", devices=size, strategy=ddp)
    fabric.launch()
    assert dist.get_backend() == "mpi4py"
    total = fabric.all_reduce(torch.tensor([rank + 1.0]), reduce_op="sum")
    assert total.item() == size * (size + 1) / 2


@own_group
def case_lightning_trainer(rank, size):
    """Fit, validate with a metric, and test from the checkpoint that it wrote."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy
    from torchmetrics.classification import MulticlassAccuracy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(seed=1 + rank)
            self.accuracy = MulticlassAccuracy(CLASSES)

        def training_step(self, batch, index):
            inputs, labels = batch
            loss = nn.functional.cross_entropy(self.net(inputs), labels)
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch, index):
            inputs, labels = batch
            self.accuracy(self.net(inputs), labels)
            self.log("accuracy", self.accuracy, on_epoch=True)

        test_step = validation_step

        def configure_optimizers(self):
            return sgd(self)

    def program(folder: Path):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=size,
            strategy=DDPStrategy(**options_of_ddp()),
            max_epochs=2,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        trainer.fit(module, DataLoader(rows(), batch_size=4), DataLoader(rows(), batch_size=4))
        metrics = dict(trainer.callback_metrics)
        path = trainer.checkpoint_callback.best_model_path
        tested = trainer.test(ckpt_path=path, dataloaders=DataLoader(rows(), batch_size=4))
        return metrics, values_of(module.net), tested

    same_as_gloo(program, rank, size)


# --- torchmetrics -------------------------------------------------------------------------


@own_group
def case_torchmetrics(rank, size):
    """States that are summed, averaged, and gathered from ranks with different numbers of rows."""
    from torchmetrics import MaxMetric, MeanMetric, MetricCollection
    from torchmetrics.classification import MulticlassAUROC, MulticlassConfusionMatrix

    def scores(step: int, r: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = shard(step, r)
        kept = slice(0, len(labels) - (r + step) % 3)
        return mlp()(inputs).detach().softmax(1)[kept], labels[kept]

    def computed(shards: list[int]):
        metrics = MetricCollection([MulticlassAUROC(CLASSES), MulticlassConfusionMatrix(CLASSES)])
        mean, largest = MeanMetric().double(), MaxMetric()
        for step in range(3):
            for r in shards:
                predicted, labels = scores(step, r)
                metrics.update(predicted, labels)
                mean.update(predicted.amax(1))
                largest.update(float(r * 10 + step))
        return metrics.compute(), mean.compute(), largest.compute()

    def program(folder: Path):
        return computed([rank])

    found = same_as_gloo(program, rank, size)
    torch.testing.assert_close(found, computed(list(range(size))), rtol=1e-6, atol=1e-6)
