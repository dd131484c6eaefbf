#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/parallel.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/spec/dynamic_map.h"
#include "unsloth/spec/quant4_host.h"

namespace unsloth::formats {
namespace {

/// Below this many blocks a thread costs more than it saves.
constexpr int64_t blocks_per_thread = 1 << 14;

int64_t nested_blocks(int64_t blocks) {
    return (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block;
}

/// The quant_state's text, padded with spaces (which JSON allows) to a length that does not depend on the offset.
std::string quant_state_text(const Quant4Owned& weight, spec::DType dtype) {
    const OrderedJson json = {{"quant_type", name_of(weight.type)},
                              {"blocksize", spec::quant4_block},
                              {"dtype", name_of(dtype)},
                              {"shape", {weight.rows, weight.cols}},
                              {"nested_blocksize", spec::quant4_nested_block},
                              {"nested_dtype", "float32"},
                              {"nested_offset", static_cast<double>(weight.nested_offset)}};
    constexpr std::size_t longest_number = 25;
    std::string text = json.dump();
    const std::size_t number = OrderedJson(static_cast<double>(weight.nested_offset)).dump().size();
    UNSLOTH_CHECK(number <= longest_number, "an offset of ", number, " characters");
    text.append(longest_number - number, ' ');
    return text;
}

/// fill(packed, absmax, blocks) quantises all blocks once; the rest is the double quantisation of their maxima.
template <class Fill>
Quant4Owned quantize_blocks(Quant4Type type, int64_t rows, int64_t cols, const Fill& fill) {
    UNSLOTH_CHECK(rows > 0 && cols > 0, "a weight [", rows, ", ", cols, "]");
    Quant4Owned result;
    result.type = type;
    result.rows = rows;
    result.cols = cols;
    const int64_t blocks = result.view().blocks();
    result.packed.resize(static_cast<std::size_t>((rows * cols + 1) / 2));
    std::vector<float> absmax(static_cast<std::size_t>(blocks));
    fill(result.packed.data(), absmax.data(), blocks);
    result.absmax.resize(static_cast<std::size_t>(blocks));
    result.nested_absmax.resize(static_cast<std::size_t>(nested_blocks(blocks)));
    result.nested_offset =
        spec::quantize_absmax(absmax.data(), blocks, result.absmax.data(), result.nested_absmax.data());
    if (!std::isfinite(result.nested_offset))
        throw Error("checkpoint.not-finite",
                    cat("a weight ", shape_text({rows, cols}), " to be quantised holds values that are not finite"));
    result.tables.assign(spec::code_of(type), spec::code_of(type) + 16);
    const auto& map = spec::dynamic_map_256(true);
    result.tables.insert(result.tables.end(), map.begin(), map.end());
    return result;
}

template <class T>
std::vector<std::byte> bytes_of(const T* data, std::size_t count) {
    const auto* const begin = reinterpret_cast<const std::byte*>(data);
    return {begin, begin + count * sizeof(T)};
}

std::vector<TensorBlob> checked(std::vector<TensorBlob> blobs) {
    for (const TensorBlob& blob : blobs)
        UNSLOTH_CHECK(blob.data.size() == blob.decl.bytes(), blob.decl.name, ": ", blob.data.size(), " of ",
                      blob.decl.bytes(), " bytes");
    return blobs;
}

}  // namespace

spec::Quant4View Quant4Owned::view() const {
    spec::Quant4View view;
    view.packed = packed.data();
    view.code = tables.data();
    view.absmax_u8 = absmax.data();
    view.nested_map = tables.data() + 16;
    view.nested_absmax = nested_absmax.data();
    view.nested_offset = nested_offset;
    view.rows = rows;
    view.cols = cols;
    return view;
}

Quant4Owned quantize_nf4(const float* w, int64_t rows, int64_t cols, int threads) {
    return quantize_blocks(Quant4Type::nf4, rows, cols, [&](uint8_t* packed, float* absmax, int64_t blocks) {
        parallel_ranges(
            blocks, blocks_per_thread,
            [&](int64_t begin, int64_t end) {
                spec::quantize_4bit_blocks(Quant4Type::nf4, w + begin * spec::quant4_block, rows * cols, begin, end,
                                           packed, absmax);
            },
            threads);
    });
}

Quant4Owned quantize_4bit(Quant4Type type, int64_t rows, int64_t cols, const ReadRows& read, int threads) {
    // Groups of rows that begin where a block does, small enough to stay in a core's cache.
    const int64_t aligned_rows = spec::quant4_block / std::gcd(cols, int64_t{spec::quant4_block});
    const int64_t group_rows = aligned_rows * std::max<int64_t>(1, (1 << 16) / (aligned_rows * cols));
    const int64_t groups = (rows + group_rows - 1) / group_rows;
    return quantize_blocks(type, rows, cols, [&](uint8_t* packed, float* absmax, int64_t blocks) {
        parallel_ranges(
            groups, std::max<int64_t>(1, blocks_per_thread * spec::quant4_block / (group_rows * cols)),
            [&](int64_t begin, int64_t end) {
                std::vector<float> values(static_cast<std::size_t>(group_rows * cols));
                for (int64_t group = begin; group < end; ++group) {
                    const int64_t first = group * group_rows, last = std::min(rows, first + group_rows);
                    read(first, last, values.data());
                    spec::quantize_4bit_blocks(type, values.data(), rows * cols, first * cols / spec::quant4_block,
                                               last == rows ? blocks : last * cols / spec::quant4_block, packed,
                                               absmax);
                }
            },
            threads);
    });
}

std::vector<TensorDecl> quant4_declarations(const std::string& weight_name, int64_t rows, int64_t cols,
                                            spec::DType dtype, Quant4Type type) {
    Quant4Owned shape_only;
    shape_only.type = type;
    shape_only.rows = rows;
    shape_only.cols = cols;
    const int64_t blocks = shape_only.view().blocks();
    const auto state_bytes = static_cast<int64_t>(quant_state_text(shape_only, dtype).size());
    return {{weight_name, spec::DType::u8, {(rows * cols + 1) / 2, 1}},
            {weight_name + ".absmax", spec::DType::u8, {blocks}},
            {weight_name + ".nested_absmax", spec::DType::f32, {nested_blocks(blocks)}},
            {weight_name + ".nested_quant_map", spec::DType::f32, {256}},
            {weight_name + ".quant_map", spec::DType::f32, {16}},
            {cat(weight_name, ".quant_state.bitsandbytes__", name_of(type)), spec::DType::u8, {state_bytes}}};
}

std::vector<TensorBlob> quant4_companions(const std::string& weight_name, const Quant4Owned& weight,
                                          spec::DType dtype) {
    const auto declarations = quant4_declarations(weight_name, weight.rows, weight.cols, dtype, weight.type);
    const std::string state = quant_state_text(weight, dtype);
    return checked({{declarations[2], bytes_of(weight.nested_absmax.data(), weight.nested_absmax.size())},
                    {declarations[3], bytes_of(weight.tables.data() + 16, 256)},
                    {declarations[4], bytes_of(weight.tables.data(), 16)},
                    {declarations[5], bytes_of(state.data(), state.size())}});
}

std::vector<TensorBlob> quant4_tensors(const std::string& weight_name, const Quant4Owned& weight, spec::DType dtype) {
    const auto declarations = quant4_declarations(weight_name, weight.rows, weight.cols, dtype, weight.type);
    std::vector<TensorBlob> blobs = checked({{declarations[0], bytes_of(weight.packed.data(), weight.packed.size())},
                                             {declarations[1], bytes_of(weight.absmax.data(), weight.absmax.size())}});
    std::ranges::move(quant4_companions(weight_name, weight, dtype), std::back_inserter(blobs));
    return blobs;
}

}  // namespace unsloth::formats
