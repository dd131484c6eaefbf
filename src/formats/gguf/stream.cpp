#include "formats/gguf/stream.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/parallel.h"

namespace unsloth::formats::gguf {
namespace {

constexpr int64_t chunk_elements = 1 << 23;         ///< in fp32 32 MiB
constexpr int64_t least_thread_elements = 1 << 15;  ///< below this a thread costs more than it saves
constexpr double seconds_between_lines = 15;

/// What one thread saw of its rows.
struct Sums {
    double squared_error = 0, squares = 0;
};

void read_rows(const Item& item, int64_t begin, int64_t end, float* out) {
    if (item.head_dim == 0) {
        item.read(begin, end, out);
    } else {
        const int64_t d = item.head_dim;
        for (int64_t row = begin; row < end; ++row) {
            const int64_t in_head = row % d;
            const int64_t source = row - in_head + in_head % 2 * (d / 2) + in_head / 2;
            item.read(source, source + 1, out + (row - begin) * item.cols());
        }
    }
    if (item.factor == 1) return;
    for (int64_t i = 0; i < (end - begin) * item.cols(); ++i) out[i] *= item.factor;
}

/// Adds what a reader of the bytes will be off by.
void compare(GgmlType type, const float* x, const std::byte* bytes, int64_t n, Sums& sums) {
    constexpr int64_t most = 1024;  // a multiple of all blocks
    float values[most];
    for (int64_t i = 0; i < n; i += most) {
        const int64_t count = std::min(most, n - i);
        dequantize_ggml(type, bytes + ggml_bytes(type, i), count, values);
        // Four sums each, so that they need not wait for one another.
        double error[4] = {}, square[4] = {};
        for (int64_t j = 0; j < count; ++j) {
            const double value = x[i + j], difference = static_cast<double>(values[j]) - value;
            error[j % 4] += difference * difference;
            square[j % 4] += value * value;
        }
        sums.squared_error += error[0] + error[1] + (error[2] + error[3]);
        sums.squares += square[0] + square[1] + (square[2] + square[3]);
    }
}

class Stream {
  public:
    Stream(const std::filesystem::path& out, const GgufMetadata& metadata, const std::vector<Item>& items, int threads)
        : items_(items), threads_(threads), writer_(out, metadata, declarations(items)) {}

    GgufReport run() {
        const auto start = Clock::now();
        last_line_ = start;
        for (const Item& item : items_) report_.source_bytes += static_cast<std::size_t>(item.decl.elements()) * 4;
        for (const Item& item : items_) write(item);
        writer_.finish();
        report_.file_bytes = writer_.file_size();
        report_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
        return std::move(report_);
    }

  private:
    using Clock = std::chrono::steady_clock;

    static std::vector<GgufTensorDecl> declarations(const std::vector<Item>& items) {
        std::vector<GgufTensorDecl> all;
        for (const Item& item : items) all.push_back(item.decl);
        return all;
    }

    void write(const Item& item) {
        const int64_t step = std::max<int64_t>(1, chunk_elements / item.cols());
        for (int64_t row = 0; row < item.rows(); row += step) {
            write_rows(item, row, std::min(item.rows(), row + step));
            if (item.drop) item.drop();  // an embedding matrix is larger than two layers
            stop_if_interrupted();
        }
        GgufTypeReport& type = report_.types[std::string(info_of(item.decl.type).name)];
        ++type.tensors;
        type.elements += item.decl.elements();
        type.bytes += item.decl.bytes();
        show_progress();
    }

    void write_rows(const Item& item, int64_t begin, int64_t end) {
        const GgmlType type = item.decl.type;
        const int64_t cols = item.cols(), rows = end - begin;
        values_.resize(static_cast<std::size_t>(std::max<int64_t>(rows * cols, static_cast<int64_t>(values_.size()))));
        bytes_.resize(std::max(ggml_bytes(type, rows * cols), bytes_.size()));
        const int64_t least_rows = std::max<int64_t>(1, least_thread_elements / cols);
        std::map<int64_t, Sums> sums;  // by first row: added in the same order every time
        std::mutex guard;
        parallel_ranges(
            rows, least_rows,
            [&](int64_t first, int64_t last) {
                float* const x = values_.data() + first * cols;
                std::byte* const bytes = bytes_.data() + ggml_bytes(type, first * cols);
                read_rows(item, begin + first, begin + last, x);
                quantize_ggml(type, x, (last - first) * cols, bytes);
                Sums sum;
                compare(type, x, bytes, (last - first) * cols, sum);
                const std::lock_guard lock(guard);
                sums[first] = sum;
            },
            threads_);
        GgufTypeReport& report = report_.types[std::string(info_of(type).name)];
        for (const auto& [first, sum] : sums) {
            check(item, sum);
            report.squared_error += sum.squared_error;
            report.squares += sum.squares;
        }
        const std::size_t size = ggml_bytes(type, rows * cols);
        writer_.append(item.decl.name, std::span(bytes_).first(size));
        done_ += static_cast<std::size_t>(rows * cols) * 4;
    }

    static void check(const Item& item, const Sums& sums) {
        if (!std::isfinite(sums.squares))
            throw Error("checkpoint.not-finite", cat("tensor '", item.source, "' holds values that are not finite"),
                        "The model is damaged, or its training diverged.");
        if (!std::isfinite(sums.squared_error))
            throw Error("checkpoint.too-large-value",
                        cat("tensor '", item.source, "' holds values too large for ", info_of(item.decl.type).name,
                            ", whose largest is 65504 (or a scale of that)"),
                        "Export with --type bf16 or f32.");
    }

    void show_progress() {
        const auto now = Clock::now();
        if (std::chrono::duration<double>(now - last_line_).count() < seconds_between_lines) return;
        last_line_ = now;
        log::info("  ", done_ * 100 / std::max<std::size_t>(1, report_.source_bytes), " % written");
    }

    const std::vector<Item>& items_;
    int threads_;
    GgufWriter writer_;
    GgufReport report_;
    std::vector<float> values_;
    std::vector<std::byte> bytes_;
    std::size_t done_ = 0;
    Clock::time_point last_line_;
};

}  // namespace

void TypeSetter::set(Item& item, GgmlType wanted) {
    item.decl.type = type_for_rows(wanted, item.cols());
    if (item.decl.type == wanted) return;
    ++replacements_[cat("rows of ", item.cols(), ", no multiple of ", info_of(wanted).name, "'s block of ",
                        info_of(wanted).block, ": written as ", info_of(item.decl.type).name)];
}

void TypeSetter::log_replacements() const {
    for (const auto& [what, count] : replacements_)
        log::warning(count, count == 1 ? " weight has " : " weights have ", what);
}

GgufReport write_items(const std::filesystem::path& out, const GgufMetadata& metadata, const std::vector<Item>& items,
                       int threads) {
    if (std::filesystem::exists(out))
        throw Error("output.exists", cat(out.string(), " exists"), "Remove it, or give another name with --out.");
    GgufReport report = Stream(out, metadata, items, threads).run();
    const GgufFile written(out);  // the strict reader has the last word
    UNSLOTH_CHECK(written.tensors().size() == items.size() && written.size() == report.file_bytes, out.string());
    return report;
}

}  // namespace unsloth::formats::gguf

namespace unsloth::formats {

double GgufTypeReport::relative_error() const {
    return squares > 0 ? std::sqrt(squared_error / squares) : 0.0;
}

}  // namespace unsloth::formats
