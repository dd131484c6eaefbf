// Checks of products by tiled 4-bit weights, and their CPU form.
#include "unsloth/ops/nf4_gemm.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "ops/checks.h"
#include "ops/nf4_gemm_cuda.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/device.h"
#include "unsloth/spec/quant4_host.h"

namespace unsloth::ops {
namespace {

struct Shape {
    int64_t m = 0, out = 0, sum = 0, r = 0;  ///< out [m, out]; sum: the summed dimension without the tail
};

Shape check(const Context& ctx, const Nf4Gemm& g) {
    UNSLOTH_CHECK(!g.weights.empty() && g.weights.size() <= 4, "nf4_gemm: ", g.weights.size(), " weights");
    int64_t n = 0;
    const int64_t k = g.weights[0].cols;
    for (const Nf4Tiles& w : g.weights) {
        UNSLOTH_CHECK(w.cols == k, "nf4_gemm: weights of ", k, " and ", w.cols, " inputs in one product");
        UNSLOTH_CHECK(w.tiles.device() == ctx.device(), "nf4_gemm: a weight is on ", w.tiles.device());
        UNSLOTH_CHECK(!w.is_mxfp4(), "nf4_gemm: a weight in MXFP4");
        n += w.rows;
    }
    UNSLOTH_CHECK(g.x.defined() && g.x.dim() == 2, "nf4_gemm: x must be a matrix");
    const at::ScalarType type = g.x.scalar_type();
    UNSLOTH_CHECK(type == at::kBFloat16 || (!ctx.is_cuda() && (type == at::kFloat || type == at::kHalf)),
                  "nf4_gemm: x is ", type);
    Shape s{g.x.size(0), g.transposed ? k : n, g.transposed ? n : k, 0};
    UNSLOTH_CHECK(g.tail_columns.empty() || (!g.transposed && g.tail_columns.size() == g.weights.size()),
                  "nf4_gemm: columns of the tail for ", g.tail_columns.size(), " weights");
    if (g.tail_weight.defined()) {
        UNSLOTH_CHECK(g.tail_weight.dim() == 2, "nf4_gemm: the tail's weight must be a matrix");
        s.r = g.tail_weight.size(g.transposed ? 0 : 1);
        check_matrix(ctx, "the tail's weight", g.tail_weight, g.transposed ? s.r : s.out, g.transposed ? s.out : s.r,
                     type);
    }
    check_matrix(ctx, "x", g.x, s.m, s.sum + s.r, type);
    check_matrix(ctx, "out", g.out, s.m, s.out, type);
    if (g.residual) check_matrix(ctx, "residual", *g.residual, s.m, s.out, type);
    if (g.bias) check_contiguous(ctx, "bias", *g.bias, {s.out}, type);
    return s;
}

/// The place of the scale of a row of a tile and of one of its columns.
int scale_place(int row, int column, bool mxfp4) {
    return spec::nf4_tile_code_bytes + (mxfp4 ? column / spec::mxfp4_block * spec::nf4_tile : 0) + row;
}

/// Tiles on the CPU, row of tiles by row of tiles.
void make_on_cpu(const spec::Quant4View& from, uint8_t* tiles) {
    const int64_t tiles_per_row = from.cols / spec::nf4_tile;
    const bool mxfp4 = from.exponents != nullptr;
    const uint8_t* const scales = mxfp4 ? from.exponents : from.absmax_u8;
    at::parallel_for(0, from.rows / spec::nf4_tile, 1, [&](int64_t begin, int64_t end) {
        for (int64_t index = begin * tiles_per_row; index < end * tiles_per_row; ++index) {
            uint8_t* tile = tiles + index * (mxfp4 ? spec::mxfp4_tile_bytes : spec::nf4_tile_bytes);
            const int64_t first_row = index / tiles_per_row * spec::nf4_tile,
                          column = index % tiles_per_row * spec::nf4_tile;
            std::fill(tile, tile + spec::nf4_tile_code_bytes, uint8_t{0});
            for (int row = 0; row < spec::nf4_tile; ++row) {
                const int64_t first = (first_row + row) * from.cols + column;
                for (int c = 0; c < spec::nf4_tile; c += from.block())
                    tile[scale_place(row, c, mxfp4)] = scales[(first + c) / from.block()];
                for (int c = 0; c < spec::nf4_tile; ++c) {
                    const int code = from.packed[(first + c) / 2] >> (c % 2 == 0 ? 4 : 0) & 15;
                    const spec::Nf4TilePlace place = spec::nf4_tile_place(row, c);
                    tile[place.byte] = static_cast<uint8_t>(tile[place.byte] | code << place.shift);
                }
            }
        }
    });
}

template <class T>
void dequantize_on_cpu(const spec::Nf4TilesView& w, const at::Tensor& out_NK) {
    T* out = out_NK.data_ptr<T>();
    const int64_t stride = out_NK.stride(0), tiles_per_row = w.cols / spec::nf4_tile;
    at::parallel_for(0, w.rows, spec::nf4_tile, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t t = 0; t < tiles_per_row; ++t) {
                const uint8_t* tile = w.tiles + (row / spec::nf4_tile * tiles_per_row + t) * w.tile_bytes();
                const int in_tile = static_cast<int>(row % spec::nf4_tile);
                const int64_t block = row * tiles_per_row + t;
                const auto scale_at = [&](int c) {
                    const uint8_t code = tile[scale_place(in_tile, c, w.is_mxfp4())];
                    if (w.is_mxfp4()) return std::ldexp(1.0F, code - 127);
                    const float product = w.nested_map[code] * w.nested_absmax[block / spec::quant4_nested_block];
                    return product + w.nested_offset;
                };
                const float halves[2] = {scale_at(0), scale_at(spec::mxfp4_block)};
                for (int c = 0; c < spec::nf4_tile; ++c) {
                    const float absmax = halves[c / spec::mxfp4_block];
                    const spec::Nf4TilePlace place = spec::nf4_tile_place(in_tile, c);
                    out[row * stride + t * spec::nf4_tile + c] =
                        static_cast<T>(w.code[tile[place.byte] >> place.shift & 15] * absmax);
                }
            }
        }
    });
}

