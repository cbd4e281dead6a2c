"""Tiny files in every official format, valid and broken. ``pickles`` writes them as Python 2 did, opcode by opcode."""

import dataclasses
import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import pytest
import torch

from ogc.data import load_cifar10, load_cifar100
from ogc.data.cifar import BYTES_PER_IMAGE, CIFAR10, CIFAR100, load_cifar

TINY = {10: (CIFAR10, 20, 8), 100: (CIFAR100, 6, 4)}


def text(value: bytes) -> bytes:
    """Pickle a Python 2 string."""
    return b"T" + struct.pack("<i", len(value)) + value


def array(images) -> bytes:
    """Pickle an array: numpy.core.multiarray._reconstruct(ndarray, (0,), 'b'), and its state."""
    new = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    shape = b"(" + b"".join(b"J" + struct.pack("<i", size) for size in images.shape) + b"t"
    return new + b"(K\x01" + shape + dtype + b"\x89" + text(images.numpy().tobytes()) + b"tb"


def pickles(entries: dict[str, bytes]) -> bytes:
    return b"\x80\x02}(" + b"".join(text(key.encode()) + value for key, value in entries.items()) + b"u."


class Files:
    """A tiny CIFAR and its files, in both versions."""

    def __init__(self, classes, folder):
        cifar, self.train, self.test = TINY[classes]
        self.folder = folder
        self.cifar = dataclasses.replace(cifar, train_size=self.train, test_size=self.test)
        self.names = [f"class_{i:02}" for i in range(classes)]
        self.images = torch.randint(0, 256, (self.train + self.test, BYTES_PER_IMAGE), dtype=torch.uint8)
        self.labels = (torch.arange(self.train + self.test) * 7 % classes).tolist()

    def part(self, version, name):
        size = self.train // len(version.train)
        number = version.train.index(name) if name in version.train else None
        return slice(self.train, None) if number is None else slice(number * size, (number + 1) * size)

    def content(self, version, name):
        key = self.cifar.fine
        if name == version.names and version.pickled:
            listed = b"](" + b"".join(text(name.encode()) for name in self.names) + b"e"
            return pickles({f"{key}label_names": listed})
        if name == version.names:
            return ("\n".join(self.names) + "\n\n").encode()
        labels, images = self.labels[self.part(version, name)], self.images[self.part(version, name)]
        if version.pickled:
            listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
            return pickles({"batch_label": text(b"batch 1"), f"{key}labels": listed, "data": array(images)})
        coarse = bytes([19] * self.cifar.coarse)
        return b"".join(coarse + bytes([n]) + image.numpy().tobytes() for n, image in zip(labels, images, strict=True))

    def write_folder(self, version, **changed):
        folder = self.folder / version.folder
        folder.mkdir(parents=True)
        for name in version.files:
            (folder / name).write_bytes(changed.get(name) or self.content(version, name))
        return folder

    def write_archive(self, kind):
        """Write the archive, and put its checksum into ``self.cifar``."""
        version = getattr(self.cifar, kind)
        path = self.folder / version.archive
        with tarfile.open(path, "w:gz") as tar:
            for name in version.files:
                member, content = tarfile.TarInfo(f"{version.folder}/{name}"), self.content(version, name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        self.cifar = dataclasses.replace(self.cifar, **{kind: dataclasses.replace(version, md5=md5)})
        return path

    def assert_read(self, root):
        train, sets = load_cifar(self.cifar, Path(root))
        test = sets["test"]
        assert train.inputs.shape == (self.train, 3, 32, 32)
        assert torch.equal(torch.cat([train.inputs, test.inputs]).flatten(1), self.images)
        assert torch.cat([train.given, test.given]).tolist() == self.labels
        assert torch.equal(train.true, train.given)
        assert train.true is not train.given
        assert train.class_names == tuple(self.names)
        assert (train.ids[1], test.ids[0]) == ("train/00001", "test/00000")


@pytest.fixture(params=[10, 100])
def files(request, tmp_path):
    return Files(request.param, tmp_path)


kinds = pytest.mark.parametrize("kind", ["binary", "python"])


@kinds
def test_folder_or_its_parent_is_read(files, kind):
    folder = files.write_folder(getattr(files.cifar, kind))
    files.assert_read(folder)
    files.assert_read(folder.parent)
    files.assert_read(folder.rename(folder.parent / "renamed"))


@kinds
def test_archive_is_read_without_extracting(files, kind):
    path = files.write_archive(kind)
    files.assert_read(path)
    files.assert_read(path.parent)
    assert os.listdir(path.parent) == [path.name]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"md5 sum \w{32}\. Found \w{32}"):
        load_cifar(files.cifar, path)


