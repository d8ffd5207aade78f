"""Right answers to lesson 12 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "12.save_whole": {
        "a temporary file": """
import os
import tempfile


def save_whole(path, write):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
""",
        "without a buffer, by fdatasync": """
import os


def save_whole(path, write):
    beside = path.with_suffix(".new")
    with beside.open("wb", buffering=0) as file:
        write(file)
        os.fdatasync(file)
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
""",
    },
}
