"""Make the secrets by which the processes of one run know each other, and hand them to processes on other nodes.

    new_key ─► run key ─┬─► derive ─► keys of the trainer's channel                (arl.train.link)
                        └─► what a caller of an engine must know                   (inside TLS)
    certificate ─► secrets/certificate.pem, key.pem ─► TLS of engines              beyond loopback only

On loopback the run key is the only secret. Where an address lies beyond it, everything that carries the key is
encrypted. `secrets/` in the run's directory holds both until the run ends, so that `arl engines join` can read them.

A process on another node gets its secrets by a file in the run's directory, which its owner alone can read, because
the arguments and variables of srun, and the calls of Ray, cross the network in the clear.
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from arl.errors import InputError
from arl.files import sync_to_disk
from arl.launch.child import RUN_KEY
from arl.launch.network import CERTIFICATE, PRIVATE_KEY, TLS, is_loopback, new_key

FOLDER = "secrets"
KEY = "run.key"
VALID_DAYS = 3650  # each side knows this one certificate, so its end would only end a run


@dataclass(frozen=True)
class RunSecrets:
    """Hold the secrets of one run.

    Args:
        key: the run key, which a process must know to be served.
        directory: holds the certificate and its private key; None: every address is loopback, so nothing is encrypted.
    """

    key: str
    directory: Path | None = None

    @property
    def secrets(self) -> Mapping[str, str]:
        """Return the variables that every process of the run gets, and nobody else."""
        return {RUN_KEY: self.key}

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables that say to every process of the run where its certificate is.

        >>> RunSecrets("k").environment, RunSecrets("k", Path("/runs/a/secrets")).environment
        ({}, {'ARL_TLS': '/runs/a/secrets'})
        """
        return {} if self.directory is None else {TLS: str(self.directory)}

    @property
    def certificate(self) -> str | None:
        """Return the file of the certificate that every server of the run shows; None: they serve without TLS."""
        return None if self.directory is None else str(self.directory / CERTIFICATE)


@contextlib.contextmanager
def run_secrets(directory: Path, addresses: Iterable[str]) -> Iterator[RunSecrets]:
    """Make the secrets of a run, and remove what lies on the disk when it ends.

    Args:
        directory: of the run; every process of it sees it under this path.
        addresses: on which processes of the run listen.
    """
    key = new_key()
    folder = directory.absolute() / FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed; its key is of no more use
    folder.mkdir(parents=True, mode=0o700)
    try:
        write_private(folder / KEY, key.encode())
        is_encrypted = not all(map(is_loopback, addresses))
        if is_encrypted:
            _write_certificate(folder)
        yield RunSecrets(key, folder if is_encrypted else None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_secrets(run: Path) -> RunSecrets:
    """Read the secrets of a run that goes on.

    Raises:
        InputError: it has none, or they are not for this user.
    """
    folder = run.absolute() / FOLDER
    try:
        key = (folder / KEY).read_text()
    except OSError as error:
        raise InputError(
            f"{folder / KEY}: cannot be read ({error.strerror}); join as the user who has started the run"
        ) from error
    return RunSecrets(key, folder if os.path.exists(folder / CERTIFICATE) else None)


def derive(run_key: str, purpose: str) -> bytes:
    """Derive 32 secret bytes for one purpose from the run key.

    >>> derive("k", "a") == derive("k", "a"), derive("k", "a") == derive("k", "b")
    (True, False)
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=b"arl", info=purpose.encode()).derive(run_key.encode())


def _write_certificate(folder: Path) -> None:
    """Write a new private key and its self-signed certificate, which only this user may read."""
    from datetime import UTC, datetime, timedelta

    # Importing them takes a tenth of a second, and only runs over several hosts need them.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "arl run")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of hosts differ
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(folder / PRIVATE_KEY, private)
    write_private(folder / CERTIFICATE, certificate.public_bytes(pem))


def write_private(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and that only this user may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def write_variables(directory: Path, role: str, variables: Mapping[str, str]) -> str:
    """Write secret variables of a process on another node, and return the path of the file, which all nodes see."""
    # Its name is new, because a network file system may remember for a while that another one has been removed.
    file = directory.absolute() / f"{role}-{secrets.token_hex(4)}.json"
    write_private(file, json.dumps(dict(variables)).encode())
    sync_to_disk(file)  # so that a network file system has it before the process begins
    return str(file)


def take_variables(path: str) -> dict[str, str]:
    """Read what `write_variables` has written, and remove it."""
    file = Path(path)
    variables: dict[str, str] = json.loads(file.read_text())
    file.unlink()
    return variables
