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

from ogc.data import cifar10, cifar100
from ogc.data.cifar import CIFAR10, CIFAR100, PIXELS, SITE, load

TINY = {10: (CIFAR10, 20, 8), 100: (CIFAR100, 6, 4)}


def text(value: bytes) -> bytes:
    """Pickle a Python 2 string."""
    return b"T" + struct.pack("<i", len(value)) + value


def array(images) -> bytes:
    """Pickle an array: numpy.core.multiarray._reconstruct(ndarray, (0,), 'b'), and its state."""
    new = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    rows, columns = images.shape
    shape = b"(" + b"J" + struct.pack("<i", rows) + b"J" + struct.pack("<i", columns) + b"t"
    return new + b"(K\x01" + shape + dtype + b"\x89" + text(images.numpy().tobytes()) + b"tb"


def integers(values) -> bytes:
    return b"](" + b"".join(b"K" + bytes([value]) for value in values) + b"e"


def names_list(names) -> bytes:
    return b"](" + b"".join(text(name.encode()) for name in names) + b"e"


def pickles(entries: dict[str, bytes]) -> bytes:
    items = b"".join(text(key.encode()) + value for key, value in entries.items())
    return b"\x80\x02}(" + items + b"u."


class Files:
    """A tiny CIFAR and its files, in both versions."""

    def __init__(self, classes, folder):
        cifar, train, test = TINY[classes]
        self.folder = folder
        self.cifar = dataclasses.replace(cifar, train_size=train, test_size=test)
        self.names = [f"class_{i:02}" for i in range(classes)]
        self.images = torch.randint(0, 256, (train + test, PIXELS), dtype=torch.uint8)
        self.labels = (torch.arange(train + test) * 7 % classes).tolist()
        self.train, self.test = train, test

    def part(self, version, name):
        size = self.train // len(version.train)
        if name == version.test:
            return slice(self.train, None)
        number = version.train.index(name)
        return slice(number * size, (number + 1) * size)

    def content(self, version, name):
        if name == version.names:
            if version.pickled:
                return pickles({self.cifar.names: names_list(self.names)})
            return ("\n".join(self.names) + "\n\n").encode()
        part = self.part(version, name)
        if version.pickled:
            return pickles(
                {
                    "batch_label": text(b"training batch 1 of 5"),
                    self.cifar.labels: integers(self.labels[part]),
                    "data": array(self.images[part]),
                }
            )
        coarse = bytes([19] * self.cifar.coarse)
        rows = zip(self.labels[part], self.images[part], strict=True)
        return b"".join(coarse + bytes([label]) + image.numpy().tobytes() for label, image in rows)

    def contents(self, version):
        return {name: self.content(version, name) for name in version.files}

    def write_folder(self, version, **changed):
        folder = self.folder / version.folder
        folder.mkdir(parents=True)
        for name, content in (self.contents(version) | changed).items():
            (folder / name).write_bytes(content)
        return folder

    def write_archive(self, kind):
        """Write the archive, and put its checksum into ``self.cifar``."""
        version = getattr(self.cifar, kind)
        path = self.folder / version.archive
        with tarfile.open(path, "w:gz") as tar:
            for name, content in self.contents(version).items():
                member = tarfile.TarInfo(f"{version.folder}/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        self.cifar = dataclasses.replace(self.cifar, **{kind: dataclasses.replace(version, md5=md5)})
        return path

    def assert_read(self, root):
        train, others = load(self.cifar, Path(root))
        test = others["test"]
        assert train.inputs.shape == (self.train, 3, 32, 32)
        assert train.inputs.dtype == torch.uint8
        assert torch.equal(torch.cat([train.inputs, test.inputs]).flatten(1), self.images)
        assert torch.cat([train.given, test.given]).tolist() == self.labels
        assert torch.equal(train.true, train.given)
        assert train.true is not train.given
        assert train.class_names == tuple(self.names)
        assert train.ids[1] == "train/00001"
        assert test.ids[0] == "test/00000"


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


def test_pickles_of_current_numpy_are_read(files):
    version = files.cifar.python
    part = files.part(version, version.test)
    content = pickle.dumps({"data": files.images[part].numpy(), files.cifar.labels: files.labels[part]}, protocol=3)
    files.write_folder(version, **{version.test: content})
    files.assert_read(files.folder)


def test_missing_data_error_lists_expected_files(tmp_path):
    for loader, number in ((cifar10, 10), (cifar100, 100)):
        with pytest.raises(FileNotFoundError, match=f"cifar-{number}-binary.tar.gz, .*--download") as error:
            loader(tmp_path / "nowhere")
        assert f"cifar-{number}-python.tar.gz" in str(error.value)


def test_truncated_file_error_gives_both_sizes(files):
    version = files.cifar.binary
    name = version.train[0]
    folder = files.write_folder(version, **{name: files.content(version, name)[:-5000]})
    with pytest.raises(ValueError, match=rf"{name}` should have .*\d bytes\. Found \d"):
        load(files.cifar, folder)


def test_pickle_without_its_last_byte_is_named(files):
    version = files.cifar.python
    files.write_folder(version, **{version.test: files.content(version, version.test)[:-1]})
    with pytest.raises(ValueError, match=f"`{version.test}` is damaged or truncated"):
        load(files.cifar, files.folder)


@kinds
def test_missing_file_is_named(files, kind):
    version = getattr(files.cifar, kind)
    (files.write_folder(version) / version.test).unlink()
    with pytest.raises(FileNotFoundError, match=f"{version.test}` is missing"):
        load(files.cifar, files.folder)


@kinds
def test_missing_class_name_is_reported(files, kind):
    files.names.pop()
    files.write_folder(getattr(files.cifar, kind))
    with pytest.raises(
        ValueError, match=rf"should name {files.cifar.classes} different classes\. Found {len(files.names)}"
    ):
        load(files.cifar, files.folder)


@kinds
def test_label_out_of_range_is_reported(files, kind):
    files.labels[0] = files.cifar.classes
    files.write_folder(getattr(files.cifar, kind))
    with pytest.raises(ValueError, match=rf"Labels in `.*` should be in \[0, {files.cifar.classes}\)"):
        load(files.cifar, files.folder)


@kinds
def test_archive_with_wrong_checksum_is_not_opened(files, kind):
    path = files.write_archive(kind)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"should have the md5 sum \w{32}\. Found \w{32}"):
        load(files.cifar, path)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def malicious_pickles(trace):
    return {
        "posix.mkdir": pickle.dumps({"data": Malicious(trace)}, protocol=2),
        "builtins.eval": b"\x80\x02cbuiltins\neval\n(" + text(b"1") + b"tR.",
        "os.system": b"(S'true'\nios\nsystem\n.",
        "builtins.getattr": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        "numpy.load": b"\x80\x02cnumpy\nload\n(" + text(b"x") + b"tR.",
        "_codecs.encode": b"\x80\x02c_codecs\nencode\n(" + text(b"x") + b"tR.",
    }


