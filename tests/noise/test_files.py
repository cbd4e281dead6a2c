import hashlib
import json
import pickle
from dataclasses import replace

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
INFO = LabelInfo.measure(TRUE, GIVEN, kind="symmetric", rate=0.3, seed=5, num_classes=4)


@pytest.fixture(params=["npy", "csv"])
def path(request, tmp_path):
    path = tmp_path / "new" / "folder" / f"labels.{request.param}"
    write_labels(path, GIVEN, INFO)
    return path


def test_round_trip(path):
    labels = read_labels(path)
    assert labels.dtype == np.int64
    assert (labels == GIVEN).all()
    assert (read_labels(str(path)) == GIVEN).all()
    assert read_info(path) == INFO
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, path.name + ".json"]


def test_json_records_the_origin_of_the_labels(path):
    record = json.loads((path.parent / (path.name + ".json")).read_text())
    assert record == {
        "kind": "symmetric",
        "rate_asked": 0.3,
        "rate_got": (TRUE != GIVEN).mean(),
        "seed": 5,
        "num_classes": 4,
        "confusion": confusion_matrix(TRUE, GIVEN, num_classes=4).tolist(),
        "sha256": labels_sha256(GIVEN),
        "ogc_version": __version__,
    }
    assert INFO.flips == (TRUE != GIVEN).sum() == 4 * 3 * 5


def test_csv_content(tmp_path):
    labels = np.array([1, 0, 1])
    write_labels(tmp_path / "a.csv", labels, LabelInfo.measure(labels, labels, kind="none", num_classes=2))
    assert (tmp_path / "a.csv").read_bytes() == b"index,given_label\n0,1\n1,0\n2,1\n"


def test_npy_can_be_read_by_numpy(tmp_path):
    write_labels(tmp_path / "a.npy", GIVEN, INFO)
    assert (np.load(tmp_path / "a.npy", allow_pickle=False) == GIVEN).all()


@pytest.mark.parametrize("suffix", ["npy", "csv"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, ">i8", np.int64])
def test_same_labels_give_the_same_bytes(tmp_path, suffix, dtype):
    write_labels(tmp_path / f"a.{suffix}", GIVEN, INFO)
    stretched = np.repeat(GIVEN.astype(dtype), 2)[::2]  # not contiguous
    assert labels_sha256(stretched) == INFO.sha256
    write_labels(tmp_path / f"b.{suffix}", stretched, INFO)
    for end in ("", ".json"):
        assert (tmp_path / f"a.{suffix}{end}").read_bytes() == (tmp_path / f"b.{suffix}{end}").read_bytes()


def test_checksum_is_of_little_endian_int64():
    assert labels_sha256(np.array([], np.int64)).startswith("e3b0c44298fc1c14")  # of empty input
    assert labels_sha256(np.array([258])) == hashlib.sha256(b"\x02\x01\0\0\0\0\0\0").hexdigest()


@settings(max_examples=20)
@forall(labels=st.lists(st.integers(0, 9), max_size=40))
def test_any_labels_survive_a_round_trip(tmp_path_factory, labels):
    labels = np.array(labels, dtype=np.int64)
    folder = tmp_path_factory.mktemp("any")
    info = LabelInfo.measure(labels, labels, kind="none", num_classes=10)
    for name in ("a.npy", "a.csv"):
        write_labels(folder / name, labels, info)
        assert (read_labels(folder / name) == labels).all()


def test_changed_labels_error_gives_both_checksums(path):
    changed = GIVEN.copy()
    changed[3] = (changed[3] + 1) % 4
    if path.suffix == ".npy":
        np.save(path, changed)
    else:
        path.write_text("index,given_label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(changed)))
    with pytest.raises(
        LabelFileError, match=f"sha256 is {labels_sha256(changed)}, but {path.name}.json has {INFO.sha256}"
    ):
        read_labels(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "it should hold a JSON object"),
        (b"\xff", ".*decode"),
        (b"{}", "it has no 'kind'"),
    ],
)
def test_invalid_json_raises(path, content, message):
    path.with_name(path.name + ".json").write_bytes(content)
    with pytest.raises(LabelFileError, match=f"{path.name}.json cannot be used: {message}"):
        read_labels(path)


@pytest.mark.parametrize("name", ["num_classes", "rate_got"])
def test_json_with_text_instead_of_a_number_raises(path, name):
    json_path = path.with_name(path.name + ".json")
    json_path.write_text(json.dumps(json.loads(json_path.read_text()) | {name: "three"}))
    with pytest.raises(
        LabelFileError, match=rf"cannot be used: Parameter `{name}` should be .*'three'.*, or remove it"
    ):
        read_info(path)


@pytest.mark.parametrize("header", ["given_label", "label", "noisy_label", " label "])
def test_column_is_found_by_name(tmp_path, header):
    (tmp_path / "a.csv").write_text(f"file,{header},other\na.png,3,9\nb.png, 1,9\n", encoding="utf-8-sig")
    assert read_labels(tmp_path / "a.csv").tolist() == [3, 1]
    assert read_labels(tmp_path / "a.csv", "other").tolist() == [9, 9]


