"""Downloads from a local server: complete, truncated, corrupt, redirected, or without range support."""

import hashlib
import os
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ogc.data import load_cifar10
from ogc.data.cifar import CIFAR10
from ogc.data.download import download_file

CONTENT = os.urandom(1 << 20)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.ranges.append(self.headers.get("Range"))
        getattr(self, self.path.strip("/").replace("-", "_"))()

    def log_message(self, *_):
        pass

    def send(self, body, *, status=200, length=None, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body) if length is None else length), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def complete(self):
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        if start >= len(CONTENT):
            self.send(b"", status=416, Content_Range=f"bytes */{len(CONTENT)}")
        elif start:
            self.send(CONTENT[start:], status=206, Content_Range=f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        else:
            self.send(CONTENT)

    def no_range(self):
        self.send(CONTENT)

    def truncated(self):
        self.send(CONTENT[:300_000], length=len(CONTENT))

    def corrupt(self):
        self.send(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))

    def moved(self):
        self.send(b"", status=302, Location="/complete")

    def to_file(self):
        self.send(b"", status=302, Location="file:///etc/passwd")

    def redirect_loop(self):
        self.send(b"", status=302, Location="/redirect-loop")

    def no_length(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENT)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.ranges = []
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "file.tar.gz"


def begin(path, content):
    """Leave an interrupted download behind."""
    path.parent.mkdir()
    path.with_name("file.tar.gz.part").write_bytes(content)


@pytest.mark.parametrize("page", ["complete", "no-range", "moved", "no-length"])
def test_downloads_the_complete_file_once(server, path, page):
    steps = []
    for _ in range(2):
        download_file(f"{server.url}/{page}", path, md5=MD5, progress=lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["file.tar.gz"]
    assert steps[-1] == (len(CONTENT), None if page == "no-length" else len(CONTENT))
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)
    assert len(server.ranges) == (2 if page == "moved" else 1)


def test_another_file_is_kept(server, path):
    path.parent.mkdir()
    path.write_bytes(b"mine")
    with pytest.raises(ValueError, match="Move it away"):
        download_file(f"{server.url}/complete", path, md5=MD5)
    assert path.read_bytes() == b"mine"


def test_interrupted_download_is_kept_and_resumed(server, path):
    with pytest.raises(ConnectionError, match=r"300,000 of 1,048,576"):
        download_file(f"{server.url}/truncated", path, md5=MD5)
    assert os.listdir(path.parent) == ["file.tar.gz.part"]
    download_file(f"{server.url}/complete", path, md5=MD5)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]
    assert os.listdir(path.parent) == ["file.tar.gz"]


@pytest.mark.parametrize(("page", "requests"), [("moved", 2), ("no-range", 1)])
def test_resuming_follows_redirects_and_restarts_if_ranges_are_ignored(server, path, page, requests):
    begin(path, CONTENT[:1000])
    download_file(f"{server.url}/{page}", path, md5=MD5)
    assert path.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"] * requests


@pytest.mark.parametrize("extra", [b"", b"extra bytes"])
def test_partial_file_that_is_complete_or_too_long(server, path, extra):
    begin(path, CONTENT + extra)
    if extra:
        with pytest.raises(ValueError, match="deleted"):
            download_file(f"{server.url}/complete", path, md5=MD5)
    download_file(f"{server.url}/complete", path, md5=MD5)
    assert path.read_bytes() == CONTENT
    assert len(server.ranges) == (2 if extra else 1)


@pytest.mark.parametrize(
    ("page", "error", "found"),
    [
        ("corrupt", ValueError, rf"{MD5}\. Found \w{{32}}"),
        ("to-file", ConnectionError, "not allowed"),
        ("redirect-loop", ConnectionError, "infinite loop"),
    ],
)
def test_what_is_not_the_file_leaves_nothing_behind(server, path, page, error, found):
    with pytest.raises(error, match=found):
        download_file(f"{server.url}/{page}", path, md5=MD5)
    assert os.listdir(path.parent) == []


def test_unreachable_server_raises_a_clear_error(path):
    with pytest.raises(ConnectionError, match=r"refused.*Nothing was kept"):
        download_file("http://127.0.0.1:9/x", path, md5=MD5)


def test_cifar_is_downloaded_only_on_request(server, tmp_path, monkeypatch):
    monkeypatch.setattr("ogc.data.cifar.CIFAR_SITE", f"{server.url}/corrupt#")
    with pytest.raises(FileNotFoundError):
        load_cifar10(tmp_path)
    assert server.ranges == []
    with pytest.raises(ValueError, match=CIFAR10.binary.md5):
        load_cifar10(tmp_path, download=True)
    assert os.listdir(tmp_path) == []
