import os
import subprocess
import sys
import threading

import pytest

from children import LIMIT, popen
from ogc.benchmark.lock import Lock, holder

HOLD = """
import sys
from pathlib import Path
from ogc.benchmark.lock import Lock
lock = Lock.take(Path(sys.argv[1]))
print("held" if lock else "not held", flush=True)
sys.stdin.readline()
if lock: lock.release()
"""


def hold(path):
    """Take the lock in another process, which releases it after it reads a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    process = popen([sys.executable, "-c", HOLD, str(path)], **pipes)
    return process, process.stdout.readline().strip()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "work" / "run.lock"


def test_lock_has_one_holder(path):
    lock = Lock.take(path)
    assert Lock.take(path) is None
    assert holder(path) == f"process {os.getpid()} on {os.uname().nodename}"
    lock.release()
    lock.release()  # does nothing
    assert holder(path) is None
    assert not path.exists()
    again = Lock.take(path)
    assert again is not None
    again.release()


def test_releasing_a_removed_lock_keeps_its_successor(path):
    first = Lock.take(path)
    path.unlink()  # by hand
    second = Lock.take(path)
    first.release()
    assert path.exists()
    assert Lock.take(path) is None, "held by the second"
    second.release()
    assert not path.exists()


def test_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "not" / "mounted")
    with pytest.raises(FileExistsError, match="link"):
        Lock.take(tmp_path / "link" / "work" / "run.lock")


def test_killed_process_no_longer_holds_the_lock(path):
    process, status = hold(path)
    assert status == "held"
    assert Lock.take(path) is None
    assert holder(path).startswith(f"process {process.pid} on ")
    process.kill()
    process.wait()
    assert path.exists()  # the remaining file blocks nobody
    assert holder(path) is None
    lock = Lock.take(path)
    assert lock is not None
    lock.release()


def test_take_waits_for_release(path):
    process, _ = hold(path)
    assert Lock.take(path, wait=0.1) is None
    timer = threading.Timer(0.3, process.stdin.write, ["\n"])
    timer.start()
    lock = Lock.take(path, wait=LIMIT)
    assert lock is not None
    lock.release()
    timer.join()


def test_file_in_place_of_the_folder_is_an_error(path):
    path.parent.write_text("")
    with pytest.raises(FileExistsError):
        Lock.take(path)


def test_take_succeeds_if_the_file_is_removed_meanwhile(path, monkeypatch):
    """The file is opened while another holds it, and locked after the holder has released and removed it."""
    first = Lock.take(path)
    real, opened = os.open, []

    def open_before_the_release(*arguments):
        descriptor = real(*arguments)
        if not opened:
            opened.append(descriptor)
            first.release()
        return descriptor

    monkeypatch.setattr(os, "open", open_before_the_release)
    second = Lock.take(path)
    assert second.path.exists()
    monkeypatch.undo()
    assert Lock.take(path) is None
    second.release()
