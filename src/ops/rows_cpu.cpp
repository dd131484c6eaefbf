#include "ops/rows_cpu.h"

#include <cstring>

#include "ops/cpu_rows.h"
#include "unsloth/core/error.h"
#include "unsloth/core/philox.h"

namespace unsloth::ops::cpu {

namespace {

/// The row that index[i] names, or i without an index; CheckError outside `limit`.
int64_t indexed(const int32_t* index, int64_t i, int64_t limit) {
    const int64_t row = index == nullptr ? i : index[i];
    UNSLOTH_CHECK(row >= 0 && row < limit, "index ", row, " at place ", i, " is outside 0 .. ", limit - 1);
    return row;
}

const int32_t* pointer(const at::Tensor& index) {
    return index.defined() ? index.const_data_ptr<int32_t>() : nullptr;
}

/// body(column, u) for each of a token's columns, which are its channels from `first_channel` (a multiple of 4) on: u
/// in [0, 1) is Philox's draw of the channel.
template <class Body>
void for_each_draw(const spec::StepScalars& scalars, int32_t row, int32_t offset, uint32_t site, uint32_t first_channel,
                   int64_t columns, const Body& body) {
    for (int64_t first = 0; first < columns; first += 4) {
        const PhiloxWords random =
            philox4x32(scalars.seed_lo, scalars.seed_hi, static_cast<uint32_t>(row), static_cast<uint32_t>(offset),
                       site, first_channel / 4 + static_cast<uint32_t>(first / 4));
        for (int64_t c = first; c < std::min(first + 4, columns); ++c) body(c, unit_float(random.w[c - first]));
    }
}

}  // namespace

void copy_rows(const at::Tensor& source, const at::Tensor& source_index, const at::Tensor& out,
               const at::Tensor& out_index, int64_t rows, float scale) {
    const Rows from(source), to(out);
    const int32_t* from_index = pointer(source_index);
    const int32_t* to_index = pointer(out_index);
    const int64_t columns = from.columns();
    at::parallel_for(0, rows, grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), scaled(static_cast<size_t>(columns));
        for (int64_t i = begin; i < end; ++i) {
            const float* values = from.read(indexed(from_index, i, from.rows()), scratch.data());
            for (int64_t c = 0; c < columns; ++c) scaled[c] = values[c] * scale;
            to.write(indexed(to_index, i, to.rows()), scaled.data());
        }
    });
}

void sum_rows(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& out, const at::Tensor& weight) {
    const Rows from(rows), to(out);
    const float* weights = weight.defined() ? weight.const_data_ptr<float>() : nullptr;
    const int32_t* place = places.const_data_ptr<int32_t>();
    const int64_t columns = from.columns(), each = places.size(1);
    at::parallel_for(0, to.rows(), grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), sum(static_cast<size_t>(columns));
        for (int64_t t = begin; t < end; ++t) {
            std::fill(sum.begin(), sum.end(), 0.f);
            for (int64_t i = each * t; i < each * (t + 1); ++i) {
                if (place[i] < 0) continue;
                const int64_t row = indexed(place, i, from.rows());
                const float* values = from.read(row, scratch.data());
                const float factor = weights == nullptr ? 1.f : weights[row];
                for (int64_t c = 0; c < columns; ++c) sum[c] += values[c] * factor;
            }
            to.write(t, sum.data());
        }
    });
}

