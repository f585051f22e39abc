"""CKKS by TenSEAL, on plain bytes and numbers: what is asked of it in the peer's process, and what in another.

Degree 8192 with primes of 40, 30, 30, 30 and 40 bits is 128-bit security by the homomorphic encryption standard; the
three middle primes are the three multiplications there can be.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from peer.errors import optional

DEGREE, PRIMES, SCALE = 8192, [40, 30, 30, 30, 40], 2.0**30
LEAST = 2.0**-28
"""Nothing smaller is multiplied by: it would encode as 0, and a product with that is not a ciphertext."""
Rows = Sequence[Sequence[float]]
Layers = tuple[Rows, Sequence[float], Rows, Sequence[float]]
"""W (hidden, inputs), a (hidden), V (classes, hidden) and b (classes) of V(Wx + a)² + b."""


def encrypt(columns: Rows) -> tuple[bytes, bytes, list[bytes]]:
    """A context with a new secret key, the same without it, and a ciphertext of each column."""
    tenseal = library()
    made = tenseal.context(tenseal.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=PRIMES, n_threads=1)
    made.global_scale = SCALE
    without = {"save_public_key": False, "save_galois_keys": False}
    key = made.serialize(save_secret_key=True, save_relin_keys=False, **without)
    context = made.serialize(save_secret_key=False, save_relin_keys=True, **without)
    return key, context, [tenseal.ckks_vector(made, column).serialize() for column in columns]


def evaluate(layers: Layers, context: bytes, inputs: Iterable[bytes]) -> list[bytes]:
    """A ciphertext for each of their values; each input is unpacked when it is needed and then dropped.

    What TenSEAL thinks of bytes that are none of these, it says in errors of many kinds.
    """
    tenseal, (w, a, v, b) = library(), layers
    public = tenseal.context_from(context, n_threads=1)
    if public.has_secret_key():
        raise ValueError("a context with a secret key")
    # To rescale is the slow part of a product. Once for each sum is enough, by a product with what encodes as 1, where
    # the primes left have room for that.
    public.auto_rescale = False
    sums = _weighted_sums((tenseal.ckks_vector_from(public, one) for one in inputs), w)
    public.auto_rescale = True
    hidden = [(one * (1 / SCALE) + bias).square() for one, bias in zip(sums, a, strict=True)]
    return [(one + bias).serialize() for one, bias in zip(_weighted_sums(hidden, v), b, strict=True)]


def decrypt(key: bytes, vectors: Iterable[bytes]) -> list[list[float]]:
    """The numbers in each ciphertext."""
    tenseal = library()
    private = tenseal.context_from(key, n_threads=1)
    return [tenseal.ckks_vector_from(private, one).decrypt() for one in vectors]


@cache
def parameters() -> bytes:
    """How every context begins: with degree and primes. With others a few bytes unfold to gigabytes."""
    tenseal = library()
    made = tenseal.context(tenseal.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=PRIMES, n_threads=1)
    none = dict.fromkeys(("save_public_key", "save_secret_key", "save_galois_keys", "save_relin_keys"), False)
    begun: bytes = made.serialize(**none)
    return begun[: 2 + begun[1]]


def library() -> Any:
    """InputError where TenSEAL is missing."""
    return optional("tenseal", "`predictions: encrypted`", "TenSEAL", "encrypted")


def _weighted_sums(values: Iterable[Any], weight: Rows) -> list[Any]:
    """One for each row of `weight`, from left to right."""
    totals = list[Any]()
    for value, column in zip(values, zip(*weight, strict=True), strict=True):
        products = (value * (factor if abs(factor) >= LEAST else LEAST) for factor in column)
        if not totals:
            totals = list(products)
            continue
        for total, product in zip(totals, products, strict=True):
            total += product  # in place
    return totals
