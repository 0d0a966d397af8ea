"""Make and read certificates: the one place that uses `cryptography`, and only the controller loads it.

Keys are on the curve P-256: made in a fraction of a millisecond, so that a thousand jobs do not wait for
theirs, and known to every TLS library there is.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskd.core.certificates import BACKDATE_S, Certificate, leaf_life

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes


class UnreadableCertificate(ValueError):
    """Not a certificate, or not a key, or the two do not belong together."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key, as PEM. The key shows in no log: it is left out of the text of this."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_authority(now: float, lasts_s: float) -> Issued:
    """Make an authority that signs by its own right."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities in one bundle are told apart by their names too.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"taskd-{secrets.token_hex(4)}")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_date(now - BACKDATE_S))
        .not_valid_after(_date(now + lasts_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _issued(made, key)


def issue(authority: Issued, names: Sequence[str], now: float, lasts_s: float, *, server: bool) -> Issued:
    """Make a certificate for these names; the first is its common name.

    A `server` answers to its names and calls nobody. Any other may do both: a job's manager answers the
    job's proxies under the name of the job.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = _load_key(authority.key)
    begins, ends = leaf_life(_facts(signer), now, lasts_s)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    if not server:
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_date(begins))
        .not_valid_after(_date(ends))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_signed_by(signer), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return _issued(made, key)


def read_certificates(pem: bytes) -> list[tuple[Certificate, bytes]]:
    """All certificates of a text with their own part of it; UnreadableCertificate if one is none."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding

    if not pem.strip():
        return []
    try:
        found = x509.load_pem_x509_certificates(pem)
        return [(_facts(each), each.public_bytes(Encoding.PEM)) for each in found]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UnreadableCertificate(f"no certificate: {error}") from error


def read_pair(certificate: bytes, key: bytes) -> Certificate:
    """The first certificate of a text, once it is sure that the key is its own."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        found = x509.load_pem_x509_certificate(certificate)
        belongs = _load_key(key).public_key() == found.public_key()
        facts = _facts(found)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # What the library says of a key does not go on: it need not be fit for a log.
        raise UnreadableCertificate("the certificate or its key cannot be read") from error
    if not belongs:
        raise UnreadableCertificate("the key is not that of the certificate")
    return facts


def _facts(found: x509.Certificate) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    own = x509.SubjectKeyIdentifier.from_public_key(found.public_key()).digest.hex()
    names: list[str] = []
    signed_by, authority = "", False
    for extension in found.extensions:
        value = extension.value
        if isinstance(value, x509.BasicConstraints):
            authority = value.ca
        elif isinstance(value, x509.AuthorityKeyIdentifier):
            signed_by = (value.key_identifier or b"").hex()
        elif isinstance(value, x509.SubjectKeyIdentifier):
            own = value.digest.hex()
        elif isinstance(value, x509.SubjectAlternativeName):
            names = [str(name.value) for name in value]
    if not signed_by and found.issuer == found.subject:
        signed_by = own
    return Certificate(
        mark=found.fingerprint(hashes.SHA256()).hex(),
        key=own,
        signed_by=signed_by,
        names=tuple(names),
        begins=found.not_valid_before_utc.timestamp(),
        ends=found.not_valid_after_utc.timestamp(),
        authority=authority,
    )


def _signed_by(signer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """The signer's key, called as the signer itself calls it: verifiers compare the two."""
    from cryptography import x509

    try:
        known = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known.value)


def _load_key(pem: bytes) -> CertificateIssuerPrivateKeyTypes:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("neither a key on an elliptic curve nor an RSA key")  # noqa: TRY004 - see read_pair
    return key


def _issued(certificate: x509.Certificate, key: CertificateIssuerPrivateKeyTypes) -> Issued:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(certificate.public_bytes(Encoding.PEM), plain)


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _date(stamp: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(stamp), dt.UTC)
