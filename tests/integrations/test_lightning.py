"""Lightning with the real Trainer: training, logging, pictures, exact resuming and two processes."""

import importlib
import logging
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.tuner import Tuner
from torch import nn

from ogc import OGC
from ogc.clipping import Fixed
from ogc.integrations import lightning as adapter
from ogc.integrations.lightning import OGCCallback
from small_runs import two_processes

LIGHTNING_WARNINGS = [
    ".*isinstance.treespec, LeafSpec",
    "You defined a .validation_step. but have no .val_dataloader",
    "Be aware that when using .ckpt_path., callbacks used to create the checkpoint",
    "Checkpoint directory .* exists and is not empty",
]
pytestmark = [
    pytest.mark.pictures,
    *(pytest.mark.filterwarnings(f"ignore:{message}") for message in LIGHTNING_WARNINGS),
]
STEEPEST = 1e7  # tau of CE while nothing is clipped


class Classifier(pl.LightningModule):
    def __init__(self, lr: float = 0.1, epsilon: float = 0.3):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.network = nn.Linear(8, 4)
        self.criterion = OGC("ce", every=4, queue_size=64, epsilon=epsilon)

    def loss(self, batch):
        inputs, labels = batch
        return self.criterion(self.network(inputs), labels)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 48)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Batches:
    """16 batches, with 40 % of the labels replaced. Stateful, so that Lightning can resume in mid-epoch.

    ``part`` of ``parts`` is one process's share of each batch.
    """

    def __init__(self, part=0, parts=1):
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(16, 16, 8, generator=generator)
        labels = (inputs @ torch.randn(8, 4, generator=generator)).argmax(2)
        wrong = torch.rand(16, 16, generator=generator) < 0.4
        labels = torch.where(wrong, torch.randint(4, (16, 16), generator=generator), labels)
        self.data = [(x.chunk(parts)[part], y.chunk(parts)[part]) for x, y in zip(inputs, labels, strict=True)]
        self.start = self.at = 0

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        start, self.start = self.start, 0
        for at in range(start, len(self.data)):
            self.at = at
            yield self.data[at]

    def state_dict(self):
        return {"start": (self.at + 1) % len(self.data)}

    def load_state_dict(self, state):
        self.start = state["start"]


def trainer_in(folder, *callbacks, max_epochs=3, logger=False, checkpoints=False, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "devices": 1}
    options = quiet | {"default_root_dir": folder, "log_every_n_steps": 5} | options
    callbacks = callbacks or (OGCCallback(picture=False),)
    return pl.Trainer(
        callbacks=list(callbacks), max_epochs=max_epochs, logger=logger, enable_checkpointing=checkpoints, **options
    )


def state_of(module):
    return {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    assert {"network.weight", "criterion.queue", "criterion.solution", "criterion.steps"} <= one.keys()
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], equal_nan=True, **tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.fixture(scope="module")
def uninterrupted():
    return fitted(Batches())


def fitted(batches, **options):
    module = Classifier()
    trainer_in(None, **options).fit(module, batches)
    return state_of(module)


def test_trains_and_tau_moves(uninterrupted):
    module = Classifier()
    module.load_state_dict(uninterrupted, strict=False)
    assert int(module.criterion.steps) == 48
    assert 0 < float(module.criterion.tau) < STEEPEST
    assert 0.1 < float(module.criterion.mixture.noisy_weight) < 0.5  # 0.3 are wrong
    logits, labels = zip(*[(module.network(x), y) for x, y in Batches().data], strict=True)
    assert (torch.cat(logits).argmax(1) == torch.cat(labels)).float().mean() > 0.55  # at most 0.7, with 0.3 wrong


