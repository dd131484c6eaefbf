#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/spec/dynamic_map.h"

namespace unsloth {
namespace {

/// Below this many blocks a thread costs more than it saves.
constexpr int64_t blocks_per_thread = 1 << 14;

/// Runs body(begin, end) over disjoint ranges of blocks.
template <class Body>
void for_block_ranges(int64_t blocks, int threads, const Body& body) {
    const int64_t wanted =
        threads > 0 ? threads : static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    const int64_t count = std::clamp<int64_t>(blocks / blocks_per_thread, 1, wanted);
    std::vector<std::jthread> workers;
    for (int64_t i = 1; i < count; ++i)
        workers.emplace_back([&, i] { body(blocks * i / count, blocks * (i + 1) / count); });
    body(0, blocks / count);
}

/// The largest magnitude of n values; NaN when one of them is not finite.
float block_maximum(const float* w, int64_t n) {
    float largest = 0.0F;
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
        const float magnitude = std::abs(w[i]);
        finite = finite & (magnitude <= std::numeric_limits<float>::max());
        largest = std::max(largest, magnitude);
    }
    return finite ? largest : std::numeric_limits<float>::quiet_NaN();
}

/// Each value's code is the number of thresholds below it. In a block of zeros x / absmax is NaN, which is above none:
/// bitsandbytes gives code 0 there, and so do we.
void encode_block(const float* w, int64_t n, float absmax, uint8_t* packed) {
    const float inverse = 1.0F / absmax;
    uint8_t codes[quant4_block];
    std::fill(codes, codes + quant4_block, uint8_t{7});  // the code of 0 fills the last byte of an odd count
    for (int64_t i = 0; i < n; ++i) {
        const float x = w[i] * inverse;
        int code = 0;
        for (const float threshold : nf4_threshold) code += x > threshold;
        codes[i] = static_cast<uint8_t>(code);
    }
    for (int64_t i = 0; i < n; i += 2) packed[i / 2] = static_cast<uint8_t>(codes[i] << 4 | codes[i + 1]);
}

/// The nearest entry of the signed dynamic map; a value on a midpoint takes the lower one.
class NearestEntry {
  public:
    NearestEntry() {
        const auto& map = dynamic_map_256(true);
        for (std::size_t i = 0; i < midpoints_.size(); ++i) midpoints_[i] = (map[i] + map[i + 1]) * 0.5F;
    }
    uint8_t operator()(float x) const {
        return static_cast<uint8_t>(std::lower_bound(midpoints_.begin(), midpoints_.end(), x) - midpoints_.begin());
    }

  private:
    std::array<float, 255> midpoints_{};
};

/// Double quantisation: the maxima less their mean, in 8 bits, 256 to a block.
void quantize_absmax(const std::vector<float>& absmax, Quant4Owned& result) {
    double sum = 0.0;  // in order and in fp64: the mean does not depend on the number of threads
    for (const float value : absmax) sum += value;
    result.nested_offset = static_cast<float>(sum / static_cast<double>(absmax.size()));
    static const NearestEntry nearest;
    result.absmax.resize(absmax.size());
    for (std::size_t begin = 0; begin < absmax.size(); begin += quant4_nested_block) {
        const std::size_t end = std::min(absmax.size(), begin + quant4_nested_block);
        float largest = 0.0F;
        for (std::size_t i = begin; i < end; ++i)
            largest = std::max(largest, std::abs(absmax[i] - result.nested_offset));
        result.nested_absmax.push_back(largest);
        const float inverse = largest > 0.0F ? 1.0F / largest : 0.0F;
        for (std::size_t i = begin; i < end; ++i)
            result.absmax[i] = nearest((absmax[i] - result.nested_offset) * inverse);
    }
}

int64_t nested_blocks(int64_t blocks) {
    return (blocks + quant4_nested_block - 1) / quant4_nested_block;
}

/// The quant_state's text, padded with spaces (which JSON allows) to a length that does not depend on the offset.
std::string quant_state_text(const Quant4Owned& weight, DType dtype) {
    const formats::OrderedJson json = {{"quant_type", name_of(weight.type)},
                                       {"blocksize", quant4_block},
                                       {"dtype", name_of(dtype)},
                                       {"shape", {weight.rows, weight.cols}},
                                       {"nested_blocksize", quant4_nested_block},
                                       {"nested_dtype", "float32"},
                                       {"nested_offset", static_cast<double>(weight.nested_offset)}};
    constexpr std::size_t longest_number = 25;
    std::string text = json.dump();
    const std::size_t number = formats::OrderedJson(static_cast<double>(weight.nested_offset)).dump().size();
    UNSLOTH_CHECK(number <= longest_number, "an offset of ", number, " characters");
    text.append(longest_number - number, ' ');
    return text;
}

template <class T>
std::vector<std::byte> bytes_of(const T* data, std::size_t count) {
    const auto* const begin = reinterpret_cast<const std::byte*>(data);
    return {begin, begin + count * sizeof(T)};
}

}  // namespace

