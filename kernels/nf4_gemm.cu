// Products by tiled 4-bit weights for few tokens, on any card from sm_80: mma.sync with the weights as the A
// operand (out and x appear transposed), each weight read once for 8 to 64 tokens.
//
// A block makes 16 Strips rows for 8 TokenGroups tokens. Every warp runs its own cp.async pipeline over its share of
// the reduction's blocks of 64, so that nothing waits for a barrier of the thread block until the warps' sums are
// added, in the order of the warps.
//
// Ceiling: the bandwidth of memory for few tokens (a weight takes 4.5 bits), then the shuffles that look codes up.
#include "kernels/nf4_gemm.cuh"
#include "unsloth/core/check.h"

namespace unsloth::kernels {

bool nf4_gemm_supported(const Nf4GemmArgs& args) {
    if (args.count < 1 || args.count > nf4_gemm_most_weights || args.m < 0 || args.m > INT32_MAX / 2) return false;
    int64_t n = 0;
    const int64_t k = args.weights[0].cols;
    for (int i = 0; i < args.count; ++i) {
        const spec::Nf4TilesView& w = args.weights[i];
        const bool fits = w.rows > 0 && w.rows % spec::nf4_tile == 0 && w.cols == k && k > 0 &&
                          k % spec::nf4_tile == 0 && w.rows * w.cols / spec::nf4_tile < INT32_MAX &&
                          reinterpret_cast<uintptr_t>(w.tiles) % 16 == 0;
        if (!fits) return false;
        n += w.rows;
    }
    if (args.tail < 0 || args.tail % 8 != 0 || args.tail > 4096 || n > (1 << 24) || k > (1 << 24)) return false;
    const bool tail_fits = args.tail == 0 || (reinterpret_cast<uintptr_t>(args.tail_weight.data) % 4 == 0 &&
                                              args.tail_weight.stride % 2 == 0);
    const bool residual_fits =
        args.residual.data == nullptr || aligned_16(args.residual.data, {args.residual.stride}, spec::DType::bf16);
    return tail_fits && residual_fits && aligned_16(args.x.data, {args.x.stride}, spec::DType::bf16) &&
           aligned_16(args.out.data, {args.out.stride}, spec::DType::bf16) &&
           args.x.stride >= (args.transposed ? n : k) + args.tail;
}

namespace {

using namespace nf4;

constexpr int warp = warp_size;
/// What a block may ask for on the smallest card (sm_86, sm_89: 99 KiB), less its static shared memory.
constexpr int most_shared = 90 * 1024;
/// What a block had better take, so that an SM of Hopper or Ampere holds several: warps hide more latency
/// than stages.
constexpr int usual_shared = 54 * 1024;

/// One stage of a warp's pipeline, in bytes: codes of Strips x 4 sub-blocks, scale codes and nested maxima of
/// the rows of the weight that they cover, and x [8 TokenGroups][64] with 16-byte chunks exchanged within a
/// row (chunk c of row t is at c ^ t % 8: ldmatrix reads without bank conflicts).
template <int TokenGroups, int Strips, int Warps, bool Transposed>
struct Stage {
    static constexpr int weight_rows = Transposed ? spec::nf4_tile : 16 * Strips;
    static constexpr int codes = 0;
    static constexpr int scales = Strips * 512;
    static constexpr int nested = scales + 64;
    static constexpr int x = nested + weight_rows * 4;
    static constexpr int bytes = x + TokenGroups * 8 * 128;
    static constexpr int count = std::clamp(usual_shared / (Warps * bytes), 2, 4);
};

/// The address of a warp's next tile. Tiles of one weight are a fixed distance apart; the transposed product goes
/// from weight to weight.
template <bool Transposed>
struct Cursor {
    const uint8_t* tile;
    const float* nested_absmax;
    uint32_t nested_block;  ///< number of the block that the tile's row 0 is
    int block;              ///< of the reduction, counted from the weights' first
    int segment, segment_end;