def test_logs_when_lightning_logs(tmp_path):
    module = Classifier()
    trainer = trainer_in(tmp_path, OGCCallback(), logger=CSVLogger(tmp_path, flush_logs_every_n_steps=1))
    trainer.fit(module, Batches())
    head, *lines = (Path(trainer.log_dir) / "metrics.csv").read_text().split()
    rows = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    assert [int(row["step"]) for row in rows] == [*range(4, 48, 5)]
    normals = [f"ogc/{which}_{what}" for which in ("clean", "noisy") for what in ("mean", "std")]
    assert set(rows[0]) == {"epoch", "step", "ogc/tau", "ogc/noisy_weight", *normals}
    assert float(rows[-1]["ogc/tau"]) < float(rows[0]["ogc/tau"])
    assert all(float(row["ogc/tau"]) > 0 for row in rows)
    assert not any("nan" in line for line in lines)  # the first has no fit yet
    assert (Path(trainer.log_dir) / "ogc.png").read_bytes().startswith(b"\x89PNG")


def test_draws_picture_to_tensorboard(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = trainer_in(tmp_path, OGCCallback(), logger=TensorBoardLogger(tmp_path))
    trainer.fit(Classifier(), Batches())
    assert list(tmp_path.rglob("*.png")) == [Path(trainer.log_dir) / "ogc.png"]
    events = reading.EventAccumulator(trainer.log_dir).Reload()
    assert events.Tags()["images"] == ["ogc"]
    assert [event.step for event in events.Scalars("ogc/tau")] == [*range(4, 48, 5)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler reads it
def test_several_criteria_are_logged_by_name(tmp_path):
    module = Classifier()
    module.other = torch.compile(OGC("fl", every=4, queue_size=64), backend="eager")
    first, module.loss = module.loss, lambda batch: first(batch) + module.other(module.network(batch[0]), batch[1])
    trainer = trainer_in(tmp_path, OGCCallback())
    trainer.fit(module, Batches())
    assert {"ogc/criterion/tau", "ogc/other/tau"} <= trainer.callback_metrics.keys()
    assert {path.name for path in tmp_path.iterdir()} == {"ogc-criterion.png", "ogc-other.png"}


def test_reports_missing_matplotlib(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)
    trainer_in(tmp_path, OGCCallback(), max_epochs=1).fit(Classifier(), Batches())
    assert "matplotlib is missing: pip install matplotlib" in caplog.text
    assert not list(tmp_path.iterdir())


def test_unwritable_picture_does_not_stop_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="could not draw its picture"):
        trainer_in(tmp_path / "file" / "logs", OGCCallback(), max_epochs=1).fit(Classifier(), Batches())


def test_warns_if_training_was_too_short(tmp_path):
    module = Classifier()
    with pytest.warns(UserWarning, match=r"OGC clipped nothing: it saw 48 samples in 3 steps. .* queue has 64 samples"):
        trainer_in(tmp_path, OGCCallback(picture=False), max_steps=3).fit(module, Batches())


@pytest.mark.filterwarnings("ignore:OGC clipped nothing")
@pytest.mark.parametrize("stop", [3, 16, 26], ids=["before the first update", "at an epoch's end", "in mid-epoch"])
def test_resumes_exactly(stop, tmp_path, uninterrupted):
    save = ModelCheckpoint(tmp_path, every_n_train_steps=stop, save_weights_only=False)
    trainer_in(tmp_path, OGCCallback(picture=False), save, max_steps=stop, checkpoints=True).fit(
        Classifier(), Batches()
    )
    saved = save.best_model_path
    assert torch.load(saved, weights_only=True)["state_dict"]["criterion.steps"] == stop

    module = Classifier()
    trainer_in(tmp_path).fit(module, Batches(), ckpt_path=saved, weights_only=True)
    assert_same(state_of(module), uninterrupted)
    again = Classifier.load_from_checkpoint(saved, weights_only=True)
    assert int(again.criterion.steps) == stop
    assert again.hparams == {"lr": 0.1, "epsilon": 0.3}


def test_validation_leaves_state_unchanged(tmp_path, uninterrupted):
    module = Classifier()
    trainer = trainer_in(tmp_path, num_sanity_val_steps=2)
    trainer.fit(module, Batches(), Batches())
    assert_same(state_of(module), uninterrupted)
    trainer.validate(module, Batches(), verbose=False)
    assert_same(state_of(module), uninterrupted)


def test_each_micro_batch_counts_as_a_step(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(adapter, "_numbers", lambda criterion: read.append(criterion) or {"tau": 1.0})
    module = Classifier()
    trainer = trainer_in(tmp_path, OGCCallback(picture=False), accumulate_grad_batches=4, log_every_n_steps=2)
    trainer.fit(module, Batches())
    assert len(read) == 6  # once every two optimizer steps
    assert (int(module.criterion.steps), trainer.global_step) == (48, 12)
    assert float(module.criterion.tau) < STEEPEST


def test_manual_attach_needs_no_callback(uninterrupted):
    module = SelfAttaching()
    trainer_in(None, pl.Callback()).fit(module, Batches())
    assert_same(state_of(module), uninterrupted)


class SelfAttaching(Classifier):
    def configure_optimizers(self):
        configured = super().configure_optimizers()
        self.criterion.attach(configured["optimizer"])
        return configured


@pytest.mark.filterwarnings("ignore:Found 4 module.s. in eval mode")
def test_warns_in_evaluation_mode(tmp_path):
    module = Classifier().eval()
    with pytest.warns(UserWarning, match=r"`criterion` is in evaluation mode, so OGC does not update"):
        trainer_in(tmp_path, OGCCallback(picture=False), max_epochs=1).fit(module, Batches())
    assert int(module.criterion.steps) == 0


def test_lr_find_with_manual_attach(tmp_path, uninterrupted):
    module = SelfAttaching()
    trainer = trainer_in(tmp_path, OGCCallback(picture=False))
    Tuner(trainer).lr_find(module, Batches(), num_training=20, update_attr=False)
    assert (int(module.criterion.steps), float(module.criterion.highest_lr)) == (0, 0.0)
    trainer.fit(module, Batches())
    assert_same(state_of(module), uninterrupted)


class Manual(Classifier):
    """Two optimizers with manual optimization."""

    def __init__(self, follow=None):
        super().__init__()
        self.follow = follow
        self.automatic_optimization = False

    def configure_optimizers(self):
        parts = [[self.network.weight], [self.network.bias]]
        both = [torch.optim.SGD(part, lr=lr) for part, lr in zip(parts, (0.1, 0.05), strict=True)]
        if self.follow is not None:
            self.criterion.attach(both[self.follow])
        return both

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()


def test_manual_optimisation_and_two_optimizers(tmp_path):
    with pytest.raises(ValueError, match=r"There are 2 optimizers, and `criterion` can .* `self.criterion.attach"):
        trainer_in(tmp_path).fit(Manual(), Batches())
    for follow, lr in enumerate((0.1, 0.05)):
        module = Manual(follow)
        trainer = trainer_in(tmp_path)
        trainer.fit(module, Batches())
        assert float(module.criterion.highest_lr) == lr
        assert "ogc/tau" in trainer.callback_metrics
        assert float(module.criterion.tau) < STEEPEST
    module = Manual()
    module.criterion = OGC("ce", threshold=Fixed(2.0))  # follows no learning rate
    trainer_in(tmp_path, max_epochs=1).fit(module, Batches())


def test_second_fit_follows_its_own_optimizer(tmp_path):
    module = Classifier()
    first = trainer_in(tmp_path, max_epochs=1)
    first.fit(module, Batches())
    assert module.criterion._optimizer() is first.optimizers[0]
    second = trainer_in(tmp_path, max_epochs=1)
    second.fit(module, Batches())
    assert module.criterion._optimizer() is second.optimizers[0]


def test_module_without_ogc_raises(tmp_path):
    module = Classifier()
    module.criterion = nn.CrossEntropyLoss()
    with pytest.raises(
        ValueError, match=r"found no OGC in Classifier. To fix this, make it a submodule: `self.criterion = OGC"
    ):
        trainer_in(tmp_path).fit(module, Batches())


def test_checkpoint_without_ogc(tmp_path):
    """Strict loading names the missing buffers; without it the criterion starts fresh."""
    before = Classifier()
    before.criterion = nn.CrossEntropyLoss()
    trainer = trainer_in(tmp_path, pl.Callback(), max_epochs=1)
    trainer.fit(before, Batches())
    trainer.save_checkpoint(tmp_path / "before.ckpt")
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"criterion.queue\""):
        trainer_in(tmp_path).fit(Classifier(), Batches(), ckpt_path=tmp_path / "before.ckpt")
    module = Classifier()
    module.strict_loading = False
    trainer_in(tmp_path, max_epochs=2).fit(module, Batches(), ckpt_path=tmp_path / "before.ckpt")
    assert int(module.criterion.steps) == 16


def test_checkpoint_of_another_ogc_is_rejected(tmp_path):
    trainer = trainer_in(tmp_path, max_epochs=1)
    trainer.fit(Classifier(), Batches())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    module = Classifier()
    module.criterion = OGC("fl", every=4, queue_size=64)
    with pytest.raises(ValueError, match="belongs to another OGC"):
        trainer_in(tmp_path).fit(module, Batches(), ckpt_path=tmp_path / "last.ckpt")


def test_bf16(tmp_path):
    module = Classifier()
    trainer_in(tmp_path, precision="bf16-mixed").fit(module, Batches())
    assert module.criterion.queue.dtype == torch.float32
    assert float(module.criterion.tau) < STEEPEST


def test_compiled(tmp_path, uninterrupted, fresh_compiler):
    module = Classifier()
    trainer_in(tmp_path).fit(torch.compile(module, backend="eager"), Batches())
    assert_same(state_of(module), uninterrupted, rtol=1e-4, atol=1e-4)


def run_rank(folder):
    """Train as one rank: three epochs, and again from a checkpoint in the middle of the second."""
    for message in LIGHTNING_WARNINGS:
        warnings.filterwarnings("ignore", message)
    rank = os.environ["LOCAL_RANK"] = os.environ["RANK"]
    batches = {"part": int(rank), "parts": 2}
    options = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    module = Classifier()
    trainer_in(folder / "pictures", OGCCallback(), **options).fit(module, Batches(**batches))
    torch.save(state_of(module), folder / f"{rank}.pt")

    save = ModelCheckpoint(folder, filename="mid", every_n_train_steps=26)
    callbacks = OGCCallback(picture=False), save
    trainer_in(folder, *callbacks, max_steps=26, checkpoints=True, **options).fit(Classifier(), Batches(**batches))
    module = Classifier()
    trainer_in(folder, **options).fit(module, Batches(**batches), ckpt_path=folder / "mid.ckpt", weights_only=True)
    torch.save(state_of(module), folder / f"resumed-{rank}.pt")


@pytest.mark.slow
def test_two_processes_agree(tmp_path, uninterrupted):
    """With each other bit for bit, and with one process that has both halves up to the order of sums."""
    here = str(Path(__file__).parent)
    two_processes(f"sys.path.append({here!r}); from test_lightning import run_rank; run_rank(folder)", tmp_path)
    first, second, *resumed = [torch.load(tmp_path / f"{name}.pt") for name in ("0", "1", "resumed-0", "resumed-1")]
    assert_same(first, second)
    assert_same(first, uninterrupted, rtol=1e-4, atol=1e-4)
    for again in resumed:
        assert_same(again, first)
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["ogc.png"]


class KeepState(pl.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        self.state = {name: value.clone() for name, value in state_of(pl_module).items()}


def test_weight_averaging_does_not_affect_training(tmp_path, uninterrupted):
    """Lightning also averages buffers and leaves the averages in the module, but resumes from the current values."""
    save, keep = ModelCheckpoint(tmp_path, every_n_train_steps=26), KeepState()
    callbacks = OGCCallback(picture=False), EMAWeightAveraging(decay=0.9)
    trainer_in(tmp_path, *callbacks, save, max_steps=26, checkpoints=True).fit(Classifier(), Batches())
    callbacks = OGCCallback(picture=False), EMAWeightAveraging(decay=0.9)
    trainer_in(tmp_path, *callbacks, keep).fit(Classifier(), Batches(), ckpt_path=save.best_model_path)
    assert_same(keep.state, uninterrupted)


def test_missing_lightning_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "ogc.integrations.lightning")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(ImportError, match=r'needs Lightning, which is missing: pip install "torch-ogc\[lightning\]"'):
        importlib.import_module("ogc.integrations.lightning")
