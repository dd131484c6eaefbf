#include "data/row_readers.h"
#include "unsloth/core/error.h"

namespace unsloth {

std::unique_ptr<RowReader> read_parquet(const std::filesystem::path& path, const ReaderOptions&) {
    throw input_error(cat(path.string(), ": is a Parquet file, which this build cannot read"),
                      "Convert it first: pandas.read_parquet(FILE).to_json(OUT, orient=\"records\", lines=True)");
}

}  // namespace unsloth
