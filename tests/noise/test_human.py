import hashlib
import pickle
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from ogc.noise import LabelFileError, cifar_n
from ogc.noise.human import PUBLISHED

KEYS10 = PUBLISHED["cifar10"].keys
N = 60
LABELS10 = {key: np.random.default_rng(i).integers(0, 10, N) for i, key in enumerate(KEYS10.values())}


@pytest.fixture
def publish(monkeypatch):
    """Register the checksum of a file as the published one."""

    def register(name, path):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setitem(PUBLISHED, name, PUBLISHED[name]._replace(sha256=sha256))

    return register


@pytest.fixture
def files(tmp_path, publish):
    """Small files in the official format, registered as the published ones."""
    contents = {"cifar10": LABELS10}
    contents["cifar100"] = {"clean_label": np.arange(N), "noisy_label": np.arange(N)[::-1].copy()}
    for name, content in contents.items():
        torch.save(content, tmp_path / PUBLISHED[name].name)
        publish(name, tmp_path / PUBLISHED[name].name)
    return tmp_path


def test_each_kind(files):
    for kind, key in KEYS10.items():
        given = cifar_n(files / "CIFAR-10_human.pt", kind)
        assert given.dtype == np.int64
        assert (given == LABELS10[key]).all()
    assert (cifar_n(files / "CIFAR-100_human.pt", "noisy", clean=np.arange(N)) == np.arange(N)[::-1]).all()
    assert (cifar_n(str(files / "CIFAR-100_human.pt"), "clean", clean=torch.arange(N)) == np.arange(N)).all()


def test_files_written_by_numpy_1_load(files, tmp_path, publish):
    """The published files name numpy.core, which NumPy 2 calls numpy._core."""
    path = tmp_path / "old.pt"
    with ZipFile(files / "CIFAR-100_human.pt") as source, ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"cnumpy._core.", b"cnumpy.core."))
    publish("cifar100", path)
    assert (cifar_n(path, "clean") == np.arange(N)).all()


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99, 1])
def test_changed_or_truncated_file_error_gives_both_checksums(files, keep):
    path, expected = files / "CIFAR-10_human.pt", PUBLISHED["cifar10"].sha256
    if keep == 1:
        torch.save(LABELS10 | {"worse_label": LABELS10["clean_label"]}, path)
    else:
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(LabelFileError, match=f"{found}.*{expected}"):
        cifar_n(path, "worse")


def test_labels_in_another_order_error_gives_first_mismatch(files):
    clean = LABELS10["clean_label"]
    assert len(cifar_n(files / "CIFAR-10_human.pt", "worse", clean=clean)) == N
    swapped = clean.copy()
    swapped[[5, 9]] = (clean[5] + 1) % 10, (clean[9] + 1) % 10
    with pytest.raises(LabelFileError, match=rf"clean label 5 is {clean[5]}, .* {swapped[5]}\."):
        cifar_n(files / "CIFAR-10_human.pt", "worse", clean=swapped)
    with pytest.raises(LabelFileError, match=f"{N} labels, .* {N - 1} images"):
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
def test_malicious_pickle_does_not_run(tmp_path, form, protocol, published, publish):
    path, target = tmp_path / "CIFAR-10_human.pt", tmp_path / "hacked"
    malicious = {**LABELS10, "worse_label": Malicious(target)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(malicious, protocol=protocol))
    else:
        torch.save(malicious, path, pickle_protocol=protocol, _use_new_zipfile_serialization=form == "zip")
    if published:  # not even with a known checksum
        publish("cifar10", path)
    with pytest.raises(pickle.UnpicklingError if published else LabelFileError):
        cifar_n(path, "worse")
    assert not target.exists()


def test_safe_globals_are_restored(files):
    before = set(torch.serialization.get_safe_globals())
    cifar_n(files / "CIFAR-10_human.pt", "worse")
    assert set(torch.serialization.get_safe_globals()) == before


def test_unknown_kinds_and_missing_files(files, tmp_path):
    with pytest.raises(ValueError, match="`kind = 'worst'`"):
        cifar_n(files / "CIFAR-10_human.pt", "worst")
    with pytest.raises(ValueError, match="`kind = 'worse'`"):
        cifar_n(files / "CIFAR-100_human.pt", "worse")
    with pytest.raises(FileNotFoundError):
        cifar_n(tmp_path / "none.pt", "worse")