void embedding_backward(const at::Tensor& dy, const at::Tensor& order, const at::Tensor& unique,
                        const at::Tensor& starts, const at::Tensor& dtable) {
    const Rows dy_rows(dy), table(dtable);
    const int64_t columns = dy_rows.columns();
    const int32_t* order_T = order.const_data_ptr<int32_t>();
    const int32_t* unique_u = unique.const_data_ptr<int32_t>();
    const int32_t* starts_u1 = starts.const_data_ptr<int32_t>();
    at::parallel_for(0, unique.size(0), grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), sum(static_cast<size_t>(columns));
        for (int64_t u = begin; u < end; ++u) {
            std::fill(sum.begin(), sum.end(), 0.f);
            for (int32_t i = starts_u1[u]; i < starts_u1[u + 1]; ++i) {
                const float* values = dy_rows.read(indexed(order_T, i, dy_rows.rows()), scratch.data());
                for (int64_t c = 0; c < columns; ++c) sum[c] += values[c];
            }
            const int64_t id = indexed(unique_u, u, table.rows());
            const float* before = table.read(id, nullptr);
            for (int64_t c = 0; c < columns; ++c) sum[c] += before[c];
            table.write(id, sum.data());
        }
    });
}

void column_sums(const at::Tensor& dy, const at::Tensor& sums) {
    constexpr int64_t block = 256;  // columns; each belongs to one task, which walks the rows in order
    const Rows rows(dy);
    float* out = sums.mutable_data_ptr<float>();
    at::parallel_for(0, (rows.columns() + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            const int64_t first = b * block;
            const int64_t count = std::min(block, rows.columns() - first);
            float values[block];
            float sum[block] = {};
            for (int64_t row = 0; row < rows.rows(); ++row) {
                rows.read_into(row, first, count, values);
                for (int64_t c = 0; c < count; ++c) sum[c] += values[c];
            }
            for (int64_t c = 0; c < count; ++c) out[first + c] += sum[c];
        }
    });
}

void dropout(const spec::StepScalars& scalars, const at::Tensor& x, const at::Tensor& row, const at::Tensor& offset,
             float probability, DropoutKey key, const at::Tensor& out, bool accumulate) {
    const Rows x_rows(x), out_rows(out);
    const int64_t columns = x_rows.columns();
    const int32_t* row_T = row.const_data_ptr<int32_t>();
    const int32_t* offset_T = offset.const_data_ptr<int32_t>();
    const float scale = 1.f / (1.f - probability);
    const uint32_t site = dropout_site(scalars.epoch, key.layer, key.projection);
    at::parallel_for(0, x_rows.rows(), grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        const auto size = static_cast<size_t>(columns);
        std::vector<float> x_scratch(size), out_scratch(size), result(size);
        for (int64_t t = begin; t < end; ++t) {
            const float* values = x_rows.read(t, x_scratch.data());
            for_each_draw(scalars, row_T[t], offset_T[t], site, key.first_channel, columns,
                          [&](int64_t c, float u) { result[c] = u >= probability ? values[c] * scale : 0.f; });
            if (accumulate) {
                const float* before = out_rows.read(t, out_scratch.data());
                for (int64_t c = 0; c < columns; ++c) result[c] += before[c];
            }
            out_rows.write(t, result.data());
        }
    });
}

void add_noise(const spec::StepScalars& scalars, const at::Tensor& x, const at::Tensor& row, const at::Tensor& offset,
               const at::Tensor& magnitude) {
    const Rows x_rows(x);
    const int64_t columns = x_rows.columns();
    const int32_t* row_T = row.const_data_ptr<int32_t>();
    const int32_t* offset_T = offset.const_data_ptr<int32_t>();
    const float* magnitude_T = magnitude.const_data_ptr<float>();
    const uint32_t site = noise_site(scalars.epoch);
    at::parallel_for(0, x_rows.rows(), grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        const auto size = static_cast<size_t>(columns);
        std::vector<float> scratch(size), result(size);
        for (int64_t t = begin; t < end; ++t) {
            const float* values = x_rows.read(t, scratch.data());
            for_each_draw(scalars, row_T[t], offset_T[t], site, /*first_channel=*/0, columns,
                          [&](int64_t c, float u) { result[c] = values[c] + magnitude_T[t] * (2.f * u - 1.f); });
            x_rows.write(t, result.data());
        }
    });
}

}  // namespace unsloth::ops::cpu
