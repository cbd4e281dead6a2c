"""Train with the Hugging Face Trainer on sentences with 40 % wrong topics: first with CE, then with OGC.

pip install ".[huggingface]"
python examples/huggingface_text.py            # a minute on a CPU, offline
python examples/huggingface_text.py --smoke    # a smoke test of a few seconds
"""

import argparse
import random
import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

from ogc import OGC
from ogc.integrations.huggingface import loss

TOPICS = {
    "sport": "match goal team coach league score player win season final",
    "food": "soup bread recipe taste oven pepper dinner sauce cheese fresh",
    "money": "bank price market share loan tax profit budget invest rate",
    "travel": "hotel flight beach ticket island tour luggage airport visa map",
    "health": "doctor sleep virus clinic pain diet vaccine heart nurse cure",
}
TOPICS = {name: words.split() for name, words in TOPICS.items()}
FILLERS = [
    a + b for a in ("ba", "de", "fi", "go", "lu", "mi", "no", "pa") for b in ("ck", "ld", "mp", "nd", "rn", "st")
]
WORDS = [*FILLERS, *(word for words in TOPICS.values() for word in words)]
VOCABULARY = {word: i for i, word in enumerate(WORDS, start=1)}  # 0 is padding
NAMES = list(TOPICS)


def make(number, wrong=0.0):
    """Return (sentence, given topic, true topic) for each sample.

    A sentence has three words on its topic, one word on a random topic, and six filler words.
    """
    rows = []
    for _ in range(number):
        true, other, stray = random.choices(range(len(NAMES)), k=3)
        words = (
            random.sample(TOPICS[NAMES[true]], 3) + random.sample(TOPICS[NAMES[other]], 1) + random.sample(FILLERS, 6)
        )
        random.shuffle(words)
        rows.append((" ".join(words), stray if random.random() < wrong else true, true))
    return rows


def encode(rows):
    return [{"input_ids": [VOCABULARY[word] for word in text.split()], "labels": label} for text, label, _ in rows]


def train(epochs, folder, **settings):
    set_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(vocab_size=len(VOCABULARY) + 1, num_labels=len(NAMES), max_position_embeddings=16, **sizes)
    arguments = TrainingArguments(
        output_dir=folder,  # checkpoints contain OGC's state: train(resume_from_checkpoint=True) resumes exactly
        num_train_epochs=epochs,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=encode(train_rows),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
        **settings,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer, trainer.evaluate(encode(test_rows))["eval_accuracy"]


disable_progress_bar()
random.seed(0)
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="run a smoke test of a few seconds")
is_smoke = parser.parse_args().smoke
# Half of the given topics are random, and one in five of these is correct by chance.
train_rows, test_rows = make(300 if is_smoke else 2000, wrong=0.5), make(500)
wrong = torch.tensor([given != true for _, given, true in train_rows])
epochs = 2 if is_smoke else 25

with tempfile.TemporaryDirectory() as folder:
    _, accuracy = train(epochs, folder)
    print(f"CE      accuracy on clean test sentences {accuracy:.1%}")

    # The default queue of 4,096 samples is twice as long as this training set.
    criterion = OGC("ce", queue_size=256 if is_smoke else 2048, every=4 if is_smoke else 32)
    ogc_loss = loss(criterion)
    trainer, accuracy = train(epochs, folder, compute_loss_func=ogc_loss, callbacks=[ogc_loss])
    weight = float(criterion.mixture.noisy_weight)
    print(f"CE+OGC  accuracy on clean test sentences {accuracy:.1%}, ", end="")
    print(f"tau {float(criterion.tau):.3g}, weight of the noisy normal {weight:.1%} ", end="")
    print(f"({wrong.float().mean():.1%} of the topics are wrong)")

    found = trainer.predict(encode(train_rows))
    suspicion = criterion.noise_probability(torch.tensor(found.predictions), torch.tensor(found.label_ids))

worst = suspicion.argsort(descending=True)[: len(train_rows) // 4]
print(f"Of the {len(worst)} most suspicious labels, {wrong[worst].float().mean():.1%} are wrong. The worst three:")
for i in worst[:3].tolist():
    text, given, _ = train_rows[i]
    print(f"  {NAMES[given]:>7} given, {NAMES[found.predictions[i].argmax()]:>7} predicted: {text}")
if is_smoke:
    print("--smoke is too short for a comparison.")
print("Next: use the two lines with ogc_loss in your own Trainer. Its checkpoints then contain OGC's state.")
