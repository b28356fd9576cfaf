"""Compressed bytes: frame payloads, request bodies and response bodies; and who gets which coding.

    coding   in a frame's flag   content
    none     0                   the bytes themselves
    zstd     1                   one frame, with or without its content size (RFC 8878)
    gzip     2                   one member (RFC 1952)

Decompression stops one chunk past its cap at the latest, whatever the input promises. It refuses
a second frame or member, trailing bytes, and anything that does not end where its input ends.

Contexts of zstd cost ten times a small message to make and serve one call at a time, so idle
ones wait in a list: whoever takes one has it alone, on any thread.
"""

import enum
import re
import zlib
from collections.abc import Iterable
from typing import Final

import zstandard

from bourn.errors import BadCompression, NotAcceptable, UnsupportedEncoding
from bourn.limits import DECOMPRESSION_CHUNK_BYTES, ZSTD_WINDOW_BYTES_MAX

Octets = bytes | bytearray | memoryview

# Level 1 of either: higher levels cost more CPU per byte than the network they would save.
_ZSTD_LEVEL: Final = 1
_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = zlib.MAX_WBITS | 16

_idle_compressors: Final[list[zstandard.ZstdCompressor]] = []
_idle_decompressors: Final[list[zstandard.ZstdDecompressor]] = []


class Compression(enum.IntEnum):
    """How bytes are compressed; the value is what a frame's flag carries."""

    NONE = 0
    ZSTD = 1
    GZIP = 2


def compress(data: Octets, compression: Compression) -> bytes:
    """Return `data` in the given coding."""
    if compression is Compression.ZSTD:
        try:
            context = _idle_compressors.pop()
        except IndexError:
            context = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        compressed = context.compress(data)
        _idle_compressors.append(context)
        return compressed
    if compression is Compression.GZIP:
        gzip = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
        return gzip.compress(data) + gzip.flush()
    return bytes(data)


def decompress(data: Octets, compression: Compression, bytes_max: int) -> bytes:
    """Return what `data` holds; BadCompression if corrupt, truncated or above `bytes_max`."""
    if compression is Compression.ZSTD:
        return _decompress_zstd(data, bytes_max)
    if compression is Compression.GZIP:
        return _decompress_gzip(data, bytes_max)
    if len(data) > bytes_max:
        raise _too_large(bytes_max)
    return bytes(data)


def _too_large(bytes_max: int) -> BadCompression:
    return BadCompression(f"decompressed size exceeds {bytes_max} bytes")


def _decompress_zstd(data: Octets, bytes_max: int) -> bytes:
    try:
        context = _idle_decompressors.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    try:
        declared = zstandard.frame_content_size(data)
        if declared > bytes_max:
            raise _too_large(bytes_max)
        if declared > 0:
            content = context.decompress(data, allow_extra_data=False)
        else:
            content = _decompress_unsized_zstd(context, data, bytes_max)
    except zstandard.ZstdError as error:
        # The context is dropped: it may be anywhere inside the broken frame.
        raise BadCompression(f"invalid zstd data: {error}") from None
    _idle_decompressors.append(context)
    return content


def _decompress_unsized_zstd(
    context: zstandard.ZstdDecompressor, data: Octets, bytes_max: int
) -> bytes:
    """Decompress a frame that does not say how large its content is.

    The library either stops at a cap or tells where the frame ended, never both. So the first
    pass only counts, a chunk at a time, and the second can then keep everything.
    """
    size = 0
    with context.stream_reader(data) as reader:
        while chunk := reader.read(DECOMPRESSION_CHUNK_BYTES):
            size += len(chunk)
            if size > bytes_max:
                raise _too_large(bytes_max)
    stream = context.decompressobj()
    content = stream.decompress(data)
    if not stream.eof:
        raise BadCompression("invalid zstd data: truncated")
    if stream.unused_data:
        raise BadCompression("invalid zstd data: trailing bytes")
    return content


def _decompress_gzip(data: Octets, bytes_max: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WBITS)
    try:
        content = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise BadCompression(f"invalid gzip data: {error}") from None
    if len(content) > bytes_max:
        raise _too_large(bytes_max)
    if not stream.eof:
        raise BadCompression("invalid gzip data: truncated")
    if stream.unused_data:
        raise BadCompression("invalid gzip data: trailing bytes")
    return content


# Negotiation. Weights are in thousandths; a coding with a malformed weight counts as not listed.

_WEIGHT: Final = re.compile(r"[qQ]=(?:(0(?:\.[0-9]{0,3})?)|1(?:\.0{0,3})?)")
_WEIGHT_MAX: Final = 1000
_CODINGS: Final = {
    "identity": Compression.NONE,
    "zstd": Compression.ZSTD,
    "gzip": Compression.GZIP,
    "x-gzip": Compression.GZIP,
}


def choose_frame_compression(accept_encoding: Iterable[str]) -> Compression:
    """Choose how a session compresses its frames, from all `accept-encoding` header values.

    The client's order of preference does not matter: zstd, else gzip, else none.
    """
    weights = _weights(accept_encoding)
    for compression in (Compression.ZSTD, Compression.GZIP):
        if weights.get(compression):
            return compression
    return Compression.NONE


def choose_response_encoding(accept_encoding: Iterable[str]) -> Compression:
    """Choose the coding of a response body, from all `accept-encoding` header values.

    Raises NotAcceptable where the client refuses every coding that we have, identity included.
    """
    weights = _weights(accept_encoding)
    if not weights:
        return Compression.NONE
    others = weights.get(None)
    zstd = weights.get(Compression.ZSTD, others or 0)
    gzip = weights.get(Compression.GZIP, others or 0)
    # Unlisted, identity is the last resort, and `*;q=0` takes even that away.
    identity = weights.get(Compression.NONE, 0)
    best = max(zstd, gzip)
    if best and best >= identity:
        return Compression.ZSTD if zstd == best else Compression.GZIP
    if not identity and (Compression.NONE in weights or others == 0):
        raise NotAcceptable("no acceptable content coding")
    return Compression.NONE


def parse_content_encoding(content_encoding: Iterable[str]) -> Compression:
    """Return the coding of a request body, from all `content-encoding` header values.

    Raises UnsupportedEncoding for an unknown coding and for one coding on top of another.
    """
    compression = Compression.NONE
    for coding in _elements(content_encoding):
        layer = _CODINGS.get(coding.lower())
        if layer is None or (layer and compression):
            raise UnsupportedEncoding("unsupported content encoding")
        compression = layer or compression
    return compression


def _elements(values: Iterable[str]) -> list[str]:
    return [text for value in values for part in value.split(",") if (text := part.strip(" \t"))]


def _weights(accept_encoding: Iterable[str]) -> dict[Compression | None, int]:
    """Return the weight of each of our codings that is listed; None stands for `*`."""
    weights: dict[Compression | None, int] = {}
    for element in _elements(accept_encoding):
        name, _, parameter = element.partition(";")
        coding = name.rstrip(" \t").lower()
        weight = _parse_weight(parameter.strip(" \t"))
        if weight is None or (coding != "*" and coding not in _CODINGS):
            continue
        key = _CODINGS.get(coding)
        weights[key] = max(weight, weights.get(key, 0))
    return weights


def _parse_weight(parameter: str) -> int | None:
    if not parameter:
        return _WEIGHT_MAX
    match = _WEIGHT.fullmatch(parameter)
    if match is None:
        return None
    fraction = match[1]
    return _WEIGHT_MAX if fraction is None else int(fraction[2:].ljust(3, "0"))
