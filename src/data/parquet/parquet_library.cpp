// libunsloth_parquet.so: Parquet files, and Arrow's own, as JSON rows, by Arrow's C++ library.
#include "data/parquet_library.h"

#include <arrow/api.h>
#include <arrow/config.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/util/utf8.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "data/parquet/values.h"

namespace {

using namespace unsloth::data::arrow_json;

/// Rows that are decoded at a time. Memory also holds a column's page, whatever this is.
constexpr int64_t batch_rows = 256;

void tell(const char* reason, char* error, std::size_t size) {
    if (size > 0) std::snprintf(error, size, "%s", reason);
}

/// Batches of Arrow's IPC file format, which knows their places.
class FileBatches final : public arrow::RecordBatchReader {
  public:
    explicit FileBatches(std::shared_ptr<arrow::ipc::RecordBatchFileReader> file) : file_(std::move(file)) {}
    std::shared_ptr<arrow::Schema> schema() const override { return file_->schema(); }
    arrow::Status ReadNext(std::shared_ptr<arrow::RecordBatch>* batch) override {
        if (next_ == file_->num_record_batches()) {
            batch->reset();
            return arrow::Status::OK();
        }
        return file_->ReadRecordBatch(next_++).Value(batch);
    }

  private:
    std::shared_ptr<arrow::ipc::RecordBatchFileReader> file_;
    int next_ = 0;
};

/// A stream that was cut between two batches reads as one that has fewer: its end mark tells.
void require_end_mark(arrow::io::RandomAccessFile& file) {
    constexpr unsigned char mark[] = {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0};
    const int64_t size = require_value(file.GetSize()), length = sizeof mark;
    const auto end = require_value(file.ReadAt(std::max<int64_t>(size - length, 0), length));
    if (end->size() != length || std::memcmp(end->data(), mark, sizeof mark) != 0)
        throw std::runtime_error("the stream has no end");
}

std::shared_ptr<arrow::RecordBatchReader> open_arrow(const std::shared_ptr<arrow::io::RandomAccessFile>& file) {
    const auto head = require_value(file->ReadAt(0, 6));
    if (head->ToString() == "ARROW1")
        return std::make_shared<FileBatches>(require_value(arrow::ipc::RecordBatchFileReader::Open(file)));
    require_end_mark(*file);
    require(file->Seek(0));  // reads at a place leave none to read on from
    return require_value(arrow::ipc::RecordBatchStreamReader::Open(file));
}

}  // namespace

struct UnslothParquetFile {
    UnslothParquetFile(const char* path, bool bytes_as_text) : row_text{{}, bytes_as_text} {
        arrow::util::InitializeUTF8();
        open(path);
        for (const std::string& name : batches->schema()->field_names()) ++names[name];
    }

    void open(const char* path) {
        const auto input = require_value(arrow::io::ReadableFile::Open(path));
        if (require_value(input->ReadAt(0, 4))->ToString() != "PAR1") {
            batches = open_arrow(input);
            return;
        }
        parquet::ReaderProperties properties;
        properties.enable_buffered_stream();  // a column chunk is not read as a whole
        parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
        arrow_properties.set_batch_size(batch_rows);
        arrow_properties.set_pre_buffer(false);
        arrow_properties.set_arrow_extensions_enabled(true);  // a column that Parquet calls JSON is arrow.json
        parquet::arrow::FileReaderBuilder builder;
        require(builder.Open(input, properties));
        file = require_value(builder.memory_pool(arrow::default_memory_pool())->properties(arrow_properties)->Build());
        batches = std::shared_ptr<arrow::RecordBatchReader>(require_value(file->GetRecordBatchReader()));
    }

    /// False at the end.
    bool next() {
        while (!batch || row == batch->num_rows()) {
            require(batches->ReadNext(&batch));
            row = 0;
            if (!batch) return false;
            if (!file) require(batch->ValidateFull());  // Arrow's buffers are used as they are in the file
        }
        write_row();
        ++row;
        return true;
    }

    void write_row() {
        std::string& text = row_text.text;
        std::map<std::string, std::string> unread;
        text = "{";
        for (int column = 0; column < batch->num_columns(); ++column) {
            const std::string& name = batch->column_name(column);
            const std::size_t begin = text.size();
            try {
                if (names[name] > 1) throw Unread{"two columns of that name"};
                if (begin > 1) text += ',';
                write_string(name, row_text);
                text += ':';
                write_value(*batch->column(column), row, row_text);
            } catch (const Unread& value) {
                text.resize(begin);
                unread[name] = value.what;
            }
        }
        text += '}';
        if (!unread.empty()) text += '\0' + nlohmann::json(unread).dump();
    }

    std::unique_ptr<parquet::arrow::FileReader> file;
    std::shared_ptr<arrow::RecordBatchReader> batches;
    std::shared_ptr<arrow::RecordBatch> batch;
    int64_t row = 0;
    std::map<std::string, int> names;  ///< how often each occurs in the schema
    Out row_text;
};

const char* unsloth_parquet_version() {
    return arrow::GetBuildInfo().version_string.c_str();
}

UnslothParquetFile* unsloth_parquet_open(const char* path, int bytes_as_text, char* error, std::size_t size) {
    try {
        return new UnslothParquetFile(path, bytes_as_text != 0);
    } catch (const std::exception& failure) {
        tell(failure.what(), error, size);
        return nullptr;
    }
}

int unsloth_parquet_next(UnslothParquetFile* file, const char** text, std::size_t* length, char* error,
                         std::size_t size) {
    try {
        if (!file->next()) return 0;
        *text = file->row_text.text.data();
        *length = file->row_text.text.size();
        return 1;
    } catch (const std::exception& failure) {
        tell(failure.what(), error, size);
        return -1;
    }
}

void unsloth_parquet_close(UnslothParquetFile* file) {
    delete file;
}
