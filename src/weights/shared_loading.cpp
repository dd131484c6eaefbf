#include "unsloth/weights/shared_loading.h"

namespace unsloth::weights {

void SharedLoading::read_rows(const at::Tensor& matrix, const std::function<void(int64_t begin, int64_t end)>& read) {
    const int64_t rows = matrix.size(0);
    for (int place = 0; place < share_.size; ++place) {
        const auto [begin, end] = rows_of(place, rows);
        if (begin == end) continue;
        if (place == share_.place) read(begin, end);
        expect(matrix.narrow(0, begin, end - begin), place);
    }
}

void SharedLoading::read_rows_to_host(const at::Tensor& matrix,
                                      const std::function<void(int64_t begin, int64_t end)>& read) const {
    const auto [begin, end] =
        one_host_copy_ ? rows_of(share_.place, matrix.size(0)) : std::pair(int64_t{0}, matrix.size(0));
    if (begin < end) read(begin, end);
}

void SharedLoading::finish() {
    if (one_host_copy_) share_.gather("");  // all have written
    for (const auto& [values, reader] : expected_) share_.broadcast(values, reader);
    expected_.clear();
}

}  // namespace unsloth::weights