void gemm_on_cpu(Context& ctx, const Nf4Gemm& g, const Shape& s) {
    at::Tensor sum = at::zeros({s.m, s.out}, at::kFloat);
    int64_t first = 0;
    for (const Nf4Tiles& w : g.weights) {
        const at::Tensor w_NK = at::empty({w.rows, w.cols}, g.x.options());
        dequantize_nf4_tiles(ctx, w, w_NK);
        if (g.transposed) {
            sum.addmm_(g.x.narrow(1, first, w.rows).to(at::kFloat), w_NK.to(at::kFloat));
        } else {
            sum.narrow(1, first, w.rows).addmm_(g.x.narrow(1, 0, s.sum).to(at::kFloat), w_NK.to(at::kFloat).t());
        }
        first += w.rows;
    }
    if (s.r > 0) {
        const at::Tensor tail = (g.transposed ? g.tail_weight : g.tail_weight.t()).to(at::kFloat);
        sum.addmm_(g.x.narrow(1, s.sum, s.r).to(at::kFloat), tail);
    }
    if (g.bias) sum.add_(*g.bias);
    if (g.residual) sum.add_(*g.residual);
    g.out.copy_(sum);
}

}  // namespace

spec::Nf4TilesView Nf4Tiles::view() const {
    const float* table = tables.const_data_ptr<float>();
    return {.tiles = tiles.const_data_ptr<uint8_t>(),
            .code = table,
            .nested_map = table + 16,
            .nested_absmax = is_mxfp4() ? nullptr : nested_absmax.const_data_ptr<float>(),
            .nested_offset = nested_offset,
            .rows = rows,
            .cols = cols};
}

Nf4Tiles make_nf4_tiles(Context& ctx, const Quant4Tensor& weight) {
    UNSLOTH_CHECK(weight.packed.device() == ctx.device(), "the weight is on ", weight.packed.device(),
                  ", the context on ", ctx.device());
    const spec::Quant4View view = weight.view();
    UNSLOTH_CHECK(spec::nf4_tiles_supported(view), "a 4-bit weight [", weight.rows, ", ", weight.cols, "] with ",
                  view.nested() ? "" : "un", "nested block maxima cannot be in tiles");
    Nf4Tiles result{.tiles = at::empty({weight.rows / spec::nf4_tile, weight.cols / spec::nf4_tile,
                                        weight.is_mxfp4() ? spec::mxfp4_tile_bytes : spec::nf4_tile_bytes},
                                       weight.packed.options()),
                    .nested_absmax = weight.nested_absmax,
                    .tables = weight.tables,
                    .nested_offset = weight.nested_offset,
                    .rows = weight.rows,
                    .cols = weight.cols};
    if (!ctx.is_cuda()) {
        make_on_cpu(view, result.tiles.data_ptr<uint8_t>());
    } else {
#if UNSLOTH_CUDA
        make_nf4_tiles_cuda(ctx, view, result.tiles.data_ptr<uint8_t>());
#endif
    }
    return result;
}

void dequantize_nf4_tiles(Context& ctx, const Nf4Tiles& weight, const at::Tensor& out_NK) {
    UNSLOTH_CHECK(out_NK.dim() == 2 && out_NK.size(0) == weight.rows && out_NK.size(1) == weight.cols, "out_NK is ",
                  out_NK.sizes(), ", the weight [", weight.rows, ", ", weight.cols, "]");
    UNSLOTH_CHECK(out_NK.device() == ctx.device() && weight.tiles.device() == ctx.device(), "out_NK is on ",
                  out_NK.device(), ", the weight on ", weight.tiles.device(), ", the context on ", ctx.device());
    UNSLOTH_CHECK(out_NK.stride(1) == 1 && out_NK.stride(0) >= weight.cols, "out_NK's strides are ", out_NK.strides());
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return dequantize_nf4_tiles_cuda(ctx, weight.view(), out_NK);
#endif
    switch (out_NK.scalar_type()) {
        case at::kFloat:
            return dequantize_on_cpu<float>(weight.view(), out_NK);
        case at::kBFloat16:
            return dequantize_on_cpu<at::BFloat16>(weight.view(), out_NK);
        case at::kHalf:
            return dequantize_on_cpu<at::Half>(weight.view(), out_NK);
        default:
            UNSLOTH_CHECK(false, "out_NK is ", out_NK.scalar_type(), ", expected float32, bfloat16 or float16");
    }
}

std::vector<Nf4GemmChoice> nf4_gemm_forms(at::Device device, bool transposed) {
#if UNSLOTH_CUDA
    if (device.is_cuda()) return nf4_gemm_forms_cuda(device, transposed);
#endif
    (void)device, (void)transposed;
    return {};
}

bool nf4_gemm_supported(Context& ctx, const Nf4Gemm& args) {
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return args.x.scalar_type() == at::kBFloat16 && nf4_gemm_supported_cuda(args);
#endif
    (void)ctx, (void)args;
    return true;
}

void nf4_gemm(Context& ctx, const Nf4Gemm& args, const Nf4GemmChoice& choice) {
    const Shape shape = check(ctx, args);
    if (shape.m == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return nf4_gemm_cuda(ctx, args, choice);
#endif
    (void)choice;
    gemm_on_cpu(ctx, args, shape);
}

}  // namespace unsloth::ops
