"""Put what is no regular file in the place of one."""

import os
import socket
from pathlib import Path
from random import Random

LINKS = (
    "step_2",
    "step_4",
    "config.json",
    "..",
    "/dev/zero",
    "../step_2/config.json",
    "/dev/stdin",
    "model.safetensors",
)
TOO_LONG = "n" * 300  # for a file system, so that to look where a link to it leads is an error of its own


def put_irregular(random: Random, path: Path) -> None:
    """Make a folder, a FIFO, a socket, or a link to something, to itself or to nothing."""
    random.choice((_put_folder, _put_fifo, _put_socket, _put_link, _put_loop, _put_dangling))(random, path)


def _put_folder(random: Random, path: Path) -> None:
    (path / random.choice(("a", "run.msgpack"))).mkdir(parents=True)


def _put_fifo(random: Random, path: Path) -> None:
    os.mkfifo(path)


def _put_socket(random: Random, path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the address of a socket has 107 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def _put_link(random: Random, path: Path) -> None:
    path.symlink_to(random.choice(LINKS))


def _put_loop(random: Random, path: Path) -> None:
    path.symlink_to(path.name)


def _put_dangling(random: Random, path: Path) -> None:
    path.symlink_to(random.choice(("nowhere", TOO_LONG)))
