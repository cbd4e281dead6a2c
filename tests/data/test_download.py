"""Downloads from a local server: complete, truncated, corrupt, redirected."""

import hashlib
import os
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ogc.data import load_cifar10
from ogc.data.cifar import CIFAR10
from ogc.data.download import download_file

CONTENT = bytes(range(256)) * 4096
MD5 = hashlib.md5(CONTENT).hexdigest()
CORRUPT = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
PAGES = {  # status, headers, body
    "/complete": (200, {"Content-Length": len(CONTENT)}, CONTENT),
    "/no-length": (200, {}, CONTENT),
    "/truncated": (200, {"Content-Length": len(CONTENT)}, CONTENT[:300_000]),
    "/corrupt": (200, {}, CORRUPT),
    "/moved": (302, {"Location": "/complete"}, b""),
    "/to-file": (302, {"Location": "file:///etc/passwd"}, b""),
    "/redirect-loop": (302, {"Location": "/redirect-loop"}, b""),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        status, headers, body = PAGES.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests = []
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("page", ["complete", "no-length", "moved"])
def test_downloads_the_complete_file(server, tmp_path, page):
    path, steps = tmp_path / "new" / "file.tar.gz", []
    download_file(f"{server.url}/{page}", path, md5=MD5, progress=lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["file.tar.gz"]
    assert steps[-1] == (len(CONTENT), None if page == "no-length" else len(CONTENT))
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)


@pytest.mark.parametrize(
    ("page", "error", "found"),
    [
        ("truncated", ConnectionError, "300,000 of 1,048,576"),
        ("corrupt", ValueError, rf"{MD5}\. Found {hashlib.md5(CORRUPT).hexdigest()}"),
        ("to-file", ConnectionError, "not allowed"),
        ("redirect-loop", ConnectionError, "infinite loop"),
        ("missing", ConnectionError, "404|Not Found"),
    ],
)
def test_what_is_not_the_file_leaves_nothing_behind(server, tmp_path, page, error, found):
    with pytest.raises(error, match=found):
        download_file(f"{server.url}/{page}", tmp_path / "file", md5=MD5)
    assert os.listdir(tmp_path) == []


def test_unreachable_server_raises_a_clear_error(tmp_path):
    with pytest.raises(ConnectionError, match="refused"):
        download_file("http://127.0.0.1:9/x", tmp_path / "file", md5=MD5)


def test_cifar_is_downloaded_only_on_request(server, tmp_path, monkeypatch):
    monkeypatch.setattr("ogc.data.cifar.CIFAR_SITE", f"{server.url}/corrupt#")
    with pytest.raises(FileNotFoundError):
        load_cifar10(tmp_path)
    assert server.requests == []
    with pytest.raises(ValueError, match=CIFAR10.binary.md5):
        load_cifar10(tmp_path, download=True)
    assert os.listdir(tmp_path) == []
