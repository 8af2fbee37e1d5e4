"""Certificates for tests: an authority and what it signs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
_PLAIN = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


class Authority:
    """Signs certificates for as many years as it is told."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key, 50)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self._identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, years: int) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.not_valid_before(_BEGIN).not_valid_after(_BEGIN + timedelta(days=365 * years))
        return builder.add_extension(identifier, critical=False)

    def sign(self, host: str = "127.0.0.1", *, years: int = 40, name: str = "broker") -> tuple[Path, Path]:
        """Files of a certificate for the host and of its key; those of the same name are replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            names: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            names = x509.DNSName(host)
        builder = self._builder(x509.Name([]), key, years)
        builder = builder.add_extension(x509.SubjectAlternativeName([names]), critical=True)
        certificate = builder.add_extension(self._identifier, critical=False).sign(self._key, hashes.SHA256())
        files = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(key.private_bytes(*_PLAIN))
        return files
