// Parquet and Arrow files, through the library that reads them.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "data/columns.h"
#include "data/parquet_library.h"
#include "data/row_readers.h"
#include "unsloth/core/error.h"
#include "unsloth/core/open_file.h"
#include "unsloth/core/shared_library.h"

namespace unsloth::data {
namespace {

/// The functions of libunsloth_parquet.so.
struct Library {
    Library() {
        file.find(open, "unsloth_parquet_open");
        file.find(next, "unsloth_parquet_next");
        file.find(close, "unsloth_parquet_close");
        file.find(version, "unsloth_parquet_version");
    }

    SharedLibrary file{"libunsloth_parquet.so"};
    decltype(&unsloth_parquet_open) open = nullptr;
    decltype(&unsloth_parquet_next) next = nullptr;
    decltype(&unsloth_parquet_close) close = nullptr;
    decltype(&unsloth_parquet_version) version = nullptr;
};

const Library& library() {
    static const Library opened;
    return opened;
}

std::string magic_of(const std::filesystem::path& path) {
    char front[4] = {};
    if (::pread(open_to_read(path).get(), front, sizeof front, 0) != sizeof front) return {};
    return {front, sizeof front};
}

class Columns : public RowReader {
  public:
    Columns(const std::filesystem::path& path, const ReaderOptions& options)
        : RowReader(path, options),
          kind_(magic_of(path) == "PAR1" ? "Parquet" : "Arrow"),
          file_(
              library().open(path.c_str(), options.invalid_utf8 == config::InvalidUtf8::replace, error_, sizeof error_),
              library().close) {
        if (!file_) refuse();
    }
    std::string kind() const override { return kind_; }

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
    nlohmann::ordered_json parse_text(std::string_view text) const override {
        const std::size_t end = text.find('\0');
        nlohmann::ordered_json row = parse_row(text.substr(0, end));
        if (end == std::string_view::npos) return row;
        const nlohmann::ordered_json columns = parse_row(text.substr(end + 1));
        for (const auto& [column, what] : columns.items()) row[column] = unread(what.get_ref<const std::string&>());
        return row;
    }

  private:
    [[noreturn]] void refuse() const {
        throw Error("data.damaged-file", cat(name(), ": cannot be read as ", kind_, ": ", error_),
                    "The file is damaged, or it was not copied as a whole.");
    }

    char error_[512] = {};
    const char* kind_;
    std::unique_ptr<UnslothParquetFile, void (*)(UnslothParquetFile*)> file_;
    int64_t number_ = 0;
};

}  // namespace

ArrowReading arrow_reading() {
    if (!library().file.missing().empty()) return {};
    return {reinterpret_cast<const void*>(library().open), library().version()};
}

bool is_read_by_arrow(const std::filesystem::path& path) {
    const std::string magic = magic_of(path);
    return magic == "PAR1" || magic == "ARRO" || magic == "\xFF\xFF\xFF\xFF";
}

std::unique_ptr<RowReader> read_by_arrow(const std::filesystem::path& path, const ReaderOptions& options) {
    if (!library().file.missing().empty())
        throw Error(
            "data.no-parquet-reader",
            cat(path.string(), ": is a Parquet or Arrow file, and the library that reads them cannot be opened: ",
                library().file.missing()),
            "It is built where scripts/setup.sh could install pyarrow. Or convert the file in Python: "
            "pandas.read_parquet(FILE), or datasets.load_from_disk(FOLDER), and .to_json(OUT, "
            "orient=\"records\", lines=True)");
    return std::make_unique<Columns>(path, options);
}

}  // namespace unsloth::data