    __device__ __forceinline__ Cursor(const Problem& p, int row_tile, int first) : block(first) { locate(p, row_tile); }
    __device__ __forceinline__ void locate(const Problem& p, int row_tile) {
        if (block >= p.blocks - p.tail_blocks) return;
        const TileRef t = tile_at<Transposed>(p, row_tile, p.tail_blocks + block);
        segment = t.segment;
        segment_end = Transposed && segment + 1 < p.count ? p.segments[segment + 1].first : p.blocks - p.tail_blocks;
        tile = tile_data(p, t);
        nested_absmax = p.segments[segment].nested_absmax;
        nested_block = static_cast<uint32_t>(t.n * spec::nf4_tile * p.k_tiles + t.k);
    }
    __device__ __forceinline__ void advance(const Problem& p, int row_tile, int by) {
        block += by;
        const int distance = Transposed ? by * p.k_tiles : by;
        tile += int64_t{distance} * spec::nf4_tile_bytes;
        nested_block += static_cast<uint32_t>(Transposed ? distance * spec::nf4_tile : distance);
        if (Transposed && block >= segment_end) locate(p, row_tile);
    }
};

/// The tail's products, added to the sums of warps that take one of its blocks each; operands straight from
/// memory.
template <int TokenGroups, int Strips, bool Transposed>
__device__ __forceinline__ void add_tail(const Problem& p, int first_row, int first_token, int block, int lane,
                                         float (&sums)[Strips][TokenGroups][4]) {
    for (int step = 0; step < 4; ++step) {
        if (block * spec::nf4_tile + step * 16 >= p.tail) return;
        const int r = tail_begin(p, first_row / spec::nf4_tile) + block * spec::nf4_tile + step * 16;
        uint32_t a[Strips][4];
#pragma unroll
        for (int strip = 0; strip < Strips; ++strip)
            tail_operand<Transposed>(p, first_row + strip * 16 + lane / 4, r, lane, a[strip]);
        const __nv_bfloat16* x = p.x + (p.blocks - p.tail_blocks) * spec::nf4_tile + r + lane % 4 * 2;
#pragma unroll
        for (int g = 0; g < TokenGroups; ++g) {
            const int token = first_token + g * 8 + lane / 4;
            uint32_t b[2] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (token < p.m && r + half * 8 < p.all_tail)
                    b[half] = *reinterpret_cast<const uint32_t*>(x + token * p.x_stride + half * 8);
            }
#pragma unroll
            for (int strip = 0; strip < Strips; ++strip)
                mma_m16n8k16<__nv_bfloat16>(sums[strip][g], a[strip], b[0], b[1]);
        }
    }
}

/// The loads of a warp's pipeline: its share of the reduction's blocks, one a stage.
template <int TokenGroups, int Strips, int Warps, bool Transposed>
struct Producer {
    using S = Stage<TokenGroups, Strips, Warps, Transposed>;
    static constexpr int tokens = 8 * TokenGroups;

    const Problem& p;
    const uint32_t buffers;  ///< shared address of the warp's stages
    const int blocks, row_tile, first_strip, first_token, warp_index, lane;
    Cursor<Transposed> cursor{p, row_tile, warp_index};
    const int codes_from =
        Transposed ? lane / 8 * 512 + first_strip * 128 + lane % 8 * 16 : first_strip * 512 + lane * 16;
    const int first_scale = Transposed ? 0 : first_strip * 16;
    const __nv_bfloat16* x = p.x + (first_token + lane / 8) * p.x_stride + warp_index * spec::nf4_tile + lane % 8 * 8;
    const uint32_t x_to = S::x + lane / 8 * 128;

