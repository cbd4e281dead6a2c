"""Checkpoint errors are one sentence, and a failing disk keeps the last good checkpoint."""

import errno
import hashlib
import json
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from edited import edited
from ogc._files import remove_leftovers, write_json, write_whole
from ogc._tensors import write_tensors
from ogc.report.report import write_report
from ogc.training import CheckpointError, Interrupted, train
from ogc.training.run_folder import (
    BEST,
    LAST,
    METRICS,
    NONFINITE,
    PREPROCESSING,
    RESULT,
    RUN,
    SAMPLES,
    read,
    read_description,
    read_tensors,
)
from small_runs import StopAt, assert_equal_runs, features, job, network


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run that was stopped in its second epoch."""
    with pytest.raises(Interrupted):
        train([job(tmp_path / "run")], watch=StopAt(2, 2))
    return tmp_path / "run"


def resume_error(folder, **changes):
    with pytest.raises(CheckpointError) as info:
        train([job(folder, **changes)], resume=True)
    message = str(info.value)
    assert message.startswith(str(folder / LAST))
    assert "\n" not in message
    return message.removeprefix(str(folder / LAST)).strip()


def rewrite(path, tensors, facts):
    write_tensors(path, tensors, json.dumps(facts))


def test_different_recipe_is_rejected(stopped):
    assert resume_error(stopped, lr=0.5) == "belongs to another run: lr is 0.05 there and 0.5 here."
    assert resume_error(stopped, method="gce").startswith(
        "belongs to another run: method is 'ce+ogc' there and 'gce' here"
    )
    assert resume_error(stopped, seed=3).startswith("belongs to another run: seed is 0 there and 3 here")


def test_edited_description_is_rejected(stopped):
    content = json.loads((stopped / RUN).read_text())
    content["recipe"]["lr"] = 0.5
    (stopped / RUN).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"run\.json cannot be used: its contents do not match its checksum"):
        read_description(stopped)


def test_different_data_is_rejected(stopped):
    one = job(stopped)
    fix = r"Restore it, or train again\."
    message = rf"^The data has changed since .* was trained \(80 training samples, now 81\)\. {fix}$"
    with pytest.raises(CheckpointError, match=message):
        train([job(stopped, n=81)], resume=True)
    other = one.data[0].with_given(1 - one.data[0].given.clamp(max=1))
    with pytest.raises(CheckpointError, match=rf"\(labels of train\)\. {fix}$"):
        train([one._replace(data=(other, one.data[1]))], resume=True)


def test_changed_evaluation_set_is_rejected(stopped):
    one = job(stopped)
    sets = {name: part.subset(torch.arange(10)) for name, part in one.data[1].items()}
    with pytest.raises(CheckpointError, match=rf"has changed since .* \(labels of {next(iter(sets))}\)"):
        train([one._replace(data=(one.data[0], sets))], resume=True)


def test_set_named_like_the_training_set_does_not_replace_it(stopped):
    one = job(stopped)
    train_set, sets = one.data
    moved = replace(train_set, ids=train_set.ids[::-1])
    with pytest.raises(CheckpointError, match=r"has changed since .* \(ids of train\)"):
        train([one._replace(data=(moved, sets | {"train": train_set}))], resume=True)


def test_reordered_samples_are_rejected(stopped):
    one = job(stopped)
    other = replace(one.data[0], ids=one.data[0].ids[::-1])
    with pytest.raises(CheckpointError, match=r"has changed since .* \(ids of train\)"):
        train([one._replace(data=(other, one.data[1]))], resume=True)


def test_different_network_is_rejected(stopped):
    assert resume_error(stopped, net=network()).startswith("does not fit this run: Error(s) in loading state_dict for")


@pytest.mark.parametrize("fraction", [0, 0.0001, 0.3, 0.999])
def test_truncated_checkpoint_is_rejected(stopped, fraction):
    content = (stopped / LAST).read_bytes()
    (stopped / LAST).write_bytes(content[: int(fraction * len(content))])
    assert resume_error(stopped).startswith("cannot be used: ")


@pytest.mark.parametrize("content", [b"\x80\x04N.", b"PK\x03\x04" + bytes(200), bytes(1000), b"\xff" * 1000])
def test_file_in_another_format_is_rejected(stopped, content):
    (stopped / LAST).write_bytes(content)
    assert resume_error(stopped).startswith("cannot be used: ")


def test_safetensors_of_another_program_are_rejected(stopped):
    fix = "Restore it from a backup, use the version of ogc that wrote it, or train again."
    for metadata in (None, {"ogc": "{"}, {"ogc": '{"format": 1}'}):
        save_file({"a": torch.zeros(3)}, stopped / LAST, metadata=metadata)
        assert resume_error(stopped) == f"cannot be used: it has no checksum. {fix}"
    rewrite(stopped / LAST, {"a": torch.zeros(3)}, {"format": 99})
    assert resume_error(stopped) == f"cannot be used: expected format 2, found 99. {fix}"
    rewrite(stopped / LAST, {"a": torch.zeros(3)}, {"format": 2})
    fix = "Restore it from a backup, or train again."
    assert resume_error(stopped) == f"belongs to a different run than run.json next to it. {fix}"
    rewrite(stopped / LAST, {"a": torch.zeros(3)}, {"format": 2, "run": read_description(stopped).id})
    assert resume_error(stopped).startswith("does not fit this run: it has no 'belongs_to'.")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"checksum":"', b'"checksum":"G', "cannot be used: its contents do not match its checksum."),
        (b'"__metadata__"', b'"__metadato__"', "cannot be used: it has no checksum."),
        (b'"checksum"', b'"chacksum"', "cannot be used: it has no checksum."),
    ],
)
def test_damaged_header_is_rejected(stopped, old, new, message):
    content = (stopped / LAST).read_bytes()
    at = content.index(old)
    (stopped / LAST).write_bytes(content[:at] + new + content[at + len(new) :])
    assert resume_error(stopped).startswith(message)


def test_header_without_facts_is_rejected(stopped):
    header = b'{"__metadata__":{"checksum":"%b"}}' % (b"0" * 64)
    content = len(header).to_bytes(8, "little") + header
    digest = hashlib.sha256(content).hexdigest().encode()
    (stopped / LAST).write_bytes(content.replace(b"0" * 64, digest))
    assert resume_error(stopped).startswith("cannot be used: it has no 'ogc'.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optimizer.0.momentum_buffer", None),
        ("criterion.queue", "does not fit this run: "),
        ("samples.H", "does not fit this run: it has no 'samples.H'."),
        ("rng.0", "does not fit this run: it has no 'rng.0'."),
    ],
)
def test_missing_or_misshapen_tensor_is_rejected(stopped, name, message):
    tensors, facts = read_tensors(stopped / LAST)
    if message is not None:
        rewrite(stopped / LAST, {key: value for key, value in tensors.items() if key != name}, facts)
        assert resume_error(stopped).startswith(message)
    rewrite(stopped / LAST, {**tensors, name: torch.zeros(7, 7, 7)}, facts)
    if name != "rng.0":
        assert resume_error(stopped).startswith("does not fit this run: ")


def test_files_of_another_version_are_rejected(stopped):
    """The checksum is valid, but a field is missing or unknown."""
    tensors, facts = read_tensors(stopped / LAST)
    fewer = {name: value for name, value in facts["belongs_to"].items() if name != "accumulate"}
    rewrite(stopped / LAST, tensors, facts | {"belongs_to": fewer})
    fix = "use the version of ogc that wrote it, or train again."
    assert resume_error(stopped) == "belongs to another run: accumulate is None there and 1 here."
    fewer = {name: value for name, value in facts.items() if name != "history"}
    for other, reason in ((facts | {"history": [{"epoch": 1}]}, ".* argument.*"), (fewer, "it has no 'history'.")):
        rewrite(stopped / LAST, tensors, other)
        with pytest.raises(CheckpointError, match=f"{LAST} cannot be used: {reason} .*{fix}"):
            read(stopped)
    content = json.loads((stopped / RUN).read_text())
    del content["checksum"]
    required = ("samples", "classes", "inputs", "from_python", "network", "started")
    known = content["facts"]
    for change, reason in (
        ({"format": 3}, "expected format None, found 3."),
        ({"recipe": 3}, "'int' object has no attribute 'get'."),
        ({"recipe": {**content["recipe"], "colour": "red"}}, "There is no parameter 'colour'."),
        *(
            ({"facts": {name: value for name, value in known.items() if name != lost}}, f"it has no '{lost}'.")
            for lost in required
        ),
        *(
            ({"facts": {**known, name: 3}}, rf"Parameter `facts\.{name}` should be a list\.")
            for name in ("classes", "inputs", "from_python")
        ),
    ):
        write_json(stopped / RUN, content | change)
        with pytest.raises(CheckpointError, match=f"{RUN} cannot be used: {reason} .*{fix}"):
            read_description(stopped)
    write_json(stopped / RUN, content | {"facts": {name: known[name] for name in required}})
    assert read_description(stopped).facts["inputs"] == [192]
    (stopped / RUN).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"{RUN} cannot be used: it has no checksum. .* or train again"):
        read_description(stopped)


def test_facts_used_only_for_display_may_be_missing(tmp_path):
    train([job(tmp_path, epochs=1)])
    displayed = ("commit", "device", "versions", "noise", "batch", "steps")
    edited(tmp_path / RUN, lambda run: [run["facts"].pop(name) for name in displayed])
    write_report(tmp_path)
    assert read(tmp_path).facts["device"] == "unknown"


def test_invalid_data_checksums_are_rejected(tmp_path):
    train([job(tmp_path, epochs=1)])
    tensors, facts = read_tensors(tmp_path / SAMPLES)
    rewrite(tmp_path / SAMPLES, tensors, facts | {"sha256": 5})
    with pytest.raises(CheckpointError, match=f"{SAMPLES} cannot be used: 'int'") as info:
        read(tmp_path)
    assert isinstance(info.value.__cause__, TypeError), "kept for debugging"


def test_nothing_is_pickled(stopped):
    train([job(stopped)], resume=True)
    for path in stopped.iterdir():
        assert path.suffix in (".safetensors", ".json", ".jsonl")


def test_new_run_removes_files_of_the_old_one(tmp_path):
    train([job(tmp_path)])
    write_report(tmp_path)
    (tmp_path / "events.out.tfevents.1.2").touch()
    (tmp_path / NONFINITE).touch()
    assert len(list(tmp_path.iterdir())) == 16
    with pytest.raises(Interrupted):
        train([job(tmp_path, method="ce")], watch=StopAt(1, 2))
    assert {path.name for path in tmp_path.iterdir()} == {RUN, METRICS, PREPROCESSING, LAST}
    train([job(tmp_path, method="ce")], resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {RUN, METRICS, PREPROCESSING, LAST, BEST, SAMPLES, RESULT}
    train([job(tmp_path / "alone", method="ce")])
    assert_equal_runs(tmp_path, tmp_path / "alone")


def test_resuming_removes_the_nonfinite_record(stopped):
    (stopped / NONFINITE).touch()
    train([job(stopped)], resume=True)
    assert not (stopped / NONFINITE).exists()


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    for name in (".last.safetensors.4711", ".run.json.1"):
        (tmp_path / name).write_text("half")
    for name in (".mine.5", ".last.safetensors.old", ".run.json"):
        (tmp_path / name).write_text("not ours")
    train([job(tmp_path, epochs=1)])
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == {
        ".mine.5",
        ".last.safetensors.old",
        ".run.json",
    }
    remove_leftovers(tmp_path, ["mine"])
    assert not (tmp_path / ".mine.5").exists()


def test_full_disk_error_names_the_file_and_keeps_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as info:
        write_whole(path, b"new")
    assert info.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_run_resumes_after_the_disk_was_full(tmp_path, monkeypatch):
    """The last save is kept, and the run resumes once there is space."""
    train([job(tmp_path / "uninterrupted")])

    class FillDisk(StopAt):
        def moved(self, run, *, epoch, step, images_per_second):
            if (epoch + 1, step) == self.at:
                monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))

    with pytest.raises(OSError, match="full") as info:
        train([job(tmp_path / "run")], watch=FillDisk(2, 4), save_every=0)
    assert info.value.filename == str(tmp_path / "run" / LAST)
    monkeypatch.undo()
    facts = read_tensors(tmp_path / "run" / LAST)[1]
    assert (facts["epoch"], facts["step"]) == (1, 3)
    train([job(tmp_path / "run")], resume=True)
    assert_equal_runs(tmp_path / "uninterrupted", tmp_path / "run")


def test_unwritable_folder_fails_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        train([job(tmp_path / "file")])


def test_metrics_are_truncated_to_the_checkpoint(stopped):
    """Epochs trained after the last save are repeated."""
    lines = (stopped / METRICS).read_text()
    (stopped / METRICS).write_text(lines + lines.replace('"epoch": 1', '"epoch": 2') + '{"half')
    train([job(stopped)], resume=True)
    assert [json.loads(line)["epoch"] for line in (stopped / METRICS).read_text().splitlines()] == [1, 2, 3, 4]


def test_best_epoch_is_kept(tmp_path):
    [result] = train([job(tmp_path, epochs=12, average=None, lr=0.3)])
    tensors, facts = read_tensors(tmp_path / BEST)
    assert facts["epoch"] == result["summary"]["best_epoch"]
    assert facts["score"] == result["summary"]["best"]
    assert all(name.startswith("network.") for name in tensors)


def test_tied_weights_are_saved_averaged_and_resumed(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self.one = torch.nn.Linear(192, 192, bias=False)
                self.two = torch.nn.Linear(192, 192, bias=False)
                self.last = torch.nn.Linear(192, 3)
            self.two.weight = self.one.weight

        def forward(self, inputs):
            return self.last(self.two(self.one(inputs).relu()).relu())

    def tied(out):
        return job(out)._replace(network=Tied(), data=(features(80), {"test": features(30, seed=1)}))

    train([tied(tmp_path / "uninterrupted")])
    with pytest.raises(Interrupted):
        train([tied(tmp_path / "resumed")], watch=StopAt(2, 3))
    train([tied(tmp_path / "resumed")], resume=True)
    assert_equal_runs(tmp_path / "uninterrupted", tmp_path / "resumed")


def test_samples_file_has_checksums_of_the_data(tmp_path):
    def checksums(name, change=lambda data: data):
        one = job(tmp_path / name, epochs=1)
        train([one._replace(data=(change(one.data[0]), {"val": one.data[1]["again"]}))])
        return read_tensors(tmp_path / name / SAMPLES)[1]["sha256"]

    before = checksums("one")
    parts = ("labels", "classes", "ids")
    assert list(before) == [f"{what} of {name}" for name in ("train", "val") for what in parts]
    assert checksums("same") == before
    for what, change in (
        ("labels", lambda data: replace(data, given=data.given.flip(0))),
        ("classes", lambda data: replace(data, class_names=("a", "b", "d"))),
        ("ids", lambda data: replace(data, ids=data.ids[::-1])),
    ):
        after = checksums(what, change)
        assert [name for name in before if after[name] != before[name]] == [f"{what} of train"]
