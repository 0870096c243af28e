"""Fetching with huggingface_hub itself, from a small hub on this machine: bytes, resuming, silence."""

import functools
import hashlib
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import save

from snapref.files import download
from snapref.files.download import DownloadError, Remote, download_anima, fetch_one, from_hub

CONTENT = save({"a": torch.arange(100_000.0)})
REMOTE = Remote("them/model", "split_files/vae/vae.safetensors", "vae/vae.safetensors", 400_000,
                hashlib.sha256(CONTENT).hexdigest())  # fmt: skip


class Server(ThreadingHTTPServer):
    """Answers as a hub does. `stop_after`: bytes after which the line breaks, once for each number."""

    daemon_threads = True

    def __init__(self, content: bytes):
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.stop_after, self.asked, self.sent = content, [], [], 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def fetch(self):
        return functools.partial(from_hub, endpoint=f"http://127.0.0.1:{self.server_port}")

    def handle_error(self, request, client_address):
        pass


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.start(len(self.server.content))

    def do_GET(self):
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.server.asked.append(begin)
        body = self.server.content[begin:]
        self.start(len(body), begin)
        limit = self.server.stop_after.pop(0) if self.server.stop_after else len(body)
        self.server.sent += limit  # counted first: the caller may have the last byte before this thread goes on
        self.wfile.write(body[:limit])
        if limit < len(body):
            self.connection.close()

    def start(self, length: int, begin: int = 0):
        total = len(self.server.content)
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{hashlib.sha256(self.server.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", False, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)  # what comes is written in these
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two tries of the library
    server = Server(CONTENT)
    yield server
    server.shutdown()
    server.server_close()


def test_a_file_comes_whole_with_a_progress_bar(server, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TQDM_POSITION", "-1")  # shows the bar to what is no terminal
    place = fetch_one(REMOTE, tmp_path, server.fetch())
    assert place == tmp_path / REMOTE.place and place.read_bytes() == CONTENT
    assert "vae.safetensors" in capfd.readouterr().err  # huggingface_hub's own bar
    assert [*(tmp_path / "vae").iterdir()] == [place]


def test_a_broken_line_is_taken_up_where_it_broke(server, tmp_path):
    """The first call fails with the line; the second asks for the rest alone."""
    server.stop_after = [150_000] + [0] * 20  # whoever tries again at once finds the line dead
    with pytest.raises(DownloadError, match=r"could not be fetched \(the connection broke off\); put split_files/vae"):
        fetch_one(REMOTE, tmp_path, server.fetch())
    assert not (tmp_path / REMOTE.place).exists()
    server.stop_after, server.asked, server.sent = [], [], 0
    assert fetch_one(REMOTE, tmp_path, server.fetch()).read_bytes() == CONTENT
    assert server.asked == [150_000] and server.sent == len(CONTENT) - 150_000


def test_bytes_of_another_file(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DownloadError, match="has sha256 .*damaged on the way or replaced"):
        fetch_one(REMOTE, tmp_path, server.fetch())
    assert not (tmp_path / REMOTE.place).exists()
    server.content = CONTENT
    assert fetch_one(REMOTE, tmp_path, server.fetch()).read_bytes() == CONTENT  # the wrong one is not kept


def test_what_huggingface_hub_has_is_not_fetched_again(server, tmp_path, monkeypatch):
    (tmp_path / "cached").write_bytes(CONTENT)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: str(tmp_path / "cached"))
    assert fetch_one(REMOTE, tmp_path, server.fetch()).read_bytes() == CONTENT
    assert not server.asked and (tmp_path / "cached").read_bytes() == CONTENT


def test_no_network(server, tmp_path):
    fetch = server.fetch()
    server.shutdown()
    server.server_close()
    with pytest.raises(DownloadError, match=rf"\(no connection\); put split_files/vae/.* into {tmp_path}/vae and load"):
        fetch_one(REMOTE, tmp_path, fetch)


def test_a_disk_without_room_is_told_before_the_first_byte(server, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=300_000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"has 0.0 GB free, 0.0 GB are to be fetched; make room, or give another"):
        download_anima(tmp_path, [REMOTE], lambda text: None, server.fetch())
    assert server.sent == 0
