"""Makes the files of this folder (run by hand):

    pip install gguf==0.19.0 llama-cpp-python==0.3.36 safetensors && python make.py [PATH_OF_LIBGGML_BASE]

quants.safetensors   x F32 [rows, 512], and under each type's name the bytes [rows, bytes of a row] that ggml's reference
                     quantiser makes of it (ggml_quantize_chunk without an importance matrix); where the package gguf has a
                     quantiser too, the two were found equal. Metadata TYPE: sha256 of what gguf.quants.dequantize makes of the bytes, in fp32
every_type.gguf      a file by gguf.GGUFWriter with a field of each value type and three tensors
"""

import ctypes
import hashlib
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
TYPES = (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K, Type.Q6_K)


def rows():
    numbers = np.random.default_rng(20240917)
    x = numbers.standard_normal((20, 512)).astype(np.float32)
    x[1:4] = (x[1:4].view(np.uint32) & 0xFFFF0000).view(np.float32)  # as bfloat16 holds them
    x[4] = 0
    x[5, 100:] = 0
    x[6] = np.abs(x[6])
    x[7] = -np.abs(x[7])
    x[8], x[9] = 0.75, -0.75
    x[10] = numbers.integers(-4, 5, 512) / 4
    x[11] *= np.where(numbers.random(512) < 0.02, 40, 1)
    x[12] *= 1e-9
    x[13] *= 1e-30
    x[14] = numbers.standard_t(2, 512)
    x[15] *= np.exp2(numbers.integers(-20, 3, 512))
    x[16, ::2] = 0
    x[17] *= 1000
    x[18] = np.linspace(-1, 1, 512)
    return x.astype(np.float32)


def library(path):
    if not path:
        import llama_cpp

        path = pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"
    ggml = ctypes.CDLL(str(path))
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    return ggml


def quants(ggml):
    x = rows()
    tensors, hashes = {"x": x}, {}
    for kind in TYPES:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        out = np.zeros((len(x), x.shape[1] // block * size), np.uint8)
        assert ggml.ggml_quantize_chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, *x.shape, None) == out.size
        try:
            own = gguf.quants.quantize(x, kind)
            assert np.array_equal(np.ascontiguousarray(own).view(np.uint8).reshape(out.shape), out), kind
        except NotImplementedError:
            pass
        tensors[kind.name] = out
        packed = out.view(np.float16) if kind == Type.F16 else out
        values = gguf.quants.dequantize(packed, kind).astype(np.float32)
        hashes[kind.name] = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    save_file(tensors, HERE / "quants.safetensors", metadata=hashes)


def every_type():
    writer = gguf.GGUFWriter(HERE / "every_type.gguf", "llama")
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -100)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4000000000)
    writer.add_int32("test.i32", -2000000000)
    writer.add_float32("test.f32", 0.5)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "snowman ☃ and more")
    writer.add_array("test.strings", ["a", "", "ccc"])
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_uint64("test.u64", 2**63 + 5)
    writer.add_int64("test.i64", -(2**62))
    writer.add_float64("test.f64", -0.25)
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b.weight", gguf.quants.quantize(np.ones((3, 64), np.float32), Type.Q8_0), raw_dtype=Type.Q8_0)
    writer.add_tensor("c.weight", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    quants(library(sys.argv[1] if len(sys.argv) > 1 else ""))
    every_type()
