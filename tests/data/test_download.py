"""Downloads from a local server: complete, truncated, corrupt, redirected, or without range support."""

import hashlib
import os
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ogc.data import cifar10
from ogc.data.cifar import CIFAR10
from ogc.data.download import download

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

    def complete(self, content=CONTENT):
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        if start >= len(content):
            self.send(b"", status=416, Content_Range=f"bytes */{len(content)}")
        elif start:
            content_range = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send(content[start:], status=206, Content_Range=content_range)
        else:
            self.send(content)

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
def destination(tmp_path):
    return tmp_path / "new" / "file.tar.gz"


def files_in_folder(destination):
    return sorted(os.listdir(destination.parent)) if destination.parent.exists() else []


@pytest.mark.parametrize("path", ["complete", "no-range", "moved", "no-length"])
def test_downloads_the_complete_file(server, destination, path):
    steps = []
    assert download(f"{server.url}/{path}", destination, md5=MD5, progress=lambda *s: steps.append(s)) == destination
    assert destination.read_bytes() == CONTENT
    assert files_in_folder(destination) == ["file.tar.gz"]
    assert steps[-1] == (len(CONTENT), None if path == "no-length" else len(CONTENT))
    assert [s[0] for s in steps] == sorted(s[0] for s in steps)


def test_existing_file_is_not_downloaded_again(server, destination):
    for _ in range(2):
        download(f"{server.url}/complete", destination, md5=MD5)
    assert len(server.ranges) == 1


def test_different_existing_file_is_kept(server, destination):
    destination.parent.mkdir()
    destination.write_bytes(b"mine")
    with pytest.raises(ValueError, match="Move it away"):
        download(f"{server.url}/complete", destination, md5=MD5)
    assert destination.read_bytes() == b"mine"


def test_interrupted_download_is_kept_and_resumed(server, destination):
    with pytest.raises(ConnectionError, match=r"300,000 of 1,048,576 bytes received.*Run the command again to resume"):
        download(f"{server.url}/truncated", destination, md5=MD5)
    assert files_in_folder(destination) == ["file.tar.gz.part"]
    download(f"{server.url}/complete", destination, md5=MD5)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]
    assert files_in_folder(destination) == ["file.tar.gz"]


def test_resuming_follows_a_redirect_with_its_range(server, destination):
    destination.parent.mkdir()
    destination.with_name("file.tar.gz.part").write_bytes(CONTENT[:1000])
    download(f"{server.url}/moved", destination, md5=MD5)
    assert server.ranges == ["bytes=1000-", "bytes=1000-"]
    assert destination.read_bytes() == CONTENT


def test_download_restarts_if_server_ignores_ranges(server, destination):
    destination.parent.mkdir()
    destination.with_name("file.tar.gz.part").write_bytes(CONTENT[:1000])
    download(f"{server.url}/no-range", destination, md5=MD5)
    assert destination.read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [b"", b"extra bytes"])
def test_partial_file_that_is_complete_or_too_long(server, destination, extra):
    destination.parent.mkdir()
    destination.with_name("file.tar.gz.part").write_bytes(CONTENT + extra)
    if extra:
        with pytest.raises(ValueError, match="It was deleted"):
            download(f"{server.url}/complete", destination, md5=MD5)
    download(f"{server.url}/complete", destination, md5=MD5)
    assert destination.read_bytes() == CONTENT
    assert len(server.ranges) == (2 if extra else 1)


def test_corrupt_file_is_deleted_and_error_gives_both_checksums(server, destination):
    with pytest.raises(ValueError, match=rf"md5 sum {MD5}\. Found \w{{32}}\. It was deleted"):
        download(f"{server.url}/corrupt", destination, md5=MD5)
    assert files_in_folder(destination) == []


@pytest.mark.parametrize(("path", "reason"), [("to-file", "not allowed"), ("redirect-loop", "infinite loop")])
def test_bad_redirects_raise(server, destination, path, reason):
    with pytest.raises(ConnectionError, match=reason):
        download(f"{server.url}/{path}", destination, md5=MD5)
    assert files_in_folder(destination) == []


def test_unreachable_server_raises_a_clear_error(destination):
    with pytest.raises(ConnectionError, match=r"stopped: .*refused.*Nothing was kept"):
        download("http://127.0.0.1:9/x", destination, md5=MD5)


def test_cifar_is_downloaded_only_on_request(server, tmp_path, monkeypatch):
    monkeypatch.setattr("ogc.data.cifar.SITE", f"{server.url}/corrupt#")
    with pytest.raises(FileNotFoundError):
        cifar10(tmp_path)
    assert server.ranges == []
    with pytest.raises(ValueError, match=CIFAR10.binary.md5):
        cifar10(tmp_path, download=True)
    assert os.listdir(tmp_path) == []