def test_columns_of_npy_files(tmp_path):
    np.save(tmp_path / "two.npy", np.array([[1, 2], [3, 4]], np.int32))
    assert read_labels(tmp_path / "two.npy", "1").tolist() == [2, 4]
    for column in ("2", "x"):
        with pytest.raises(LabelFileError, match=rf"two\.npy has no column {column}: its shape is 2x2"):
            read_labels(tmp_path / "two.npy", column)
    with pytest.raises(LabelFileError, match=r"should contain a 1-D array of integers\. Found 2x2 of int32"):
        read_labels(tmp_path / "two.npy")
    np.save(tmp_path / "one.npy", np.array([1, 2]))
    with pytest.raises(LabelFileError, match=r"has no column x: its shape is 2"):
        read_labels(tmp_path / "one.npy", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "should have one column given_label or label or noisy_label. Found nothing"),
        (b"a,b\n1,2\n", "should have one column given_label or label or noisy_label. Found a, b"),
        (b"label\n1\ncat\n", "line 3: label should be a 64-bit integer, found 'cat'"),
        (b"label\n1.5\n", "line 2: label should be a 64-bit integer, found '1.5'"),
        (b"a,label\n1,2\n3\n", "line 3: label should be a 64-bit integer, found nothing"),
        (b"label\n1\n\n2\n", "line 3: label should be a 64-bit integer, found nothing"),
        (b"index,given_label\n0,1\n2,1\n", "line 3: the index should be 1, found 2"),
        (b"label\n99999999999999999999\n", "line 2: label should be a 64-bit integer"),
        (b"label\n\xff\n", "is not a CSV file in UTF-8"),
        (b"label\n1\x00\n", "a.csv"),
    ],
)
def test_invalid_csv_raises(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(LabelFileError, match=message):
        read_labels(tmp_path / "a.csv")


class Malicious:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_invalid_and_malicious_npy_files_raise(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, GIVEN)
    valid = path.read_bytes()
    malicious = np.empty(1, dtype=object)
    malicious[0] = Malicious(tmp_path / "hacked")
    np.save(path, malicious, allow_pickle=True)
    (tmp_path / "hacked").unlink(missing_ok=True)
    huge = valid.replace(b"(200,), }         ", b"(99999999999999,),}")[: len(valid)]
    assert huge != valid
    broken = [
        b"",
        valid[:4],
        valid[:50],
        valid[:-1],
        b"\x93NUMPY" + 200 * b"\xff",
        pickle.dumps(Malicious(tmp_path / "hacked")),
    ]
    for content in [path.read_bytes(), huge, *broken]:
        path.write_bytes(content)
        with pytest.raises(LabelFileError, match=r"is damaged, or is not a \.npy file of numbers"):
            read_labels(path)
    assert not (tmp_path / "hacked").exists()
    np.save(path, GIVEN.astype(float))
    with pytest.raises(LabelFileError, match=r"should contain a 1-D array of integers\. Found 200 of float64"):
        read_labels(path)


def test_invalid_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"`path` should be a \.npy or \.csv file"):
        write_labels(tmp_path / "a.txt", GIVEN, INFO)
    with pytest.raises(ValueError, match=r"`path` should be a \.npy or \.csv file"):
        read_labels(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="`info` should be the info of these labels"):
        write_labels(tmp_path / "a.npy", TRUE, INFO)
    with pytest.raises(ValueError, match=r"`given` should be \(N,\) integers"):
        write_labels(tmp_path / "a.npy", GIVEN.astype(float), INFO)
    with pytest.raises(ValueError, match=r"`given` should be in \[0, 3\). Found `given = \[3\]`"):
        confusion_matrix(TRUE % 3, GIVEN, num_classes=3)
    with pytest.raises(ValueError, match="like the true labels"):
        LabelInfo.measure(TRUE[1:], GIVEN, kind="none", num_classes=4)
    assert not list(tmp_path.iterdir())


def test_failed_write_keeps_existing_files(tmp_path, monkeypatch):
    write_labels(tmp_path / "a.npy", GIVEN, INFO)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_labels(tmp_path / "a.npy", TRUE, LabelInfo.measure(TRUE, TRUE, kind="none", num_classes=4))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_without_a_confusion_matrix_flips_are_unknown(tmp_path):
    info = replace(INFO, confusion=None, rate_got=None)
    write_labels(tmp_path / "a.npy", GIVEN, info)
    assert read_info(tmp_path / "a.npy").flips is None


def test_damaged_header_raises_a_clear_error(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00{[[[[[[[[[[[[[[[")
    with pytest.raises(LabelFileError, match="damaged"):
        read_labels(path)


def test_duplicate_column_raises_but_trailing_blank_lines_do_not(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label,label\n1,2\n")
    with pytest.raises(LabelFileError, match="should have one column label"):
        read_labels(path)
    path.write_text("label\n1\n0\n\n\n")
    assert read_labels(path).tolist() == [1, 0]
