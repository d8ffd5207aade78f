"""Pack scikit-learn's handwritten digits into the one file the course ships.

Usage: ``python data/make_digits.py`` (needs scikit-learn: ``pip install scikit-learn``). It
writes ``course_lib/training/digits.npz``, the same bytes each time, and prints the checksum for
README.md.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy
from sklearn.datasets import load_digits

TARGET = Path(__file__).resolve().parents[1] / "course_lib" / "training" / "digits.npz"
SHUFFLE_SEED = 0


def pack() -> bytes:
    """Return the npz file: images uint8 (1797, 8, 8) of 0..16, labels uint8 (1797,).

    The samples are shuffled once, with a fixed seed: neighbours in the source were often
    written by the same person, so its last part is no fair test set.
    """
    digits = load_digits()
    order = numpy.random.default_rng(SHUFFLE_SEED).permutation(len(digits.target))
    arrays = {
        "images": digits.images.astype(numpy.uint8)[order],
        "labels": digits.target.astype(numpy.uint8)[order],
    }
    packed = io.BytesIO()
    # numpy.savez stamps the time into the archive; a fixed date keeps the file the same.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            raw = io.BytesIO()
            numpy.lib.format.write_array(raw, array)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, raw.getvalue(), compresslevel=9)
    return packed.getvalue()


if __name__ == "__main__":
    content = pack()
    TARGET.write_bytes(content)
    print(
        f"wrote {TARGET.name}: {len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}"
    )
