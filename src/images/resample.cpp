#include "images/resample.h"

#include <algorithm>
#include <cmath>

#include "unsloth/core/check.h"

namespace unsloth::images {
namespace {

constexpr int weight_bits = 22;

double bilinear(double x) {
    x = std::fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
    constexpr double a = -0.5;
    x = std::fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

/// How a line of `from` values becomes one of `to`: each is the weighted sum of those from `first` on.
struct Line {
    struct Span {
        int32_t first = 0, count = 0;
    };
    std::vector<Span> spans;       ///< [to]
    std::vector<int32_t> weights;  ///< [to][most]
    int32_t most = 0;

    const int32_t* weights_of(int32_t i) const {
        return weights.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(most);
    }
};

Line line_of(int32_t from, int32_t to, Filter filter) {
    const bool cubic = filter == Filter::bicubic;
    const double scale = static_cast<double>(from) / to, stretch = std::max(scale, 1.0);
    const double support = (cubic ? 2.0 : 1.0) * stretch, narrow = 1.0 / stretch;
    Line line;
    line.most = static_cast<int32_t>(std::ceil(support)) * 2 + 1;
    line.spans.resize(static_cast<std::size_t>(to));
    line.weights.assign(static_cast<std::size_t>(to) * static_cast<std::size_t>(line.most), 0);
    std::vector<double> exact(static_cast<std::size_t>(line.most));
    for (int32_t i = 0; i < to; ++i) {
        const double center = (i + 0.5) * scale;
        const int32_t first = std::max(static_cast<int32_t>(center - support + 0.5), 0);
        const int32_t count = std::min(static_cast<int32_t>(center + support + 0.5), from) - first;
        double sum = 0;
        for (int32_t k = 0; k < count; ++k) {
            const double x = (k + first - center + 0.5) * narrow;
            exact[static_cast<std::size_t>(k)] = cubic ? bicubic(x) : bilinear(x);
            sum += exact[static_cast<std::size_t>(k)];
        }
        int32_t* const weights =
            line.weights.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(line.most);
        for (int32_t k = 0; k < count; ++k) {
            const double weight =
                sum != 0 ? exact[static_cast<std::size_t>(k)] / sum : exact[static_cast<std::size_t>(k)];
            weights[k] = static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << weight_bits));
        }
        line.spans[static_cast<std::size_t>(i)] = {first, count};
    }
    return line;
}

uint8_t rounded(int32_t sum) {
    return static_cast<uint8_t>(std::clamp(sum >> weight_bits, 0, 255));
}

constexpr int32_t half = 1 << (weight_bits - 1);

Image resize_width(const Image& image, int32_t width, Filter filter) {
    const Line line = line_of(image.size.width, width, filter);
    Image result{{width, image.size.height}, {}};
    result.rgb.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(image.size.height) * 3);
    uint8_t* to = result.rgb.data();
    for (int32_t y = 0; y < image.size.height; ++y) {
        const uint8_t* const row =
            image.rgb.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(image.size.width) * 3;
        for (int32_t x = 0; x < width; ++x, to += 3) {
            const auto [first, count] = line.spans[static_cast<std::size_t>(x)];
            const int32_t* const weights = line.weights_of(x);
            const uint8_t* from = row + static_cast<std::size_t>(first) * 3;
            int32_t sums[3] = {half, half, half};
            for (int32_t k = 0; k < count; ++k, from += 3)
                for (int c = 0; c < 3; ++c) sums[c] += from[c] * weights[k];
            for (int c = 0; c < 3; ++c) to[c] = rounded(sums[c]);
        }
    }
    return result;
}

Image resize_height(const Image& image, int32_t height, Filter filter) {
    const Line line = line_of(image.size.height, height, filter);
    const auto row_bytes = static_cast<std::size_t>(image.size.width) * 3;
    Image result{{image.size.width, height}, {}};
    result.rgb.resize(row_bytes * static_cast<std::size_t>(height));
    std::vector<int32_t> sums(row_bytes);
    for (int32_t y = 0; y < height; ++y) {
        const auto [first, count] = line.spans[static_cast<std::size_t>(y)];
        std::fill(sums.begin(), sums.end(), half);
        for (int32_t k = 0; k < count; ++k) {
            const uint8_t* const row = image.rgb.data() + static_cast<std::size_t>(first + k) * row_bytes;
            const int32_t weight = line.weights_of(y)[k];
            for (std::size_t i = 0; i < row_bytes; ++i) sums[i] += row[i] * weight;
        }
        uint8_t* const to = result.rgb.data() + static_cast<std::size_t>(y) * row_bytes;
        for (std::size_t i = 0; i < row_bytes; ++i) to[i] = rounded(sums[i]);
    }
    return result;
}

}  // namespace

Image resize(Image image, Size size, Filter filter) {
    UNSLOTH_CHECK(size.width > 0 && size.height > 0, "resized to ", size.width, " x ", size.height);
    // Pillow 13 begins with the height where that leaves fewer pixels for the other pass; older ones with the width.
    const int64_t lower = int64_t{image.size.height} - size.height, thinner = int64_t{image.size.width} - size.width;
    const bool height_first = lower > 0 && lower > 2 * thinner;
    if (height_first) image = resize_height(image, size.height, filter);
    if (thinner != 0) image = resize_width(image, size.width, filter);
    if (lower != 0 && !height_first) image = resize_height(image, size.height, filter);
    return image;
}

}  // namespace unsloth::images