    /// Fetches the next block, if there is one; commits a group in any case.
    __device__ __forceinline__ void load(int stage) {
        if (cursor.block < blocks) {
            const uint32_t to = buffers + stage * S::bytes;
#pragma unroll
            for (int i = 0; i < Strips; ++i)  // a strip's four sub-blocks, 32 chunks
                cp_async_16(to + S::codes + i * 512 + lane * 16,
                            cursor.tile + codes_from + i * (Transposed ? 128 : 512));
            if (lane < S::weight_rows / 16)
                cp_async_16(to + S::scales + lane * 16,
                            cursor.tile + spec::nf4_tile_code_bytes + first_scale + lane * 16);
#pragma unroll
            for (int r = lane; r < S::weight_rows; r += warp) {
                const uint32_t block = cursor.nested_block + static_cast<uint32_t>((first_scale + r) * p.k_tiles);
                cp_async_4(to + S::nested + r * 4, cursor.nested_absmax + block / spec::quant4_nested_block);
            }
#pragma unroll
            for (int i = 0; i < tokens / 4; ++i) {
                const int token = i * 4 + lane / 8;
                if (first_token + token < p.m)
                    cp_async_16(to + x_to + i * 512 + ((lane % 8) ^ (token % 8)) * 16, x + i * 4 * p.x_stride);
            }
            cursor.advance(p, row_tile, Warps);
            x += Warps * spec::nf4_tile;
        }
        cp_async_commit_group();
    }
};

/// Multiplies what the stages bring: sums of a warp's share of the reduction.
template <int TokenGroups, int Strips, int Warps, bool Transposed>
struct Consumer {
    using S = Stage<TokenGroups, Strips, Warps, Transposed>;

    const Problem& p;
    const Tables& tables;
    float* const scale_buffer;  ///< [nf4_tile], the warp's own
    const int blocks, row_tile, lane;
    int segment = -1, segment_end = 0;
    float code_value = 0, offset = 0;
    const float* map = nullptr;

    /// The tables of the weight that the block belongs to; forward: once.
    __device__ __forceinline__ void enter(int block) {
        if (block >= segment_end) {
            segment = segment_of(p, Transposed ? block : row_tile);
            segment_end = Transposed && segment + 1 < p.count ? p.segments[segment + 1].first : blocks;
            code_value = tables.code[segment][lane % 16];
            map = tables.map[segment];
            offset = p.segments[segment].nested_offset;
        }
    }
    __device__ __forceinline__ float scale(const uint8_t* stage, int r) const {
        return nf4_scale(map[stage[S::scales + r]], *reinterpret_cast<const float*>(stage + S::nested + r * 4), offset);
    }
    /// The B operands of 8 tokens.
    __device__ __forceinline__ void load_x(uint32_t stage, int group, uint32_t (&to)[8]) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t matrices[4];
            ldmatrix_x4(matrices,
                        stage + S::x + (group * 8 + lane % 8) * 128 + (((h * 4 + lane / 8) ^ (lane % 8)) * 16));
#pragma unroll
            for (int i = 0; i < 4; ++i) to[4 * h + i] = matrices[i];
        }
    }
    /// A strip's A operands, dequantised.
    __device__ __forceinline__ void load_weights(const uint8_t* stage, uint32_t address, int strip,
                                                 uint32_t (&a)[4][4]) const {
        uint32_t words[4];
        load_codes<Transposed>(words, address + S::codes + strip * 512 + lane * 16);
        if constexpr (Transposed) {
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                const float* scales = scale_buffer + s * 16 + lane % 4 * 2;
                const float2 first = *reinterpret_cast<const float2*>(scales);
                const float2 second = *reinterpret_cast<const float2*>(scales + 8);
                nf4_operand_transposed(words[s], code_value, first, second, a[s]);
            }
        } else {
            const float row_scale[2] = {scale(stage, strip * 16 + lane / 4), scale(stage, strip * 16 + lane / 4 + 8)};
#pragma unroll
            for (int s = 0; s < 4; ++s) nf4_operand(words[s], code_value, row_scale, a[s]);
        }
    }
    /// One stage, as data and as shared address.
    __device__ __forceinline__ void multiply(const uint8_t* stage, uint32_t address,
                                             float (&sums)[Strips][TokenGroups][4]) const {
        if (Transposed) {
            scale_buffer[lane] = scale(stage, lane);
            scale_buffer[lane + 32] = scale(stage, lane + 32);
            __syncwarp();
        }
        uint32_t b[TokenGroups <= 2 ? TokenGroups : 1][8];
        if constexpr (TokenGroups <= 2) {
#pragma unroll
            for (int g = 0; g < TokenGroups; ++g) load_x(address, g, b[g]);
        }
#pragma unroll
        for (int strip = 0; strip < Strips; ++strip) {
            uint32_t a[4][4];
            load_weights(stage, address, strip, a);
#pragma unroll
            for (int g = 0; g < TokenGroups; ++g) {
                if constexpr (TokenGroups > 2) load_x(address, g, b[0]);
                const uint32_t (&operand)[8] = b[TokenGroups <= 2 ? g : 0];
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    mma_m16n8k16<__nv_bfloat16>(sums[strip][g], a[s], operand[2 * s], operand[2 * s + 1]);
            }
        }
    }
};

