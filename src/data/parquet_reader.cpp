// Parquet files, through the library that reads them.
#include <dlfcn.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/parquet_library.h"
#include "data/row_readers.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

/// The functions of libunsloth_parquet.so; it stays open.
struct Library {
    decltype(&unsloth_parquet_open) open = nullptr;
    decltype(&unsloth_parquet_next) next = nullptr;
    decltype(&unsloth_parquet_close) close = nullptr;
    decltype(&unsloth_parquet_version) version = nullptr;
    std::string missing;  ///< why it cannot be used
};

Library open_library() {
    Library library;
    Dl_info own{};
    ::dladdr(reinterpret_cast<const void*>(&read_parquet), &own);
    const std::filesystem::path path = std::filesystem::path(own.dli_fname).parent_path() / "libunsloth_parquet.so";
    void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* name) {
        if (handle != nullptr)
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
        if (function == nullptr && library.missing.empty()) library.missing = ::dlerror();
    };
    find(library.open, "unsloth_parquet_open");
    find(library.next, "unsloth_parquet_next");
    find(library.close, "unsloth_parquet_close");
    find(library.version, "unsloth_parquet_version");
    return library;
}

const Library& library() {
    static const Library opened = open_library();
    return opened;
}

class Parquet : public RowReader {
  public:
    Parquet(const std::filesystem::path& path, const ReaderOptions& options)
        : RowReader(path, options), file_(library().open(path.c_str(), error_, sizeof error_), library().close) {
        if (!file_) refuse();
    }
    std::string kind() const override { return "Parquet"; }

  protected:
    bool take(std::string& text, Record& record) override {
        const char* row = nullptr;
        std::size_t length = 0;
        const int status = library().next(file_.get(), &row, &length, error_, sizeof error_);
        if (status < 0) refuse();
        if (status == 0) return false;
        record = {++number_, static_cast<int64_t>(length)};
        if (record.bytes <= max_row_bytes) text.append(row, length);
        return true;
    }
    nlohmann::ordered_json parse_text(std::string_view text) const override { return parse_row(text); }

  private:
    [[noreturn]] void refuse() const {
        throw input_error(cat(name(), ": cannot be read as Parquet: ", error_),
                          "The file is damaged, or it was not copied as a whole.");
    }

    char error_[512] = {};
    std::unique_ptr<UnslothParquetFile, void (*)(UnslothParquetFile*)> file_;
    int64_t number_ = 0;
};

}  // namespace

ParquetReading parquet_reading() {
    if (!library().missing.empty()) return {};
    return {reinterpret_cast<const void*>(library().open), library().version()};
}

bool is_parquet(const std::filesystem::path& path) {
    char front[4] = {};
    std::ifstream(path, std::ios::binary).read(front, sizeof front);
    return std::string_view(front, sizeof front) == "PAR1";
}

std::unique_ptr<RowReader> read_parquet(const std::filesystem::path& path, const ReaderOptions& options) {
    if (!library().missing.empty())
        throw input_error(cat(path.string(), ": is a Parquet file, and the library that reads them cannot be opened: ",
                              library().missing),
                          "It is built where scripts/setup.sh could install pyarrow. Or convert the file: "
                          "pandas.read_parquet(FILE).to_json(OUT, orient=\"records\", lines=True)");
    return std::make_unique<Parquet>(path, options);
}

}  // namespace unsloth
