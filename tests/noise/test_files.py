import hashlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

from ogc import __version__
from ogc.noise import (
    LabelFileError,
    LabelInfo,
    confusion_matrix,
    labels_sha256,
    read_info,
    read_labels,
    symmetric,
    write_labels,
)

TRUE = np.arange(200) % 4
GIVEN = symmetric(TRUE, 0.3, num_classes=4, seed=5)
INFO = LabelInfo.measure(TRUE, GIVEN, "symmetric", rate=0.3, seed=5, num_classes=4)


@pytest.fixture(params=["npy", "csv"])
def path(request, tmp_path):
    path = tmp_path / "new" / "folder" / f"labels.{request.param}"
    write_labels(path, GIVEN, INFO)
    return path


def test_round_trip(path):
    assert read_labels(path).dtype == np.int64
    assert (read_labels(str(path)) == GIVEN).all()
    assert read_info(path) == INFO
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, path.name + ".json"]
    assert json.loads((path.parent / (path.name + ".json")).read_text()) == {
        "kind": "symmetric",
        "rate_asked": 0.3,
        "rate_got": (TRUE != GIVEN).mean(),
        "seed": 5,
        "num_classes": 4,
        "confusion": confusion_matrix(TRUE, GIVEN, num_classes=4).tolist(),
        "sha256": labels_sha256(GIVEN),
        "ogc_version": __version__,
    }


def test_contents_of_the_files(tmp_path):
    labels = np.array([1, 0, 1])
    for name in ("a.csv", "a.npy"):
        write_labels(tmp_path / name, labels, LabelInfo.measure(labels, labels, "none", num_classes=2))
    assert (tmp_path / "a.csv").read_bytes() == b"index,given_label\n0,1\n1,0\n2,1\n"
    assert np.load(tmp_path / "a.npy", allow_pickle=False).tolist() == [1, 0, 1]
    assert labels_sha256(np.array([], np.int64)).startswith("e3b0c44298fc1c14")  # of empty input
    assert labels_sha256(np.array([258])) == hashlib.sha256(b"\x02\x01\0\0\0\0\0\0").hexdigest()


@pytest.mark.parametrize("suffix", ["npy", "csv"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, ">i8", np.int64])
def test_same_labels_give_the_same_bytes(tmp_path, suffix, dtype):
    write_labels(tmp_path / f"a.{suffix}", GIVEN, INFO)
    stretched = np.repeat(GIVEN.astype(dtype), 2)[::2]  # not contiguous
    assert labels_sha256(stretched) == INFO.sha256
    write_labels(tmp_path / f"b.{suffix}", stretched, INFO)
    for end in ("", ".json"):
        assert (tmp_path / f"a.{suffix}{end}").read_bytes() == (tmp_path / f"b.{suffix}{end}").read_bytes()


@settings(max_examples=20)
@forall(labels=st.lists(st.integers(0, 9), max_size=40))
def test_any_labels_survive_a_round_trip(tmp_path_factory, labels):
    labels, folder = np.array(labels, dtype=np.int64), tmp_path_factory.mktemp("any")
    for name in ("a.npy", "a.csv"):
        write_labels(folder / name, labels, LabelInfo.measure(labels, labels, "none", num_classes=10))
        assert (read_labels(folder / name) == labels).all()


def test_changed_labels_error_gives_both_checksums(path):
    changed = GIVEN.copy()
    changed[3] = (changed[3] + 1) % 4
    if path.suffix == ".npy":
        np.save(path, changed)
    else:
        path.write_text("index,given_label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(changed)))
    with pytest.raises(LabelFileError, match=f"{labels_sha256(changed)}.*{INFO.sha256}"):
        read_labels(path)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"\xff", b"{}", b'{"num_classes": "three"}', b'{"rate_got": "three"}']
)
def test_damaged_json_is_refused(path, content):
    beside = path.with_name(path.name + ".json")
    if content.startswith(b'{"'):
        content = json.dumps(json.loads(beside.read_text()) | json.loads(content)).encode()
    beside.write_bytes(content)
    with pytest.raises(LabelFileError, match=beside.name):
        read_labels(path)


@pytest.mark.parametrize("header", ["given_label", "label", "noisy_label", " label "])
def test_column_is_found_by_name(tmp_path, header):
    (tmp_path / "a.csv").write_text(f"file,{header},other\na.png,3,9\nb.png, 1,9\n\n\n", encoding="utf-8-sig")
    assert read_labels(tmp_path / "a.csv").tolist() == [3, 1]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "a.csv"),
        (b"a,b\n1,2\n", "given_label or label or noisy_label. Found a, b"),
        (b"label,label\n1,2\n", "one column label"),
        (b"label\n1\ncat\n", "row 2: label .*'cat'"),
        (b"label\n1.5\n", "row 1: label .*'1.5'"),
        (b"a,label\n1,2\n3\n", "row 2: label"),
        (b"label\n1\n\n2\n", "row 2: label"),
        (b"index,given_label\n0,1\n2,1\n", "row 2.* 1. Found 2"),
        (b"label\n99999999999999999999\n", "row 1: label"),
        (b"label\n\xff\n", "UTF-8"),
        (b"label\n1\x00\n", "a.csv"),
    ],
)
def test_invalid_csv_is_refused(tmp_path, content, found):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(LabelFileError, match=found):
        read_labels(tmp_path / "a.csv")


class Malicious:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_invalid_and_malicious_npy_files_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, GIVEN)
    valid = path.read_bytes()
    malicious = np.empty(1, dtype=object)
    malicious[0] = Malicious(tmp_path / "hacked")
    np.save(path, malicious, allow_pickle=True)
    (tmp_path / "hacked").unlink(missing_ok=True)
    huge = valid.replace(b"(200,), }         ", b"(99999999999999,),}")[: len(valid)]
    assert huge != valid
    headers = [b"\x93NUMPY" + 200 * b"\xff", b"\x93NUMPY\x01\x00\x10\x00{[[[[[[[[[[[[[[["]
    pickled = pickle.dumps(Malicious(tmp_path / "hacked"))
    for content in [path.read_bytes(), huge, b"", valid[:4], valid[:50], valid[:-1], *headers, pickled]:
        path.write_bytes(content)
        with pytest.raises(LabelFileError, match="damaged"):
            read_labels(path)
    assert not (tmp_path / "hacked").exists()
    for labels in (GIVEN.astype(float), GIVEN.reshape(2, 100)):
        np.save(path, labels)
        with pytest.raises(LabelFileError, match=rf"Found {labels.dtype}"):
            read_labels(path)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda folder: write_labels(folder / "a.txt", GIVEN, INFO), "path"),
        (lambda folder: read_labels(folder / "a.parquet"), "path"),
        (lambda folder: write_labels(folder / "a.npy", TRUE, INFO), "info"),
        (lambda folder: write_labels(folder / "a.npy", GIVEN.astype(float), INFO), "given"),
        (lambda folder: confusion_matrix(TRUE % 3, GIVEN, num_classes=3), "given"),
        (lambda folder: LabelInfo.measure(TRUE[1:], GIVEN, "none", num_classes=4), "given"),
    ],
)
def test_invalid_arguments_are_named(tmp_path, call, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_failed_write_keeps_existing_files(tmp_path, monkeypatch):
    write_labels(tmp_path / "a.npy", GIVEN, INFO)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_labels(tmp_path / "a.npy", TRUE, LabelInfo.measure(TRUE, TRUE, "none", num_classes=4))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
