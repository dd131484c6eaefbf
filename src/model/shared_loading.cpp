#include "model/shared_loading.h"

namespace unsloth::model {
namespace {

/// Where a 4-bit weight keeps its nested offset; nullptr: it has none.
float* nested_offset(StoredWeight& weight) {
    if (auto* rows = std::get_if<ops::Quant4Tensor>(&weight)) return &rows->nested_offset;
    if (auto* tiles = std::get_if<ops::Nf4Tiles>(&weight)) return &tiles->nested_offset;
    return nullptr;
}

}  // namespace

void SharedLoading::expect(const StoredWeight& weight, int reader) {
    if (const auto* rows = std::get_if<ops::Quant4Tensor>(&weight)) {
        for (const at::Tensor& values : {rows->packed, rows->absmax, rows->nested_absmax, rows->tables})
            expect(values, reader);
    } else if (const auto* tiles = std::get_if<ops::Nf4Tiles>(&weight)) {
        for (const at::Tensor& values : {tiles->tiles, tiles->nested_absmax, tiles->tables}) expect(values, reader);
    } else {
        expect(std::get<at::Tensor>(weight), reader);
    }
}

void SharedLoading::read_rows(const at::Tensor& matrix, const std::function<void(int64_t begin, int64_t end)>& read) {
    const int64_t rows = matrix.size(0);
    for (int place = 0; place < share_.size; ++place) {
        const int64_t begin = rows * place / share_.size, end = rows * (place + 1) / share_.size;
        if (begin == end) continue;
        if (place == share_.place) read(begin, end);
        expect(matrix.narrow(0, begin, end - begin), place);
    }
}

void SharedLoading::finish() {
    for (const auto& [values, reader] : expected_) share_.broadcast(values, reader);
    expected_.clear();
}

void share_nested_offsets(std::vector<StoredLayer>& layers, at::Device device, SharedLoading& shared) {
    if (shared.alone()) return;
    const at::Tensor offsets = at::zeros({static_cast<int64_t>(layers.size()), spec::projection_count}, at::kFloat);
    const auto each = [&](const auto& visit) {
        for (std::size_t layer = 0; layer < layers.size(); ++layer)
            for (std::size_t p = 0; p < layers[layer].projections.size(); ++p)
                if (float* offset = nested_offset(layers[layer].projections[p]))
                    visit(*offset, offsets.data_ptr<float>()[layer * spec::projection_count + p]);
    };
    each([](float own, float& sent) { sent = own; });
    const at::Tensor there = offsets.to(device);
    for (int64_t layer = 0; layer < there.size(0); ++layer) shared.expect(there[layer], shared.reader_of(layer));
    shared.finish();
    offsets.copy_(there);
    each([](float& own, float sent) { own = sent; });
}

}  // namespace unsloth::model
