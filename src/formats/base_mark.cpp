#include "unsloth/formats/base_mark.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"

namespace unsloth::formats {
namespace {

namespace fs = std::filesystem;

/// Samples of tensors, and the types that they have in their file.
class Part {
  public:
    void add(const TensorSource& source, std::size_t samples) {
        constexpr std::size_t sample = 256;
        const TensorView& tensor = source.tensor();
        types_.insert(source.mxfp4() ? "MXFP4" : std::string(safetensors_name(tensor.dtype)));
        const std::string_view bytes(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
        const std::size_t size = std::min(sample, bytes.size()), rest = bytes.size() - size;
        for (std::size_t i = 0; i < samples; ++i)
            hash_.add_field(bytes.substr(rest / std::max<std::size_t>(samples - 1, 1) * i, size));
    }
    std::string text() {
        std::string types;
        for (const std::string& type : types_) types += (types.empty() ? "" : "+") + type;
        return cat(types, ":", hash_.hex());
    }

  private:
    std::set<std::string> types_;
    ContentHash hash_;
};

/// The last part of a path or of a hub id, also of a snapshot in the hub's cache.
std::string last_name(const std::string& base) {
    const fs::path path = fs::path(base).lexically_normal();
    for (const fs::path& part : path)
        if (const std::string name = part.string(); name.starts_with("models--"))
            return name.substr(name.rfind("--") + 2);
    return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

std::string type_of_part(const std::string& part) {
    return part.substr(0, part.find(':'));
}

}  // namespace

std::string base_mark(const WeightFile& base) {
    Part norms, embeddings, linears;
    const int64_t last = base.spec.num_layers - 1;
    for (const TensorSource& source : base.tensors.all()) {
        const spec::TensorRule& rule = source.rule;
        if (rule.id.layer > 0 && rule.id.layer != last / 2 && rule.id.layer != last) continue;
        if (rule.role == spec::TensorRole::embed_tokens)
            embeddings.add(source, 16);
        else if (rule.role == spec::TensorRole::linear)
            linears.add(source, 3);
        else if (rule.role != spec::TensorRole::lm_head)
            norms.add(source, 3);
    }
    return cat(norms.text(), " ", embeddings.text(), " ", linears.text());
}

bool same_base(const std::string& one, const std::string& other) {
    const std::vector<std::string> a = words(one), b = words(other);
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::string& x, const std::string& y) {
        return x == y || type_of_part(x) != type_of_part(y);
    });
}

void warn_of_other_base(const Adapter& adapter, const WeightFile& base, const std::string& used) {
    const std::string& known = adapter.config.base_model_name_or_path;
    std::error_code failed;
    const bool same_name =
        known.empty() || known == used || last_name(known) == last_name(used) || fs::equivalent(known, used, failed);
    const std::string folder = adapter.file.path().parent_path().string();
    if (!adapter.config.base_mark.empty()) {
        if (same_base(adapter.config.base_mark, base_mark(base))) return;
        log::warning("the adapter ", folder, " was trained on ", known, ", and is used with ", used,
                     same_name ? ", whose weights are others by now: it fits in shape alone"
                               : ", which holds other weights: it fits in shape alone");
    } else if (!same_name) {
        log::warning("the adapter ", folder, " was trained on ", known, ", and is used with ", used,
                     ": whether these are the same weights is not known");
    }
}

}  // namespace unsloth::formats