@pytest.mark.parametrize("name", malicious_pickles("x"))
def test_malicious_pickle_is_reported_and_never_run(files, tmp_path, name):
    trace = tmp_path / "it-ran"
    version = files.cifar.python
    files.write_folder(version, **{version.train[0]: malicious_pickles(trace)[name]})
    with pytest.raises(ValueError, match=rf"holds the global `{name}`, which is not allowed: nothing was run"):
        load(files.cifar, files.folder)
    assert not trace.exists()


def test_object_arrays_are_rejected(files):
    """With dtype('O'), raw bytes would be pointers chosen by the file. NumPy itself never reads it."""
    version = files.cifar.python
    content = files.content(version, version.test).replace(text(b"u1"), text(b"O8"))
    files.write_folder(version, **{version.test: content})
    with pytest.raises(ValueError, match="array of type 'O8' instead of uint8"):
        load(files.cifar, files.folder)


@pytest.mark.parametrize(
    "content", [b"\x80\x02cnumpy\nndarray\n).", b"\x80\x02]." * 2, b"\x80\x02}(U\x04datacnumpy\nndarray\n)\x81u."]
)
def test_unexpected_pickle_content_raises_a_clear_error(files, content):
    version = files.cifar.python
    files.write_folder(version, **{version.test: content})
    with pytest.raises(ValueError, match=r"`test(_batch)?` (should|is broken)"):
        load(files.cifar, files.folder)


def test_archive_names_and_download_site():
    archives = [version.archive for cifar in (CIFAR10, CIFAR100) for version in (cifar.binary, cifar.python)]
    assert archives == [f"cifar-{n}-{kind}.tar.gz" for n in (10, 100) for kind in ("binary", "python")]
    assert SITE == "https://www.cs.toronto.edu/~kriz/"


@pytest.mark.slow
@pytest.mark.skipif("OGC_CIFAR" not in os.environ, reason="needs OGC_CIFAR, a folder of CIFAR-10 and CIFAR-100")
@pytest.mark.parametrize(("loader", "each"), [(cifar10, 5000), (cifar100, 500)])
def test_official_files(loader, each):
    train, others = loader(os.environ["OGC_CIFAR"])
    assert set(train.given.bincount().tolist()) == {each}
    assert set(others["test"].given.bincount().tolist()) == {each // 5}
