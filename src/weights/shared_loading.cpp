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

void SharedLoading::finish() {
    for (const auto& [values, reader] : expected_) share_.broadcast(values, reader);
    expected_.clear();
}

}  // namespace unsloth::weights
