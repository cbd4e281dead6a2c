"""The adapter with the real Trainer: training, logging, exact resuming, gradient accumulation and two processes."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ogc import OGC, losses
from ogc.clipping import Fixed

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from ogc.integrations.huggingface import loss  # noqa: E402

STEEPEST = 1e7  # tau of CE while nothing is clipped
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = {"vocab_size": 32, "max_position_embeddings": 8, "num_labels": 4, "initializer_range": 0.5, **SMALL}

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator:UserWarning")


def sentences(tokens: bool = False) -> list[dict[str, Any]]:
    """Make sentences of four words, the first of which determines the class, with a third of the labels replaced."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(32, (96, 4), generator=generator)
    labels = words % 4 if tokens else words[:, 0] % 4
    random = torch.randint(4, labels.shape, generator=generator)
    labels = torch.where(torch.rand(labels.shape, generator=generator) < 1 / 3, random, labels)
    if tokens:
        labels[:, 3] = torch.where(words[:, 0] < 20, -100, labels[:, 3])  # uneven from batch to batch
        labels[: len(labels) // 2, 1] = -100
    return [{"input_ids": w, "labels": y} for w, y in zip(words, labels, strict=True)]


def small_ogc(*, epsilon: float | None = 0.01, **settings: Any) -> OGC:
    return OGC("ce", every=2, queue_size=32, epsilon=epsilon, **settings)


def model_of(tokens: bool = False, dropout: float = 0.1) -> torch.nn.Module:
    torch.manual_seed(0)
    config = BertConfig(**CONFIG, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return (BertForTokenClassification if tokens else BertForSequenceClassification)(config)


def trainer_of(
    folder: Path,
    criterion: losses.Loss | None,
    *,
    tokens: bool = False,
    dropout: float = 0.1,
    callbacks: bool = True,
    more: tuple[TrainerCallback, ...] = (),
    **arguments: Any,
) -> Trainer:
    loss_func = None if criterion is None else loss(criterion)
    defaults = {"max_steps": 12, "per_device_train_batch_size": 8, "learning_rate": 5e-3, "save_strategy": "no"}
    defaults |= {"logging_steps": 4, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    return Trainer(
        model=model_of(tokens, dropout),
        args=TrainingArguments(output_dir=str(folder), **(defaults | arguments)),
        train_dataset=sentences(tokens),
        eval_dataset=sentences(tokens)[:24],
        compute_loss_func=loss_func,
        callbacks=[*([loss_func] if loss_func and callbacks else []), *more],
    )


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items() if isinstance(v, torch.Tensor)}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5, equal_nan=True)


def test_trains_and_logs_tau(tmp_path: Path) -> None:
    criterion = small_ogc()
    trainer = trainer_of(tmp_path, criterion, logging_steps=3)
    trainer.train()
    assert 0 < criterion.tau < 0.99 * STEEPEST
    assert criterion.steps == 12
    assert criterion.seen == 96
    assert criterion.highest_lr > 0  # the Trainer's optimizer, created after the criterion
    history = [row for row in trainer.state.log_history if "loss" in row]
    assert "noisy_weight" not in history[0]  # no fit yet, and NaN is not valid JSON
    assert history[-1]["tau"] == float(criterion.tau)
    assert history[-1]["noisy_weight"] == float(criterion.mixture.noisy_weight)


def test_evaluation_leaves_state_unchanged(tmp_path: Path) -> None:
    criterion = small_ogc()
    trainer = trainer_of(tmp_path, criterion)
    trainer.train()
    before = state_of(criterion)
    assert trainer.evaluate()["eval_loss"] > 0
    trainer.predict(trainer.eval_dataset)
    assert_same(state_of(criterion), before)


@pytest.mark.parametrize("restore_callbacks", [False, True])
def test_resumed_run_equals_uninterrupted_run(tmp_path: Path, restore_callbacks: bool) -> None:
    uninterrupted = small_ogc()
    trainer = trainer_of(tmp_path / "uninterrupted", uninterrupted)
    trainer.train()

    trainer_of(tmp_path / "parts", small_ogc(), save_strategy="steps", save_steps=5).train()
    moved = (tmp_path / "parts/checkpoint-5").rename(tmp_path / "moved")
    resumed = small_ogc()
    again = trainer_of(
        tmp_path / "parts",
        resumed,
        save_strategy="steps",
        save_steps=11,
        restore_callback_states_from_checkpoint=restore_callbacks,
    )
    again.train(resume_from_checkpoint=str(moved))
    assert_same(state_of(resumed), state_of(uninterrupted))
    assert_same(state_of(again.model), state_of(trainer.model))
    assert any("tau" in row for row in again.state.log_history if row["step"] == 12)


def test_resuming_without_state_warns_and_saves_from_then_on(tmp_path: Path) -> None:
    trainer_of(tmp_path, None, save_strategy="steps", save_steps=5).train()
    criterion = small_ogc()
    trainer = trainer_of(tmp_path, criterion, save_strategy="steps", save_steps=11)
    with pytest.warns(UserWarning, match=r"resume from has no ogc criterion state.*missing from `callbacks`"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert criterion.steps == 7
    saved = TrainerState.load_from_json(str(tmp_path / "checkpoint-12/trainer_state.json"))
    assert "OGCLoss" in saved.stateful_callbacks


@pytest.mark.filterwarnings("ignore:OGC clipped nothing")
def test_resuming_with_another_loss_is_rejected(tmp_path: Path) -> None:
    trainer_of(tmp_path, small_ogc(), max_steps=3, save_strategy="steps", save_steps=3).train()
    with pytest.raises(ValueError, match="belongs to another OGC"):
        trainer_of(tmp_path, OGC("gce"), max_steps=4).train(resume_from_checkpoint=True)


def test_best_checkpoint_restores_the_criterion(tmp_path: Path) -> None:
    criterion = small_ogc()
    steps = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    trainer = trainer_of(tmp_path, criterion, **steps, load_best_model_at_end=True, metric_for_best_model="number")
    numbers = iter([1.0, 3.0, 2.0])
    trainer.compute_metrics = lambda _: {"number": next(numbers)}
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-8")
    assert criterion.steps == 8


@pytest.mark.parametrize("tokens", [False, True], ids=["sentences", "tokens"])
def test_accumulated_micro_batches_equal_one_batch(tmp_path: Path, tokens: bool) -> None:
    """tau is fixed, since micro-batches would otherwise update it within a batch."""
    found = []
    for size, k in ((8, 1), (2, 4)):
        criterion = small_ogc(epsilon=None, threshold=Fixed(1.5))
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": k, "optim": "sgd"}
        trainer = trainer_of(tmp_path, criterion, tokens=tokens, dropout=0.0, max_steps=6, **settings)
        trainer.train()
        assert criterion.steps == 6 * k  # each micro-batch counts as a step
        found.append(trainer)
    assert_close(state_of(found[1].model), state_of(found[0].model))
    one, many = ([row["loss"] for row in t.state.log_history if "loss" in row] for t in found)
    assert many == pytest.approx(one, rel=1e-4)


def test_loss_is_averaged_over_the_accumulation_window() -> None:
    criterion = small_ogc(follow_lr=False)
    loss_func = loss(criterion)
    type(loss_func).is_registered = True
    logits = torch.randn(3, 5, 4, requires_grad=True)
    labels = torch.tensor([[0, 1, -100, 2, 3]] * 3)
    value = loss_func({"logits": logits}, labels, num_items_in_batch=torch.tensor(24))
    expected = torch.nn.functional.cross_entropy(logits.movedim(-1, 1), labels, reduction="sum") / 24
    torch.testing.assert_close(value, expected)
    assert criterion.seen == 12
    mean = loss_func((logits,), labels)
    torch.testing.assert_close(mean, expected * 2)
    data_parallel = loss_func((logits,), labels, num_items_in_batch=torch.tensor([[12], [12]]))  # as in nn.DataParallel
    torch.testing.assert_close(data_parallel, expected)
    ignored = loss_func((logits,), torch.full((3, 5), -100), num_items_in_batch=0)
    assert ignored == 0


def test_other_losses_are_accepted(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, losses.GCE(q=0.7), max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_hyperparameter_trial_resets_the_criterion(tmp_path: Path) -> None:
    criterion = small_ogc()
    trainer = trainer_of(tmp_path, criterion, max_steps=3)
    with pytest.warns(UserWarning, match=r"OGC clipped nothing: it saw 24 samples in 3 steps"):
        trainer.train()
    trainer.compute_loss_func.on_train_begin(
        trainer.args,
        TrainerState(is_hyper_param_search=True),
        trainer.control,
        model=trainer.model,
        optimizer=trainer.optimizer,
    )
    assert criterion.steps == criterion.seen == criterion.highest_lr == 0


def test_missing_callback_warns(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, small_ogc(follow_lr=False), callbacks=False, max_steps=2)
    with pytest.warns(UserWarning, match=r"will not contain its state.* `callbacks="):
        trainer.train()


def test_invalid_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`ignore_index` should be -100.*Found `ignore_index = 0`"):
        loss(OGC("ce", ignore_index=0))
    with pytest.raises(ValueError, match=r"`reduction` should be mean"):
        loss(OGC("ce", reduction="sum"))
    with pytest.raises(ValueError, match=r"`criterion` should be an OGC"):
        loss(torch.nn.CrossEntropyLoss())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no `labels` in the batch"):
        loss(OGC("ce"))({"logits": torch.zeros(2, 3)}, None)
    with pytest.raises(ValueError, match=r"`label_smoothing_factor` should be 0.*Found `label_smoothing_factor = 0.1`"):
        trainer_of(tmp_path, small_ogc(), label_smoothing_factor=0.1).train()
    token_ids = {"bos_token_id": 0, "eos_token_id": 1}
    causal_model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, **token_ids)
    )
    trainer = trainer_of(tmp_path, small_ogc(), tokens=True)
    trainer.model = trainer.model_wrapped = trainer.callback_handler.model = causal_model
    with pytest.raises(ValueError, match=r"causal language model are shifted by one.*Found GPT2LMHeadModel"):
        trainer.train()


def test_missing_transformers_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", None)
    monkeypatch.delitem(sys.modules, "ogc.integrations.huggingface")
    with pytest.raises(ImportError, match=r'needs transformers.*pip install "torch-ogc\[huggingface\]"'):
        import ogc.integrations.huggingface  # noqa: F401


# --- two processes ---------------------------------------------------------------------------------------------------


def run_rank(folder: Path) -> None:
    """Run one rank: twelve steps, then the last seven again from a checkpoint.

    Labels are uneven, so the number of items matters. SGD, since Adam amplifies gradients that are pure rounding error.
    """
    found = {}
    for checkpoint in (None, str(folder / "checkpoint-5")):
        criterion = small_ogc()
        saving = {"save_strategy": "steps", "save_steps": 5, "ddp_backend": "gloo", "optim": "sgd"}
        trainer = trainer_of(folder, criterion, tokens=True, dropout=0.0, per_device_train_batch_size=4, **saving)
        trainer.train(resume_from_checkpoint=checkpoint)
        found[str(checkpoint is None)] = {**state_of(criterion), **state_of(trainer.model)}
    torch.save(found, folder / f"rank{trainer.args.process_index}.pt")


@pytest.mark.slow
def test_two_processes_agree_with_each_other_and_with_one(tmp_path: Path) -> None:
    from children import fork  # not at the top: the processes run this file without tests/ in their path
    from small_runs import finish

    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))
    finish([fork(__file__, tmp_path, env=world | rank) for rank in ranks])
    runs = [run for rank in range(2) for run in torch.load(tmp_path / f"rank{rank}.pt", weights_only=True).values()]

    criterion = small_ogc()
    trainer = trainer_of(tmp_path / "one", criterion, tokens=True, dropout=0.0, optim="sgd")
    trainer.train()
    assert criterion.tau < 0.99 * STEEPEST
    one = {**state_of(criterion), **state_of(trainer.model)}
    for run in runs:
        assert_close(run, one)
        assert_same(run, runs[0])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]))
