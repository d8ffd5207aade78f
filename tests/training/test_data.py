"""Data sets: shapes, values, one download for several processes, and clear errors."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch

from course_lib.training import data

DATA_FOLDER = Path(data.__file__).resolve().parents[2] / "data"


def test_digits_have_the_documented_shape() -> None:
    training, test = data.load("digits")
    assert (len(training), len(test)) == (1437, 360)
    for part in (training, test):
        assert part.images.shape == (len(part), 1, 8, 8)
        assert part.images.dtype == torch.float32
        assert part.labels.dtype == torch.int64
        assert part.images.min() == 0
        assert part.images.max() == 1
        assert part.labels.unique().tolist() == list(range(10))
    images, labels = training[torch.tensor([3, 1])]
    assert images.shape == (2, 1, 8, 8)
    assert labels.tolist() == [training[3][1], training[1][1]]


def test_digits_file_matches_its_readme() -> None:
    digest = hashlib.sha256(Path(data.__file__).with_name("digits.npz").read_bytes()).hexdigest()
    assert digest in (DATA_FOLDER / "README.md").read_text()


def test_real_mnist_is_loaded_when_present() -> None:
    root = data.data_root()
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip("set COURSE_DATA to a folder with MNIST to run this")
    training, test = data.load("mnist")
    for part in (training, test):
        assert part.images.shape == (len(part), 1, 28, 28)
        assert part.images.dtype == torch.float32
        assert 0.10 < part.images.mean() < 0.16  # the full training set's mean is 0.1307
        assert part.labels.unique().tolist() == list(range(10))
    assert len(training) > len(test) >= 1000


def test_unknown_name_raises_with_the_choices() -> None:
    with pytest.raises(ValueError, match="digits, mnist, fashion_mnist, cifar10"):
        data.load("imagenet")


def test_offline_error_names_data_root_and_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_OFFLINE", "1")
    with pytest.raises(data.DataUnavailableError) as caught:
        data.load("cifar10", root=tmp_path / "nothing here")
    message = str(caught.value)
    assert str(tmp_path / "nothing here") in message
    assert "COURSE_DATA" in message
    assert "load('digits')" in message


def test_data_root_that_is_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(data.DataUnavailableError, match="data root"):
        data.load("mnist", root=tmp_path / "file")


def idx(array: numpy.ndarray) -> bytes:
    """Return the IDX format of MNIST's files: magic number, sizes, bytes."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(numpy.uint8).tobytes()


def mnist_files() -> dict[str, bytes]:
    """Return small files in MNIST's format: six training samples, three test samples."""
    files = {}
    for part, count in (("train", 6), ("t10k", 3)):
        pixels = numpy.arange(count * 28 * 28).reshape(count, 28, 28) % 256
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(pixels))
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(numpy.arange(count) % 10))
    return files


def test_damaged_files_raise(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in mnist_files().items():
        (raw / name.removesuffix(".gz")).write_bytes(gzip.decompress(content)[:-40])
    with pytest.raises(data.DataUnavailableError, match=r"damaged.*delete them"):
        data.load("mnist", root=tmp_path)


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves the small files and counts the requests for each."""

    files: dict[str, bytes]
    requests: list[str]

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        self.requests.append(name)
        self.send_response(200 if name in self.files else 404)
        self.end_headers()
        self.wfile.write(self.files.get(name, b""))

    def log_message(self, *_: object) -> None:
        pass


LOADER = """
import json, sys
from course_lib.training import data
from course_lib.training.vision import torchvision
url, resources, root = json.loads(sys.argv[1])
MNIST = torchvision.datasets.MNIST
MNIST.mirrors, MNIST.resources = [url], [tuple(pair) for pair in resources]
training, test = data.load("mnist", root=root)
print(len(training), len(test), training.labels.sum().item())
"""


def test_several_processes_download_once(tmp_path: Path) -> None:
    files, requests = mnist_files(), []
    handler = type("Handler", (Mirror,), {"files": files, "requests": requests})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        resources = [(name, hashlib.md5(content).hexdigest()) for name, content in files.items()]
        url = f"http://127.0.0.1:{server.server_port}/"
        argument = json.dumps([url, resources, str(tmp_path / "new root")])
        command = [sys.executable, "-c", LOADER, argument]
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        for process in processes:
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err
            assert out.split()[-3:] == ["6", "3", "15"]
    finally:
        server.shutdown()
        server.server_close()
    # torchvision asks for each file twice: once to follow redirects, once to fetch it.
    assert sorted(requests) == sorted([*files, *files])


HOLDER = """
import sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1]); lock.acquire(); print("held", flush=True); time.sleep(60)
"""


def test_wait_for_download_times_out_and_survives_killed_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from course_lib.training.vision import torchvision

    command = [sys.executable, "-c", HOLDER, str(tmp_path / ".mnist.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(data.DataUnavailableError, match=r"downloading them for 0\.2 s"):
            data._fetch_once("mnist", tmp_path, torchvision.datasets.MNIST, seconds=0.2)
        holder.kill()
        holder.wait(timeout=10)
    fetched = []
    monkeypatch.setattr(data, "_download", lambda root, _: fetched.append(root))
    data._fetch_once("mnist", tmp_path, torchvision.datasets.MNIST, seconds=5)
    assert fetched == [tmp_path]


def test_data_root_prefers_argument_then_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DATA", os.path.join(os.sep, "from", "variable"))
    assert data.data_root() == Path(os.sep, "from", "variable")
    assert data.data_root(os.path.join(os.sep, "given")) == Path(os.sep, "given")
    monkeypatch.delenv("COURSE_DATA")
    assert data.data_root() == DATA_FOLDER / "downloads"


def test_first_data_set_on_disk_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    training, test, name = data.load_available("mnist", "digits")
    assert (name, len(training), len(test)) == ("digits", 1437, 360)
    assert list(tmp_path.iterdir()) == []  # nothing was downloaded, nothing locked
    with pytest.raises(data.DataUnavailableError, match="none of mnist, cifar10"):
        data.load_available("mnist", "cifar10")
    with pytest.raises(ValueError, match="choose from digits"):
        data.load_available("digits", "imagenet")
    with pytest.raises(ValueError, match="at least one"):
        data.load_available()


def test_images_are_resized() -> None:
    training, test, _ = data.load_available("digits", size=28)
    original, _ = data.load("digits")
    assert training.images.shape == (1437, 1, 28, 28)
    assert test.images.shape == (360, 1, 28, 28)
    assert training.images.dtype == torch.float32
    assert training.images.min() >= 0
    assert training.images.max() <= 1
    assert torch.equal(training.labels, original.labels)
    # Bilinear: the mean brightness of an image stays, give or take its border.
    means = (part.images.mean(dim=(1, 2, 3)) for part in (training, original))
    torch.testing.assert_close(*means, rtol=0, atol=0.03)
    smaller, _, _ = data.load_available("digits", size=4)
    # Smoothed over more than the four pixels that become one, so not their plain mean.
    blocks = torch.nn.functional.avg_pool2d(original.images, 2)
    assert (smaller.images - blocks).abs().mean() < 0.1
    same, _, _ = data.load_available("digits", size=8)
    assert torch.equal(same.images, original.images)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        data.load_available("digits", size=0)


def test_real_mnist_is_preferred_when_present() -> None:
    root = data.data_root()
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip("set COURSE_DATA to a folder with MNIST to run this")
    training, _, name = data.load_available("mnist", "digits", size=28)
    assert name == "mnist"
    assert torch.equal(training.images, data.load("mnist")[0].images)
