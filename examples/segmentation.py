"""Train a segmentation network with 40 % of the regions mislabelled and outlines unlabelled. Needs only torch.

python examples/segmentation.py            # about a minute on a CPU, offline
python examples/segmentation.py --smoke    # a smoke test of a few seconds
"""

import argparse
import math

import torch
from torch import Tensor, nn

from ogc import OGC

CLASSES = 6  # stripes at six angles
UNLABELLED = 255  # the value that many segmentation data sets use


def draw(n: int, *, wrong: float, seed: int) -> tuple[Tensor, Tensor]:
    """Draw striped discs on a striped background, and the class of each pixel: n -> (n, 1, 32, 32), (n, 32, 32)."""
    g = torch.Generator().manual_seed(seed)
    true = torch.randint(CLASSES, (2, n, 1, 1), generator=g)  # classes of the background and the disc
    another = (true + torch.randint(1, CLASSES, true.shape, generator=g)) % CLASSES
    named = torch.where(torch.rand(true.shape, generator=g) < wrong, another, true)

    y, x = torch.arange(32.0).view(32, 1), torch.arange(32.0)
    angle, phase = math.pi * true / CLASSES, 2 * math.pi * torch.rand(true.shape, generator=g)
    ground, disc = torch.sin(1.6 * (x * angle.cos() + y * angle.sin()) + phase)
    centre = torch.randint(10, 22, true.shape, generator=g)
    distance = torch.hypot(y - centre[0], x - centre[1]) - 9
    images = torch.where(distance < 0, disc, ground) + 0.5 * torch.randn(n, 32, 32, generator=g)
    labels = torch.where(distance < 0, named[1], named[0])
    labels[distance.abs() < 1] = UNLABELLED
    return images.unsqueeze(1), labels


def network() -> nn.Module:
    def conv(a: int, b: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, stride, padding=1), nn.BatchNorm2d(b), nn.ReLU()]

    body = [*conv(1, 32), *conv(32, 64, 2), *conv(64, 128, 2), *conv(128, 128)]
    return nn.Sequential(*body, nn.Conv2d(128, 16 * CLASSES, 1), nn.PixelShuffle(4))


def train(name: str, epochs: int) -> None:
    images, labels = draw(256, wrong=0.4, seed=0)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    criterion: nn.Module = nn.CrossEntropyLoss(ignore_index=UNLABELLED)
    if name == "CE+OGC":
        # Every pixel is a sample, so the queue is longer. There are few steps, so updates are more frequent. There are
        # few classes, so epsilon is small.
        criterion = OGC("ce", optimizer, queue_size=32768, every=8, epsilon=0.5, ignore_index=UNLABELLED)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(16):
            loss = criterion(model(images[batch]), labels[batch])  # logits (N, C, 32, 32), labels (N, 32, 32)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()

    model.eval()
    images, true = draw(256, wrong=0.0, seed=1)
    with torch.no_grad():
        right = (model(images).argmax(1) == true)[true != UNLABELLED]
    print(f"{name}: {right.float().mean():.1%} of the test pixels are classified correctly")
    if isinstance(criterion, OGC):
        print(f"tau {criterion.tau:.2f}, weight of the noisy normal {criterion.mixture.noisy_weight:.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="run a smoke test of a few seconds")
    smoke = parser.parse_args().smoke
    for name in ("CE", "CE+OGC"):
        train(name, epochs=1 if smoke else 20)
    if smoke:
        print("--smoke is too short for a comparison.")
    print("Next: replace draw() with your own images and masks. Pass the label of unlabelled pixels as ignore_index.")
    print("If tau stays at 1e7, or wrong labels are still memorised, lower epsilon or leave it out.")
