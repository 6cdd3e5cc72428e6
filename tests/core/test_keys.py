"""Secrets: their digest, and which must not guard anything."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.keys import MIN_SECRET_CHARACTERS, WeakSecret, secret_digest, weak_secret

GOOD = "Zk3vQ9xT1mB7cR5nW2pL8sD4fG6hJ0aY"


@given(st.text())
def test_the_digest_is_sha_256_of_any_text(secret: str) -> None:
    digest = secret_digest(secret)
    assert digest == hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def test_the_digest_takes_what_a_header_may_hold() -> None:
    assert secret_digest("\udc80") != secret_digest("\udc81")


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        (GOOD, None),
        ("lnx_" + GOOD, None),
        ("", WeakSecret.TOO_SHORT),
        (GOOD[:-1], WeakSecret.TOO_SHORT),
        ("changeme" * 8, WeakSecret.PLACEHOLDER),
        ("PASSWORD" + GOOD, WeakSecret.PLACEHOLDER),
        ("0123456" * 10, WeakSecret.UNIFORM),
        ("x" * 64, WeakSecret.UNIFORM),
    ],
)
def test_weak_secrets(secret: str, why: WeakSecret | None) -> None:
    assert weak_secret(secret) is why


@given(st.text(max_size=MIN_SECRET_CHARACTERS - 1))
def test_short_is_always_weak(secret: str) -> None:
    assert weak_secret(secret) is WeakSecret.TOO_SHORT
