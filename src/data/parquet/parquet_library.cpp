// libunsloth_parquet.so: Parquet files, and Arrow's own, as JSON rows, by Arrow's C++ library.
#include "data/parquet_library.h"

#include <arrow/api.h>
#include <arrow/config.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/util/float16.h>
#include <arrow/util/ree_util.h>
#include <arrow/util/utf8.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace {

using arrow::Array;
using arrow::Type;

/// Rows that are decoded at a time. Memory also holds a column's page, whatever this is.
constexpr int64_t batch_rows = 256;

void require(const arrow::Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
}

template <class Value>
Value take(arrow::Result<Value> result) {
    require(result.status());
    return std::move(result).ValueUnsafe();
}

/// The row's JSON text, which grows.
struct Out {
    std::string text;
    bool bytes_as_text = false;  ///< bytes that are not UTF-8 are written as they are

    template <class Part>
    Out& operator+=(Part part) {
        text += part;
        return *this;
    }
};

/// A value that JSON has no words for: what it is, as a noun.
struct Unread {
    std::string what;
};

void write_string(std::string_view text, Out& out) {
    out += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            out += escaped;
        } else {
            out += c;
        }
    }
    out += '"';
}

template <class Number>
void write_number(Number value, Out& out) {
    if constexpr (std::is_floating_point_v<Number>) {
        if (!std::isfinite(value)) {
            out += "null";  // JSON has no other word for it
            return;
        }
    }
    char text[32];
    out.text.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

void write_value(const Array& array, int64_t i, Out& out);

template <class ListArray>
void write_list(const Array& array, int64_t i, Out& out) {
    const auto& list = static_cast<const ListArray&>(array);
    out += '[';
    const int64_t begin = list.value_offset(i), end = begin + list.value_length(i);
    for (int64_t k = begin; k < end; ++k) {
        if (k > begin) out += ',';
        write_value(*list.values(), k, out);
    }
    out += ']';
}

/// The bytes of datasets' Image feature, struct<bytes: binary, path: string>, as a data: URL: JSON has texts alone.
bool write_image_bytes(const arrow::StructArray& array, int field, int64_t i, Out& out) {
    const arrow::StructType& type = *array.struct_type();
    const Array& bytes = *array.field(field);
    if (type.field(field)->name() != "bytes" || type.GetFieldIndex("path") < 0 || bytes.IsNull(i)) return false;
    std::string_view file;
    if (bytes.type_id() == Type::BINARY)
        file = static_cast<const arrow::BinaryArray&>(bytes).GetView(i);
    else if (bytes.type_id() == Type::LARGE_BINARY)
        file = static_cast<const arrow::LargeBinaryArray&>(bytes).GetView(i);
    else
        return false;
    constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out += "\"data:;base64,";
    for (std::size_t at = 0; at < file.size(); at += 3) {
        uint32_t three = 0;
        const std::size_t count = std::min<std::size_t>(3, file.size() - at);
        for (std::size_t k = 0; k < 3; ++k) three = three << 8 | (k < count ? static_cast<uint8_t>(file[at + k]) : 0u);
        for (std::size_t k = 0; k < 4; ++k) out += k <= count ? digits[three >> (18 - 6 * k) & 63] : '=';
    }
    out += '"';
    return true;
}

/// A struct has the members of all rows: those that this row lacks are null, and are left out.
void write_struct(const arrow::StructArray& array, int64_t i, Out& out) {
    out += '{';
    const char* separator = "";
    for (int field = 0; field < array.num_fields(); ++field) {
        const std::size_t member = out.text.size();
        out += separator;
        write_string(array.struct_type()->field(field)->name(), out);
        out += ':';
        const std::size_t value = out.text.size();
        if (!write_image_bytes(array, field, i, out)) write_value(*array.field(field), i, out);
        if (out.text.compare(value, std::string::npos, "null") == 0)
            out.text.resize(member);
        else
            separator = ",";
    }
    out += '}';
}

void write_map(const arrow::MapArray& array, int64_t i, Out& out) {
    out += '{';
    const int64_t begin = array.value_offset(i), end = begin + array.value_length(i);
    for (int64_t k = begin; k < end; ++k) {
        if (k > begin) out += ',';
        const std::size_t key = out.text.size();
        write_value(*array.keys(), k, out);
        if (out.text[key] != '"') throw Unread{"a map whose keys are not strings"};
        out += ':';
        write_value(*array.items(), k, out);
    }
    out += '}';
}

template <class NumberArray>
void write_number_of(const Array& array, int64_t i, Out& out) {
    write_number(static_cast<const NumberArray&>(array).Value(i), out);
}

template <class TextArray>
void write_text_of(const Array& array, int64_t i, Out& out) {
    write_string(static_cast<const TextArray&>(array).GetView(i), out);
}

template <class BytesArray>
void write_bytes_of(const Array& array, int64_t i, Out& out) {
    const std::string_view bytes = static_cast<const BytesArray&>(array).GetView(i);
    if (!out.bytes_as_text && !arrow::util::ValidateUTF8(bytes))
        throw Unread{"bytes that are not UTF-8 (Arrow's type " + array.type()->name() + ")"};
    write_string(bytes, out);
}

/// Extension types are what they store; a text of arrow.json is the JSON that it holds.
void write_extension(const arrow::ExtensionArray& array, int64_t i, Out& out) {
    const std::string name = array.extension_type()->extension_name();
    const std::size_t begin = out.text.size();
    try {
        write_value(*array.storage(), i, out);
    } catch (const Unread&) {
        throw Unread{"a value of Arrow's type " + name + ", which is not read"};
    }
    if (name != "arrow.json") return;
    const auto stored = nlohmann::json::parse(out.text.substr(begin), nullptr, false);
    if (!stored.is_string()) return;  // null, or bytes that are not UTF-8
    const auto& json = stored.get_ref<const std::string&>();
    if (!nlohmann::json::accept(json)) throw Unread{"a text of Arrow's type arrow.json that is not JSON"};
    out.text.replace(begin, std::string::npos, json);
}

void write_value(const Array& array, int64_t i, Out& out) {
    if (array.IsNull(i)) {
        out += "null";
        return;
    }
    switch (array.type_id()) {
        case Type::BOOL:
            out += static_cast<const arrow::BooleanArray&>(array).Value(i) ? "true" : "false";
            break;
        case Type::INT8:
            write_number<int>(static_cast<const arrow::Int8Array&>(array).Value(i), out);
            break;
        case Type::UINT8:
            write_number<int>(static_cast<const arrow::UInt8Array&>(array).Value(i), out);
            break;
        case Type::INT16:
            write_number_of<arrow::Int16Array>(array, i, out);
            break;
        case Type::UINT16:
            write_number_of<arrow::UInt16Array>(array, i, out);
            break;
        case Type::INT32:
            write_number_of<arrow::Int32Array>(array, i, out);
            break;
        case Type::UINT32:
            write_number_of<arrow::UInt32Array>(array, i, out);
            break;
        case Type::INT64:
            write_number_of<arrow::Int64Array>(array, i, out);
            break;
        case Type::UINT64:
            write_number_of<arrow::UInt64Array>(array, i, out);
            break;
        case Type::HALF_FLOAT:
            write_number(
                arrow::util::Float16::FromBits(static_cast<const arrow::HalfFloatArray&>(array).Value(i)).ToFloat(),
                out);
            break;
        case Type::FLOAT:
            write_number_of<arrow::FloatArray>(array, i, out);
            break;
        case Type::DOUBLE:
            write_number_of<arrow::DoubleArray>(array, i, out);
            break;
        case Type::STRING:
            write_text_of<arrow::StringArray>(array, i, out);
            break;
        case Type::LARGE_STRING:
            write_text_of<arrow::LargeStringArray>(array, i, out);
            break;
        case Type::STRING_VIEW:
            write_text_of<arrow::StringViewArray>(array, i, out);
            break;
        case Type::BINARY:
            write_bytes_of<arrow::BinaryArray>(array, i, out);
            break;
        case Type::LARGE_BINARY:
            write_bytes_of<arrow::LargeBinaryArray>(array, i, out);
            break;
        case Type::BINARY_VIEW:
            write_bytes_of<arrow::BinaryViewArray>(array, i, out);
            break;
        case Type::LIST:
            write_list<arrow::ListArray>(array, i, out);
            break;
        case Type::LARGE_LIST:
            write_list<arrow::LargeListArray>(array, i, out);
            break;
        case Type::FIXED_SIZE_LIST:
            write_list<arrow::FixedSizeListArray>(array, i, out);
            break;
        case Type::LIST_VIEW:
            write_list<arrow::ListViewArray>(array, i, out);
            break;
        case Type::LARGE_LIST_VIEW:
            write_list<arrow::LargeListViewArray>(array, i, out);
            break;
        case Type::MAP:
            write_map(static_cast<const arrow::MapArray&>(array), i, out);
            break;
        case Type::STRUCT:
            write_struct(static_cast<const arrow::StructArray&>(array), i, out);
            break;
        case Type::DICTIONARY: {
            const auto& words = static_cast<const arrow::DictionaryArray&>(array);
            write_value(*words.dictionary(), words.GetValueIndex(i), out);
            break;
        }
        case Type::RUN_END_ENCODED: {
            const auto& runs = static_cast<const arrow::RunEndEncodedArray&>(array);
            write_value(*runs.values(),
                        arrow::ree_util::FindPhysicalIndex(arrow::ArraySpan(*runs.data()), i, runs.offset()), out);
            break;
        }
        case Type::EXTENSION:
            write_extension(static_cast<const arrow::ExtensionArray&>(array), i, out);
            break;
        case Type::DATE32:
        case Type::DATE64:
        case Type::TIME32:
        case Type::TIME64:
        case Type::TIMESTAMP:
        case Type::DECIMAL32:
        case Type::DECIMAL64:
        case Type::DECIMAL128:
        case Type::DECIMAL256:
            write_string(take(array.GetScalar(i))->ToString(), out);  // as Arrow spells them
            break;
        default:
            throw Unread{"a value of Arrow's type " + array.type()->name() + ", which is not read"};
    }
}

void tell(const char* reason, char* error, std::size_t size) {
    if (size > 0) std::snprintf(error, size, "%s", reason);
}

}  // namespace

