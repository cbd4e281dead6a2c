"""The loop compared with one written out by hand, and its errors when a value is not finite."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ogc.data.augment import IMAGENET
from ogc.training import Job, NonFinite, train
from ogc.training.history import SilentWatch
from ogc.training.run import Run, decay_at
from ogc.training.run_folder import LAST, NONFINITE, SAMPLES, read_part, read_tensors
from small_runs import StopAt, assert_equal_runs, features, feed, images, job, network, on_disk, recipe


def by_hand(one, *, clip_norm=None, average=None):
    """Train with cross entropy and SGD.

    Return the weights, their average, the last H and prediction of every sample, and the losses.
    """
    data, order = one.data[0], feed(one.data[0], seed=one.recipe.seed)
    weights = list(one.network.parameters())
    optimizer = torch.optim.SGD(weights, lr=1, momentum=0.9, weight_decay=one.recipe.weight_decay)
    averages, done = [value.detach().clone() for value in weights], 0
    H, predicted, losses = torch.full((len(data),), math.nan), torch.full((len(data),), -1), []
    for epoch in range(one.recipe.epochs):
        for step, index in enumerate(order.plan(epoch).order):
            optimizer.param_groups[0]["lr"] = one.recipe.lr_at(epoch, step / order.steps)
            logits = one.network(order(index, ()))
            loss = F.cross_entropy(logits, data.given[index])
            optimizer.zero_grad()
            loss.backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(weights, clip_norm)
            optimizer.step()
            decay = min(average or 0, (1 + done) / (10 + done))
            averages = [decay * old + (1 - decay) * new.detach() for old, new in zip(averages, weights, strict=True)]
            H[index] = F.cross_entropy(logits.detach(), data.given[index], reduction="none")
            predicted[index] = logits.argmax(1)
            losses.append(loss.item())
            done += 1
    return weights, averages, H, predicted, losses


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_loop_matches_training_by_hand(tmp_path, clip_norm):
    one = job(tmp_path, "ce", n=70, net=network(normed=False, drop=0), clip_norm=clip_norm, average=0.7)
    twin = job(None, "ce", n=70, net=network(normed=False, drop=0))
    [result] = train([one])
    _weights, averages, H, predicted, losses = by_hand(twin, clip_norm=clip_norm, average=0.7)
    tensors, samples = read_tensors(tmp_path / LAST)[0], read_tensors(tmp_path / SAMPLES)[0]
    for (name, value), average in zip(twin.network.named_parameters(), averages, strict=True):
        assert torch.allclose(tensors[f"network.{name}"], value, atol=1e-6)
        assert torch.allclose(tensors[f"averaged.{name}"], average, atol=1e-6)
    assert torch.allclose(samples["H"], H, atol=1e-6, equal_nan=True)
    assert torch.equal(samples["predicted"], predicted)
    for epoch, found in enumerate(result["epochs"]):
        assert found["loss"] == pytest.approx(sum(losses[4 * epoch : 4 * epoch + 4]) / 4, abs=1e-6)
        assert found["lr"] == one.recipe.lr_at(epoch, 3 / 4)


def test_accumulated_gradients_equal_those_of_the_batch(tmp_path):
    for parts in (1, 4):
        train([job(tmp_path / str(parts), "gce", net=network(normed=False, drop=0), accumulate=parts)])
    full, parts = (read_tensors(tmp_path / name / LAST)[0] for name in ("1", "4"))
    for name, value in full.items():
        if name.startswith(("network", "averaged", "samples")):
            assert torch.allclose(value, parts[name], atol=1e-6), name


def test_averages_move_faster_at_first():
    assert decay_at(0.999, 0) == 0.1
    assert decay_at(0.999, 10**6) == 0.999
    assert decay_at(0.5, 20) == 0.5


def test_images_on_disk_and_in_memory_train_alike(tmp_path, monkeypatch):
    """Images on disk are prefetched by a thread and arrive in order."""
    monkeypatch.setattr("ogc.training.feed.statistics", lambda inputs: IMAGENET)
    for name, place in (("memory", lambda data: data), ("disk", on_disk)):
        data = place(images(80)), {"test": place(images(30, seed=1))}
        train([Job(recipe(augment="large", size=8), None, data, None, tmp_path / name, network())])
    assert_equal_runs(tmp_path / "memory", tmp_path / "disk")


def test_training_learns():
    [result] = train([job(None, "ce+ogc", n=400, epochs=8, lr=0.1)])
    assert result["summary"]["best"] > 0.9
    last = result["epochs"][-1]
    assert last["mixture"] is not None
    assert last["clean"] > last["memorised"]


def test_bf16_keeps_float32_weights(tmp_path):
    train([job(tmp_path, net=network(), precision="bf16")])
    tensors = read_tensors(tmp_path / LAST)[0]
    assert tensors["network.0.weight"].dtype == torch.float32


def test_global_random_state_is_unchanged():
    before = torch.get_rng_state()
    train([job(net=network(), epochs=1)])
    assert torch.equal(torch.get_rng_state(), before)


class InsertNaN(StopAt):
    """Insert NaN into the next batch instead of stopping."""

    def __init__(self, one, epoch, step):
        super().__init__(epoch, step)
        self.batch = feed(one.data[0], seed=0).plan(epoch - 1).order[step]
        self.inputs = one.data[0].inputs

    def moved(self, run, *, epoch, step, images_per_second):
        if (epoch + 1, step) == self.at:
            self.inputs[self.batch[7]] = math.nan


@pytest.mark.parametrize("method", ["ce", "ce+ogc", "js"])
def test_nonfinite_loss_ends_the_run(tmp_path, method):
    one = job(tmp_path, method)
    watch = InsertNaN(one, 2, 3)
    with pytest.raises(NonFinite) as info:
        train([one], watch=watch, save_every=0)
    message = str(info.value)
    assert "The loss is nan at step 4 of epoch 2" in message
    assert f"The last good checkpoint is in {tmp_path}." in message
    ids = [one.data[0].ids[i] for i in watch.batch]
    path = tmp_path / NONFINITE
    assert message.endswith(f"Samples of the batch: {', '.join(ids[:10])} and 6 more (all of them in {path}).")
    assert info.value.batch == {"epoch": 2, "step": 4, "samples": ids}
    assert read_part(path).items() >= info.value.batch.items()
    tensors, facts = read_tensors(tmp_path / LAST)
    assert (facts["epoch"], facts["step"]) == (1, 3)
    assert all(value.isfinite().all() for name, value in tensors.items() if name.startswith(("network", "averaged")))


def test_error_names_samples_with_bad_inputs(tmp_path):
    one = job(tmp_path, "gce")
    one.data[0].inputs[17, 0] = math.inf
    with pytest.raises(NonFinite) as info:
        train([one])
    assert "image 17" in info.value.batch["samples"]
    assert "checkpoint" not in str(info.value)


class SteepNetwork(nn.Module):
    """A network with a finite loss but a non-finite gradient at one of its steps."""

    def __init__(self, step):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = nn.Linear(192, 3)
        self.step, self.calls = step, 0

    def forward(self, inputs):
        self.calls += self.training
        steep = (0 * self.layer.bias).sqrt() if self.training and self.calls == self.step else 0
        return self.layer(inputs) + steep


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("save_every", [0, 60])
@pytest.mark.parametrize("step", [8, 10])
def test_nonfinite_gradient_ends_the_run(tmp_path, step, save_every, average):
    """It is found before a save, and the error names its own batch, not the next one."""
    one = job(tmp_path, "ce", average=average)._replace(network=SteepNetwork(step))
    with pytest.raises(NonFinite, match=f"The gradient is not finite at step {step - 5} of epoch 2, though") as info:
        train([one], save_every=save_every)
    batch = feed(one.data[0], seed=0).plan(1).order[step - 6]
    assert info.value.batch["samples"] == [one.data[0].ids[i] for i in batch]
    assert ("last good checkpoint" in str(info.value)) == (save_every == 0) == (tmp_path / LAST).exists()
    if save_every == 0:
        tensors, facts = read_tensors(tmp_path / LAST)
        assert (facts["epoch"], facts["step"]) == (1, step - 6)
        assert all(value.isfinite().all() for name, value in tensors.items() if name.startswith("network"))


def test_nonfinite_weights_at_the_end_of_an_epoch():
    """Recorded from a snapshot, as in the engine."""
    run = Run(job(None, "ce"), device=torch.device("cpu"))
    run.epoch = 1
    bad = replace(run.snapshot(), weights=lambda: {f"network.{name}": value / 0 for name, value in run.state().items()})
    with pytest.raises(NonFinite, match="The gradient is not finite at step 5 of epoch 1"):
        run.record(bad, 1.0)
    assert run.history == []


def test_nonfinite_initial_weights():
    one = job(None, "ce")._replace(network=nn.Linear(192, 3))
    nn.init.constant_(one.network.weight, math.nan)
    with pytest.raises(NonFinite, match=r"The weights are not finite before epoch 1 .* may help\.$"):
        train([one])


def test_nonfinite_run_does_not_affect_others(tmp_path):
    broken, intact = job(tmp_path / "broken", "ce"), job(tmp_path / "intact", "ce")
    broken.data[0].inputs[17, 0] = math.nan
    with pytest.raises(NonFinite) as info:
        train([broken, intact])
    assert "image 17" in info.value.batch["samples"]
    assert (tmp_path / "intact" / "result.json").exists()
    assert not (tmp_path / "broken" / "result.json").exists()


class RulesOutLastClass(nn.Module):
    """A network that gives the last class the probability 0."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 3)

    def forward(self, inputs):
        return self.layer(inputs).index_fill(1, torch.tensor([2]), -math.inf)


