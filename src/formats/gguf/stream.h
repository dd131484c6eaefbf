// From a checkpoint's tensors to a file's, some rows at a time.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "unsloth/formats/gguf_export.h"

namespace unsloth::formats::gguf {

/// One tensor to be written.
struct Item {
    GgufTensorDecl decl;
    std::string source;  ///< its name in the checkpoint, for messages
    /// Rows [begin, end) of the source in fp32; safe from several threads.
    std::function<void(int64_t begin, int64_t end, float* out)> read;
    std::function<void()> drop;  ///< tells the system that the source's pages were consumed; may be empty
    /// > 0: rows are those of q or k, in heads of `head_dim` rows. Where the checkpoint's RoPE turns rows i and
    /// i + head_dim / 2 of a head together, llama.cpp's turns 2 i and 2 i + 1: the file has the rows in that order.
    int64_t head_dim = 0;
    float factor = 1;  ///< multiplied into all values

    int64_t cols() const { return decl.shape.back(); }
    int64_t rows() const { return decl.elements() / cols(); }
};

/// Gives items their types, and says in one line a kind which of them could not have the wanted one.
class TypeSetter {
  public:
    void set(Item& item, GgmlType wanted);
    void log_replacements() const;

  private:
    std::map<std::string, int> replacements_;  ///< how many weights, by what happened to them
};

/// Writes the file. Errors as export_model_gguf.
GgufReport write_items(const std::filesystem::path& out, const GgufMetadata& metadata, const std::vector<Item>& items,
                       int threads);

}  // namespace unsloth::formats::gguf
