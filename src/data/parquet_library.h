// The interface of libunsloth_parquet.so, which alone links Arrow's libraries. It is opened for the first Parquet or
// Arrow file, so that other runs do not pay for it. C, and no exception crosses it.
#pragma once

#include <cstddef>

extern "C" {

struct UnslothParquetFile;

/// The version of Arrow that reads the files.
const char* unsloth_parquet_version(void);
/// Opens a Parquet file, or one of Arrow's IPC formats (a stream or a file). Null on failure, with the reason in
/// `error` (at most `size` bytes with the ending zero), as below. `bytes_as_text`: not 0 for texts of binary columns
/// that need not be UTF-8.
UnslothParquetFile* unsloth_parquet_open(const char* path, int bytes_as_text, char* error, std::size_t size);
/// The next row as a JSON object: 1 and the text, which lives until the next call; 0 at the end; -1 on failure.
/// Columns that cannot be written as JSON are omitted. A second object, after the row and a zero byte, names them:
/// {column: what its value is, as a noun}.
int unsloth_parquet_next(UnslothParquetFile* file, const char** text, std::size_t* length, char* error,
                         std::size_t size);
void unsloth_parquet_close(UnslothParquetFile* file);

}  // extern "C"