/// Adds the warps' sums in their order, with bias and residual, and stores them.
template <int TokenGroups, int Strips, int Warps>
__device__ __forceinline__ void epilogue(const Problem& p, float* partial, int warp_index, int lane, int first_row,
                                         int first_token, const float (&sums)[Strips][TokenGroups][4]) {
    constexpr int tokens = 8 * TokenGroups, rows = 16 * Strips;
    constexpr int pitch = rows + 4;  // partial [Warps][tokens][pitch]: four lanes of eight rows hit different banks
#pragma unroll
    for (int strip = 0; strip < Strips; ++strip) {
#pragma unroll
        for (int g = 0; g < TokenGroups; ++g) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = g * 8 + lane % 4 * 2 + i % 2, row = strip * 16 + lane / 4 + i / 2 * 8;
                partial[(warp_index * tokens + token) * pitch + row] = sums[strip][g][i];
            }
        }
    }
    __syncthreads();
    for (int item = threadIdx.x; item < tokens * (rows / 8); item += Warps * warp) {
        const int token = item / (rows / 8), row = item % (rows / 8) * 8;
        if (first_token + token >= p.m) break;
        float v[8] = {};
#pragma unroll
        for (int w = 0; w < Warps; ++w) {
            const auto* from = reinterpret_cast<const float4*>(partial + (w * tokens + token) * pitch + row);
            add_eight(v, from[0], from[1]);
        }
        store_eight(p, first_token + token, first_row + row, v);
    }
}

template <int TokenGroups, int Strips, int Warps, bool Transposed>
__global__ void __launch_bounds__(Warps* warp) nf4_gemm_kernel(const __grid_constant__ Problem p) {
    using S = Stage<TokenGroups, Strips, Warps, Transposed>;
    constexpr int stages = S::count, tokens = 8 * TokenGroups, rows = 16 * Strips;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Tables tables;
    __shared__ float scale_buffer[Warps][spec::nf4_tile];

    const int lane = threadIdx.x % warp;
    const int warp_index = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x / warp), 0);  // known to be uniform
    const int first_row = static_cast<int>(blockIdx.x) * rows;  // of the result's second dimension
    const int row_tile = first_row / spec::nf4_tile, first_strip = first_row % spec::nf4_tile / 16;
    const int first_token = static_cast<int>(blockIdx.y) * tokens;
    const int blocks = p.blocks - p.tail_blocks;
    uint8_t* const buffers = shared + warp_index * (stages * S::bytes);
    const uint32_t buffers_address = shared_address(buffers);

    Producer<TokenGroups, Strips, Warps, Transposed> producer{p,           buffers_address, blocks,     row_tile,
                                                              first_strip, first_token,     warp_index, lane};
    if (first_token + tokens > p.m) {  // tokens that do not exist are never copied: zeros from the start
        for (int i = lane; i < stages * tokens * 8; i += warp)
            *reinterpret_cast<uint4*>(buffers + i / (tokens * 8) * S::bytes + S::x + i % (tokens * 8) * 16) = uint4{};
        __syncwarp();
    }