Quant4View Quant4Owned::view() const {
    Quant4View view;
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
    UNSLOTH_CHECK(rows > 0 && cols > 0, "a weight [", rows, ", ", cols, "]");
    Quant4Owned result;
    result.rows = rows;
    result.cols = cols;
    const int64_t n = rows * cols;
    const int64_t blocks = result.view().blocks();
    result.packed.resize(static_cast<std::size_t>((n + 1) / 2));
    std::vector<float> absmax(static_cast<std::size_t>(blocks));
    std::atomic<bool> finite = true;
    for_block_ranges(blocks, threads, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
            const int64_t first = block * quant4_block;
            const int64_t count = std::min<int64_t>(quant4_block, n - first);
            const float largest = block_maximum(w + first, count);
            if (std::isnan(largest)) finite = false;
            absmax[static_cast<std::size_t>(block)] = largest;
            encode_block(w + first, count, largest, result.packed.data() + first / 2);
        }
    });
    if (!finite)
        throw input_error(
            cat("a weight ", shape_text({rows, cols}), " to be quantised holds values that are not finite"));
    quantize_absmax(absmax, result);
    result.tables.assign(std::begin(nf4_code), std::end(nf4_code));
    const auto& map = dynamic_map_256(true);
    result.tables.insert(result.tables.end(), map.begin(), map.end());
    return result;
}

std::vector<TensorDecl> quant4_declarations(const std::string& weight_name, int64_t rows, int64_t cols, DType dtype) {
    Quant4Owned shape_only;
    shape_only.rows = rows;
    shape_only.cols = cols;
    const int64_t blocks = shape_only.view().blocks();
    const auto state_bytes = static_cast<int64_t>(quant_state_text(shape_only, dtype).size());
    return {{weight_name, DType::u8, {(rows * cols + 1) / 2, 1}},
            {weight_name + ".absmax", DType::u8, {blocks}},
            {weight_name + ".nested_absmax", DType::f32, {nested_blocks(blocks)}},
            {weight_name + ".nested_quant_map", DType::f32, {256}},
            {weight_name + ".quant_map", DType::f32, {16}},
            {weight_name + ".quant_state.bitsandbytes__nf4", DType::u8, {state_bytes}}};
}

std::vector<TensorBlob> quant4_tensors(const std::string& weight_name, const Quant4Owned& weight, DType dtype) {
    const auto declarations = quant4_declarations(weight_name, weight.rows, weight.cols, dtype);
    const std::string state = quant_state_text(weight, dtype);
    std::vector<TensorBlob> blobs = {
        {declarations[0], bytes_of(weight.packed.data(), weight.packed.size())},
        {declarations[1], bytes_of(weight.absmax.data(), weight.absmax.size())},
        {declarations[2], bytes_of(weight.nested_absmax.data(), weight.nested_absmax.size())},
        {declarations[3], bytes_of(weight.tables.data() + 16, 256)},
        {declarations[4], bytes_of(weight.tables.data(), 16)},
        {declarations[5], bytes_of(state.data(), state.size())}};
    for (const TensorBlob& blob : blobs)
        UNSLOTH_CHECK(blob.data.size() == blob.decl.bytes(), blob.decl.name, ": ", blob.data.size(), " of ",
                      blob.decl.bytes(), " bytes");
    return blobs;
}

}  // namespace unsloth