def test_unused_class_may_have_probability_0():
    data = features(60)
    keep = data.given < 2
    remaining = replace(data, inputs=data.inputs[keep], given=data.given[keep], ids=range(int(keep.sum())), true=None)
    [result] = train([Job(recipe("gce", epochs=1), None, (remaining, {}), None, None, RulesOutLastClass())])
    assert math.isfinite(result["epochs"][0]["loss"])
    assert result["summary"] == {"set": None}


@pytest.mark.parametrize(("save_every", "steps_seen"), [(0, 1), (60, 5)])
def test_nonfinite_loss_without_a_check_at_every_step(tmp_path, monkeypatch, save_every, steps_seen):
    """As on a GPU: it is found before a save, or at the epoch's end."""
    monkeypatch.setattr("ogc.training.loop.require_finite", lambda *_: None)
    watch = CountSteps()
    with pytest.raises(NonFinite, match="The loss is inf at step 1 of epoch 1"):
        train([job(tmp_path, "ce")._replace(network=RulesOutLastClass())], watch=watch, save_every=save_every)
    assert watch.steps == steps_seen
    assert not (tmp_path / LAST).exists()


class CountSteps(SilentWatch):
    steps = 0

    def moved(self, run, *, epoch, step, images_per_second):
        self.steps += 1