def test_pickles_of_current_numpy_are_read(files):
    version = files.cifar.python
    part = files.part(version, version.test)
    entries = {"data": files.images[part].numpy(), f"{files.cifar.fine}labels": files.labels[part]}
    files.write_folder(version, **{version.test: pickle.dumps(entries, protocol=3)})
    files.assert_read(files.folder)


def test_missing_files_are_named(files, tmp_path):
    for loader, number in ((load_cifar10, 10), (load_cifar100, 100)):
        with pytest.raises(FileNotFoundError, match=f"cifar-{number}-binary.tar.gz, .*cifar-{number}-python.tar.gz"):
            loader(tmp_path / "nowhere")
    for version in (files.cifar.binary, files.cifar.python):
        (files.write_folder(version) / version.test).unlink()
    with pytest.raises(FileNotFoundError, match=f"{files.cifar.binary.test}` is missing"):
        load_cifar(files.cifar, files.folder)


@kinds
def test_truncated_files_and_wrong_contents_are_named(files, kind):
    version = getattr(files.cifar, kind)
    whole = files.content(version, version.test)
    folder = files.write_folder(version, **{version.test: whole[:-1]})
    with pytest.raises(ValueError, match=f"`{version.test}`"):
        load_cifar(files.cifar, folder)
    (folder / version.test).write_bytes(whole)
    files.labels[0] = files.cifar.classes
    (folder / version.train[0]).write_bytes(files.content(version, version.train[0]))
    with pytest.raises(ValueError, match=rf"`{version.train[0]}` .*\[0, {files.cifar.classes}\)"):
        load_cifar(files.cifar, folder)
    files.names.pop()
    (folder / version.names).write_bytes(files.content(version, version.names))
    with pytest.raises(ValueError, match=rf"`{version.names}` .* Found {len(files.names)}"):
        load_cifar(files.cifar, folder)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


MALICIOUS = {
    "posix.mkdir": lambda trace: pickle.dumps({"data": Malicious(trace)}, protocol=2),
    "builtins.eval": lambda _: b"\x80\x02cbuiltins\neval\n(" + text(b"1") + b"tR.",
    "os.system": lambda _: b"(S'true'\nios\nsystem\n.",
    "builtins.getattr": lambda _: b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
    "numpy.load": lambda _: b"\x80\x02cnumpy\nload\n(" + text(b"x") + b"tR.",
    "_codecs.encode": lambda _: b"\x80\x02c_codecs\nencode\n(" + text(b"x") + b"tR.",
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious_pickle_is_reported_and_never_run(files, tmp_path, name):
    version, trace = files.cifar.python, tmp_path / "it-ran"
    files.write_folder(version, **{version.train[0]: MALICIOUS[name](trace)})
    with pytest.raises(ValueError, match=rf"`{name}`"):
        load_cifar(files.cifar, files.folder)
    assert not trace.exists()


@pytest.mark.parametrize("content", [b"numpy\nndarray\n).", b"]." * 2, b"}(U\x04datacnumpy\nndarray\n)\x81u.", b"O8"])
def test_unexpected_pickle_content_is_refused(files, content):
    """O8 is an object array: its raw bytes would be pointers that the file chooses."""
    version = files.cifar.python
    objects = files.content(version, version.test).replace(text(b"u1"), text(b"O8"))
    bad = objects if content == b"O8" else b"\x80\x02" + (b"c" if content[:1] == b"n" else b"") + content
    files.write_folder(version, **{version.test: bad})
    with pytest.raises(ValueError, match=f"`{version.test}`"):
        load_cifar(files.cifar, files.folder)


@pytest.mark.slow
@pytest.mark.skipif("OGC_CIFAR" not in os.environ, reason="needs OGC_CIFAR, a folder of CIFAR-10 and CIFAR-100")
@pytest.mark.parametrize(("loader", "each"), [(load_cifar10, 5000), (load_cifar100, 500)])
def test_official_files(loader, each):
    train, sets = loader(os.environ["OGC_CIFAR"])
    assert set(train.given.bincount().tolist()) == {each}
    assert set(sets["test"].given.bincount().tolist()) == {each // 5}
