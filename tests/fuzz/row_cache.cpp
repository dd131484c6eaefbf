// A file of the cache of encoded rows. Mutated files get the checksums that belong to them, or none would be read.
// parser: src/data/cache_file.*
// options: -max_len=4096
#include "data/cache_file.h"
#include "data/seal_cache_file.h"
#include "fuzz/support.h"

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
    size = LLVMFuzzerMutate(data, size, max_size);
    if (seed % 8 != 0) unsloth::data::seal_cache_file({data, size});
    return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const fuzz::Folder folder;
    const auto file = folder.write("rows", fuzz::text_of(data, size));
    fuzz::accepts([&] {
        const auto rows = data::open_cache_file(file);
        if (!rows) return;
        for (int64_t i = 0; i < rows->store->rows(); ++i) {
            const data::Sample sample = rows->store->sample(i);
            fuzz::require(sample.labels.size() == sample.ids.size() && sample.positions.size() == sample.ids.size(),
                          "labels and positions beside ids");
            fuzz::require(data::are_sound(sample.segments, sample.ids.size()), "segments are the row's tokens");
        }
    });
    return 0;
}