namespace {

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
    const int64_t size = take(file.GetSize()), length = sizeof mark;
    const auto end = take(file.ReadAt(std::max<int64_t>(size - length, 0), length));
    if (end->size() != length || std::memcmp(end->data(), mark, sizeof mark) != 0)
        throw std::runtime_error("the stream has no end");
}

std::shared_ptr<arrow::RecordBatchReader> open_arrow(const std::shared_ptr<arrow::io::RandomAccessFile>& file) {
    const auto head = take(file->ReadAt(0, 6));
    if (head->ToString() == "ARROW1")
        return std::make_shared<FileBatches>(take(arrow::ipc::RecordBatchFileReader::Open(file)));
    require_end_mark(*file);
    require(file->Seek(0));  // reads at a place leave none to read on from
    return take(arrow::ipc::RecordBatchStreamReader::Open(file));
}

}  // namespace

struct UnslothParquetFile {
    UnslothParquetFile(const char* path, bool bytes_as_text) : row_text{{}, bytes_as_text} {
        arrow::util::InitializeUTF8();
        open(path);
        for (const std::string& name : batches->schema()->field_names()) ++names[name];
    }

    void open(const char* path) {
        const auto input = take(arrow::io::ReadableFile::Open(path));
        if (take(input->ReadAt(0, 4))->ToString() != "PAR1") {
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
        file = take(builder.memory_pool(arrow::default_memory_pool())->properties(arrow_properties)->Build());
        batches = std::shared_ptr<arrow::RecordBatchReader>(take(file->GetRecordBatchReader()));
    }

    /// False at the end.
    bool next() {
        while (!batch || row == batch->num_rows()) {
            require(batches->ReadNext(&batch));
            row = 0;
            if (!batch) return false;
            if (!file) require(batch->ValidateFull());  // Arrow's buffers are taken as they lie in the file
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
    std::map<std::string, int> names;  ///< how often each stands in the schema
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
