"""The server's end of TLS: a certificate from files, or a self-signed one that is never kept."""

import datetime as dt
import importlib.util
import ipaddress
import os
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Final

from bourn.cli.failures import Misused
from bourn.settings import ServeSettings

PROTOCOLS: Final = ["h2", "http/1.1"]  # the first that the client knows too is spoken
SELF_SIGNED_DAYS: Final = 365
CLOCK_SKEW: Final = dt.timedelta(hours=1)


def server_context(settings: ServeSettings, now_ms: int) -> ssl.SSLContext | None:
    """Return what the listener needs, or None for plain text; Misused if the files are not it."""
    if settings.tls_self:
        return _self_signed(settings.host, now_ms)
    if settings.tls_cert:
        return _from_files(Path(settings.tls_cert), Path(settings.tls_key))
    return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    return context


def _from_files(certificate: Path, key: Path) -> ssl.SSLContext:
    for name, path in (("tls_cert", certificate), ("tls_key", key)):
        if not path.is_file() or not os.access(path, os.R_OK):
            raise Misused(f"{name}: {path} is no file that can be read: name one in PEM form")
    context = _context()
    try:
        context.load_cert_chain(certificate, key, password="")  # or it would ask for one
    except (ssl.SSLError, ValueError):
        raise Misused(
            f"tls_cert {certificate} and tls_key {key} do not work together: "
            "give a certificate chain and its own key, without a password, in PEM form"
        ) from None
    return context


def _self_signed(host: str, now_ms: int) -> ssl.SSLContext:
    if importlib.util.find_spec("cryptography") is None:
        raise Misused(
            "tls_self needs the cryptography package: pip install cryptography, "
            "or give tls_cert and tls_key"
        )
    context = _context()
    # The library reads files alone. These are readable by this user only, and gone at once.
    with tempfile.TemporaryDirectory(prefix="bourn-tls-") as directory:
        path = Path(directory) / "self.pem"
        path.touch(0o600)
        path.write_bytes(make_self_signed(host, now_ms))
        context.load_cert_chain(path)
    return context


def make_self_signed(host: str, now_ms: int) -> bytes:
    """Return a new key and its certificate for this machine's names, in PEM form."""
    from cryptography import x509  # noqa: PLC0415  only here, and not everybody has it
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415  as above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415  as above

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bourn, self-signed")])
    now = dt.datetime.fromtimestamp(now_ms // 1000, dt.UTC)
    names: list[x509.GeneralName] = []
    for text in dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), host)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            if text.isascii():
                names.append(x509.DNSName(text))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
