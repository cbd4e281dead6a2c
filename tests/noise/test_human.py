import hashlib
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from ogc.noise import LabelFileError, cifar_n, human

KEYS10 = human.PUBLISHED[0].keys
N = 60


def labels10():
    rng = np.random.default_rng(0)
    return {key: rng.integers(0, 10, N) for key in KEYS10.values()}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write small files in the official format, and register their checksums as the published ones."""
    contents = {
        "CIFAR-10_human.pt": labels10(),
        "CIFAR-100_human.pt": {"clean_label": np.arange(N), "noisy_label": np.arange(N)[::-1].copy()},
    }
    published = []
    for file in human.PUBLISHED:
        torch.save(contents[file.name], tmp_path / file.name)
        found = hashlib.sha256((tmp_path / file.name).read_bytes()).hexdigest()
        published.append(replace(file, sha256=found))
    monkeypatch.setattr(human, "PUBLISHED", tuple(published))
    return tmp_path


@pytest.mark.parametrize("kind", KEYS10)
def test_each_kind_of_cifar10n(files, kind):
    given = cifar_n(files / "CIFAR-10_human.pt", kind)
    assert given.dtype == np.int64
    assert (given == labels10()[KEYS10[kind]]).all()


def test_cifar100n(files):
    assert (cifar_n(files / "CIFAR-100_human.pt", "noisy", clean=np.arange(N)) == np.arange(N)[::-1]).all()
    assert (cifar_n(str(files / "CIFAR-100_human.pt"), "clean", clean=torch.arange(N)) == np.arange(N)).all()


def test_files_written_by_numpy_1_load(files, tmp_path, monkeypatch):
    """The published files name numpy.core, which NumPy 2 calls numpy._core."""
    path = tmp_path / "old.pt"
    content = (files / "CIFAR-100_human.pt").read_bytes()
    assert b"numpy._core" in content or b"numpy.core" in content
    from zipfile import ZipFile

    with ZipFile(files / "CIFAR-100_human.pt") as source, ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"cnumpy._core.", b"cnumpy.core."))
    known = replace(human.PUBLISHED[1], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(human, "PUBLISHED", (human.PUBLISHED[0], known))
    assert (cifar_n(path, "clean") == np.arange(N)).all()


def test_changed_file_error_gives_both_checksums(files):
    path = files / "CIFAR-10_human.pt"
    expected = human.PUBLISHED[0].sha256
    changed = labels10()
    changed["worse_label"][7] += 1
    torch.save(changed, path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(LabelFileError, match=f"sha256 is {found}, expected {expected} .CIFAR-10_human.pt"):
        cifar_n(path, "worse")


def test_labels_in_another_order_error_gives_first_mismatch(files):
    clean = labels10()["clean_label"]
    assert len(cifar_n(files / "CIFAR-10_human.pt", "worse", clean=clean)) == N
    swapped = clean.copy()
    swapped[[5, 9]] = (clean[5] + 1) % 10, (clean[9] + 1) % 10
    with pytest.raises(LabelFileError, match=rf"clean label 5 is {clean[5]}, the images' is {swapped[5]}\."):
        cifar_n(files / "CIFAR-10_human.pt", "worse", clean=swapped)
    with pytest.raises(LabelFileError, match=f"has {N} labels, but there are {N - 1} images"):
        cifar_n(files / "CIFAR-10_human.pt", "worse", clean=clean[:-1])


class Malicious:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4:UserWarning")
def test_malicious_pickle_does_not_run(tmp_path, form, protocol, published, monkeypatch):
    path, target = tmp_path / "CIFAR-10_human.pt", tmp_path / "hacked"
    malicious = {**labels10(), "worse_label": Malicious(target)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(malicious, protocol=protocol))
    else:
        torch.save(malicious, path, pickle_protocol=protocol, _use_new_zipfile_serialization=form == "zip")
    if published:  # not even with a known checksum
        known = replace(human.PUBLISHED[0], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        monkeypatch.setattr(human, "PUBLISHED", (known, human.PUBLISHED[1]))
    with pytest.raises(pickle.UnpicklingError if published else LabelFileError):
        cifar_n(path, "worse")
    assert not target.exists()


def test_safe_globals_are_restored(files):
    before = set(torch.serialization.get_safe_globals())
    cifar_n(files / "CIFAR-10_human.pt", "worse")
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_truncated_file_raises(files, keep):
    path = files / "CIFAR-10_human.pt"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(LabelFileError, match="is not the published file"):
        cifar_n(path, "worse")


def test_unknown_kind_lists_known_kinds(files):
    with pytest.raises(ValueError, match=r"`kind` should be one of clean, aggregate, random1, .*worse, noisy. Found"):
        cifar_n(files / "CIFAR-10_human.pt", "worst")
    with pytest.raises(ValueError, match=r"one of clean, noisy with CIFAR-100_human.pt. Found `kind = 'worse'`"):
        cifar_n(files / "CIFAR-100_human.pt", "worse")


def test_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        cifar_n(tmp_path / "none.pt", "worse")
