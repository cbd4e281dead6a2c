"""Train with Lightning on digits with half of the labels wrong: first with CE, then with OGC.

pip install ".[lightning,cli]"
python examples/lightning_classifier.py     # a minute on a CPU, offline
"""

import argparse
import logging
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ogc import OGC
from ogc.data import load_digits
from ogc.integrations.lightning import OGCCallback
from ogc.models import mlp
from ogc.noise import symmetric

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="run a few epochs as a smoke test")
parser.add_argument("--out", help="folder for logs, checkpoints and the picture; nothing is written by default")
arguments = parser.parse_args()
EPOCHS = 6 if arguments.smoke else 120


class Classifier(pl.LightningModule):
    def __init__(self, criterion):
        super().__init__()
        self.network = mlp(64, 10)
        self.criterion = criterion  # a submodule, which Lightning saves, restores and moves

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        return self.criterion(self.network(inputs), labels)

    def test_step(self, batch, batch_idx):
        inputs, labels = batch
        self.log("accuracy", (self.network(inputs).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [EPOCHS // 3, 2 * EPOCHS // 3])]


def run(criterion, callbacks, folder):
    pl.seed_everything(0, verbose=False)
    model = Classifier(criterion)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        callbacks=callbacks,
        default_root_dir=folder,
        log_every_n_steps=10,
        accelerator="cpu",
        **quiet,
    )
    trainer.fit(model, DataLoader(TensorDataset(train_set.inputs, given), batch_size=128, shuffle=True))
    test = DataLoader(TensorDataset(test_set.inputs, test_set.given), batch_size=len(test_set))
    return trainer, trainer.test(model, test, verbose=False)[0]["accuracy"]


logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", module="lightning.*")  # about the number of workers, for example
train_set, others = load_digits()
test_set = others["test"]
given = torch.from_numpy(symmetric(train_set.given.numpy(), 0.5, num_classes=10))

with tempfile.TemporaryDirectory() as temporary:
    folder = arguments.out or temporary
    _, accuracy = run(nn.CrossEntropyLoss(), [], folder)
    print(f"CE      accuracy on clean test digits {accuracy:.1%}")
    criterion = OGC("ce")
    trainer, accuracy = run(criterion, [OGCCallback()], folder)
    print(f"CE+OGC  accuracy on clean test digits {accuracy:.1%}, tau {float(criterion.tau):.3g}, ", end="")
    print(f"weight of the noisy normal {float(criterion.mixture.noisy_weight):.1%}")
    if arguments.out:
        print(f"Histogram with the two normals: {trainer.log_dir}/ogc.png. Curves: tensorboard --logdir {folder}")
if arguments.smoke:
    print("--smoke is too short for a comparison.")
print('Next: in your module, self.criterion = OGC("ce"); in your Trainer, callbacks=[OGCCallback()].')
