"""Which MPI datatype and operation carries each torch dtype and ReduceOp.

Dtypes that MPI has no arithmetic for (half, bfloat16, float8) are reduced in float32 and
rounded once at the end. Data movement needs no arithmetic: it sends elements as they are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch.distributed import ReduceOp

from .runtime import MPI

_MPI_TYPE = {
    torch.uint8: MPI.UINT8_T,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
    torch.bool: MPI.C_BOOL,
}
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
PACKED = {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)}
"""Whole numbers of fewer than 8 bits, a byte each, which torch cannot even copy."""
_QUANTISED = {  # which PyTorch is going to remove
    getattr(torch, name, None) for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
}
_OPAQUE_TYPE = {1: MPI.UINT8_T, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T}
_WIDER = {torch.complex32: torch.complex64}
_WIDER.update(
    (dtype, torch.float32)
    for name in (
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
    )
    if (dtype := getattr(torch, name, None)) is not None
)

_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_OP_NAME = {int(getattr(ReduceOp, name)): name for name in _OPS}
_MPI_OP = {
    "SUM": MPI.SUM,
    "AVG": MPI.SUM,
    "PREMUL_SUM": MPI.SUM,
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
_BOOL_OP = {
    "SUM": MPI.LOR,
    "PRODUCT": MPI.LAND,
    "MIN": MPI.LAND,
    "MAX": MPI.LOR,
    "BAND": MPI.LAND,
    "BOR": MPI.LOR,
    "BXOR": MPI.LXOR,
}
_BITWISE = ("BAND", "BOR", "BXOR")

_ALL_DTYPES = sorted(
    (value for value in vars(torch).values() if isinstance(value, torch.dtype)), key=str
)
_CODE = {dtype: index for index, dtype in enumerate(dict.fromkeys(_ALL_DTYPES))}


def code_of(dtype: torch.dtype) -> int:
    """Return a small number for ``dtype``, the same on every rank."""
    return _CODE[dtype]


def element_type(dtype: torch.dtype) -> MPI.Datatype:
    """Return an MPI datatype of the dtype's element size, for moving data unchanged.

    Raises:
        TypeError: for dtypes without a fixed element size in bytes (quantised ones).
    """
    native = _MPI_TYPE.get(dtype) or _OPAQUE_TYPE.get(dtype.itemsize)
    if native is None or dtype in _QUANTISED:
        raise TypeError(f"{dtype} tensors cannot be sent; convert to a plain dtype first")
    return native


@dataclass(frozen=True)
class Reduction:
    """How one (dtype, ReduceOp) pair is reduced.

    Attributes:
        op: the MPI operation.
        wire_dtype: the torch dtype the values have while they are reduced.
        wire_type: its MPI datatype.
        average: divide by the number of ranks at the end.
        premultiply: multiply by the operation's factor at the start.
        code: a number for the operation, the same on every rank.
        untouched: whether values are reduced as they are, neither scaled nor of another dtype.
    """

    op: MPI.Op
    wire_dtype: torch.dtype
    wire_type: MPI.Datatype
    average: bool
    premultiply: bool
    code: int
    untouched: bool


def reduction(dtype: torch.dtype, op: ReduceOp) -> Reduction:
    """Return how to reduce ``dtype`` by ``op``.

    Raises:
        TypeError: if the operation has no meaning for the dtype, e.g. BAND of floats.
    """
    kind = getattr(op, "op", op)  # ReduceOp.SUM itself has none
    return _reduction(dtype, int(kind))


@functools.cache
def _reduction(dtype: torch.dtype, code: int) -> Reduction:
    name = _OP_NAME.get(code)
    if name is None:
        raise TypeError(f"reduce operation {code} is not supported; use one of {', '.join(_OPS)}")
    wire_dtype = _WIDER.get(dtype, dtype)
    if wire_dtype not in _MPI_TYPE:
        raise TypeError(f"{dtype} tensors cannot be reduced; convert to a plain dtype first")
    fractional = dtype.is_floating_point or dtype.is_complex
    if fractional and name in _BITWISE:
        raise TypeError(f"{name} is for whole numbers and bool, not {dtype}; use SUM, MIN or MAX")
    if dtype.is_complex and name in ("MIN", "MAX"):
        raise TypeError(
            f"{name} does not work on complex numbers, which have no order; reduce abs()"
        )
    if dtype == torch.bool:
        if name not in _BOOL_OP:
            raise TypeError(f"{name} of bool has no meaning; convert to a number first")
        op = _BOOL_OP[name]
    else:
        op = _MPI_OP[name]
    if name == "PREMUL_SUM" and not fractional:
        raise TypeError(f"PREMUL_SUM is for floating-point tensors, not {dtype}")
    average, premultiply = name == "AVG", name == "PREMUL_SUM"
    untouched = wire_dtype is dtype and not (average or premultiply)
    return Reduction(op, wire_dtype, _MPI_TYPE[wire_dtype], average, premultiply, code, untouched)


def premultiplier(op: ReduceOp) -> float | torch.Tensor:
    """Return the factor of a PREMUL_SUM operation."""
    return op.__getstate__()[1]