#pragma unroll
    for (int s = 0; s < stages - 1; ++s) producer.load(s);
    tables.load(p, static_cast<int>(threadIdx.x), Warps * warp);
    float sums[Strips][TokenGroups][4] = {};
    for (int block = warp_index; block < p.tail_blocks; block += Warps)
        add_tail<TokenGroups, Strips, Transposed>(p, first_row, first_token, block, lane, sums);
    __syncthreads();

    Consumer<TokenGroups, Strips, Warps, Transposed> consumer{p,      tables,   scale_buffer[warp_index],
                                                              blocks, row_tile, lane};
    int stage = 0;
    for (int block = warp_index; block < blocks; block += Warps) {
        consumer.enter(block);
        cp_async_wait_group<stages - 2>();
        __syncwarp();  // every lane's copies are there, and the stage that is filled next has been read by all
        const uint8_t* data = buffers + stage * S::bytes;
        const uint32_t address = buffers_address + stage * S::bytes;
        producer.load(stage == 0 ? stages - 1 : stage - 1);
        stage = stage + 1 == stages ? 0 : stage + 1;
        consumer.multiply(data, address, sums);
    }
    cp_async_wait_group<0>();
    __syncthreads();
    epilogue<TokenGroups, Strips, Warps>(p, reinterpret_cast<float*>(shared), warp_index, lane, first_row, first_token,
                                         sums);
}

template <int TokenGroups, int Strips, int Warps, bool Transposed>
void launch(const Problem& p, cudaStream_t stream) {
    using S = Stage<TokenGroups, Strips, Warps, Transposed>;
    constexpr int pipeline = Warps * S::count * S::bytes;
    constexpr int reduction = Warps * 8 * TokenGroups * (16 * Strips + 4) * static_cast<int>(sizeof(float));
    constexpr int bytes = std::max(pipeline, reduction);
    static_assert(bytes <= most_shared, "more shared memory than every card has");
    const dim3 grid(static_cast<unsigned>(p.row_tiles * (4 / Strips)),
                    static_cast<unsigned>(ceil_div(p.m, 8 * TokenGroups)));
    launch_kernel(nf4_gemm_kernel<TokenGroups, Strips, Warps, Transposed>,
                  {.grid = grid, .threads = Warps * warp, .shared_bytes = bytes, .stream = stream}, p);
}

/// The forms that are built.
template <class F>
bool with_form(Nf4GemmForm form, F f) {
    const auto is = [&](int token_groups, int strips, int warps) {
        return form.token_groups == token_groups && form.strips == strips && form.warps == warps;
    };
#define UNSLOTH_FORM(token_groups, strips, warps)                                             \
    if (is(token_groups, strips, warps)) {                                                    \
        f(std::integral_constant<int, token_groups>{}, std::integral_constant<int, strips>{}, \
          std::integral_constant<int, warps>{});                                              \
        return true;                                                                          \
    }
    UNSLOTH_FORM(1, 1, 16)
    UNSLOTH_FORM(1, 1, 8)
    UNSLOTH_FORM(1, 2, 16)
    UNSLOTH_FORM(1, 2, 8)
    UNSLOTH_FORM(1, 4, 8)
    UNSLOTH_FORM(2, 1, 8)
    UNSLOTH_FORM(2, 2, 8)
    UNSLOTH_FORM(2, 4, 8)
    UNSLOTH_FORM(4, 2, 8)
    UNSLOTH_FORM(4, 4, 4)
    UNSLOTH_FORM(8, 2, 4)
#undef UNSLOTH_FORM
    return false;
}

}  // namespace

bool nf4_gemm_has(Nf4GemmForm form) {
    return with_form(form, [](auto, auto, auto) {});
}

void nf4_gemm(const Nf4GemmArgs& args, Nf4GemmForm form, cudaStream_t stream) {
    UNSLOTH_CHECK(nf4_gemm_supported(args), "nf4_gemm: unsupported arguments");
    if (args.m == 0) return;
    const Problem p = make_problem(args);
    UNSLOTH_CHECK(form.token_groups > 0 && ceil_div(args.m, 8 * form.token_groups) <= 65535, "nf4_gemm: ", args.m,
                  " tokens in blocks of ", 8 * form.token_groups, " are more blocks than a grid has");
    const bool found = with_form(form, [&](auto token_groups, auto strips, auto warps) {
        args.transposed ? launch<token_groups, strips, warps, true>(p, stream)
                        : launch<token_groups, strips, warps, false>(p, stream);
    });
    UNSLOTH_CHECK(found, "nf4_gemm: no form of ", form.token_groups, " token groups, ", form.strips, " strips and ",
                  form.warps, " warps");
}

}  // namespace unsloth::kernels
