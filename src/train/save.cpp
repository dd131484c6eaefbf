#include "unsloth/train/save.h"

#include <algorithm>
#include <map>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/formats/shards.h"
#include "unsloth/spec/convert.h"

namespace unsloth::train {
namespace {

/// A parameter's values in a storage type, on the host.
std::vector<std::byte> bytes_of(const ReadValues& read, const weights::Parameter& p, spec::DType type) {
    const at::Tensor values = weights::to_stored(p, p.shift == 0 ? read(p) : read(p) - p.shift);
    std::vector<std::byte> bytes(static_cast<std::size_t>(p.elements()) * spec::size_of(type));
    spec::convert_from_f32(type, values.data_ptr<float>(), p.elements(), bytes.data());
    return bytes;
}

using Shard = std::vector<const weights::Parameter*>;

std::vector<Shard> make_shards(const weights::ParameterTable& table, spec::DType type, int64_t shard_bytes) {
    std::vector<std::size_t> bytes;
    for (const weights::Parameter& p : table.parameters())
        bytes.push_back(static_cast<std::size_t>(p.elements()) * spec::size_of(type));
    std::vector<Shard> shards;
    for (const auto& members : formats::split_into_shards(bytes, static_cast<std::size_t>(shard_bytes))) {
        Shard& shard = shards.emplace_back();
        for (const std::size_t i : members) shard.push_back(&table.parameters()[i]);
    }
    return shards;
}

void write_shard(const std::filesystem::path& path, const Shard& shard, const ReadValues& values, spec::DType type,
                 formats::SafetensorsWriter::Metadata metadata = {{"format", "pt"}},
                 const std::vector<const formats::TensorView*>& stand_ins = {}) {
    std::vector<formats::TensorDecl> declared;
    for (const weights::Parameter* p : shard) declared.push_back({p->name, type, p->stored_shape()});
    for (const formats::TensorView* view : stand_ins) declared.push_back({view->name, view->dtype, view->shape});
    formats::SafetensorsWriter writer(path, declared, std::move(metadata));
    for (const formats::TensorDecl& decl : writer.tensors()) {
        const auto is_it = [&](const auto* tensor) { return tensor->name == decl.name; };
        if (const auto view = std::find_if(stand_ins.begin(), stand_ins.end(), is_it); view != stand_ins.end())
            writer.append(decl.name, (*view)->data);
        else
            writer.append(decl.name, bytes_of(values, **std::find_if(shard.begin(), shard.end(), is_it), type));
    }
    writer.finish();
}

}  // namespace

ReadValues values_in(const at::Tensor& params_P) {
    return [params_P](const weights::Parameter& p) { return params_P.narrow(0, p.offset, p.elements()).cpu(); };
}

void save_adapter(const std::filesystem::path& folder, const weights::ParameterTable& table, const ReadValues& values,
                  const formats::PeftConfig& config, const std::vector<const formats::TensorView*>& stand_ins) {
    Folder::made(folder).require();
    Shard all;
    for (const weights::Parameter& p : table.parameters()) all.push_back(&p);
    write_shard(folder / "adapter_model.safetensors", all, values, spec::DType::f32, formats::adapter_metadata(config),
                stand_ins);
    write_file_atomically(folder / "adapter_config.json", formats::write_peft_config(config));
}

void save_model(const std::filesystem::path& folder, const weights::ParameterTable& table, const ReadValues& values,
                const spec::ModelSpec& spec, const std::filesystem::path& source_folder, int64_t shard_bytes) {
    Folder::made(folder).require();
    const std::vector<Shard> shards = make_shards(table, spec.dtype, shard_bytes);
    std::map<std::string, std::string> where;
    std::size_t total = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const std::string file = formats::shard_file_name(i, shards.size());
        write_shard(folder / file, shards[i], values, spec.dtype);
        for (const weights::Parameter* p : shards[i]) {
            where[p->name] = file;
            total += static_cast<std::size_t>(p->elements()) * spec::size_of(spec.dtype);
        }
    }
    if (shards.size() > 1)
        write_file_atomically(folder / formats::shard_index_file, formats::shard_index_json(where, total));
    write_file_atomically(folder / "config.json",
                          formats::write_model_config(spec, std::nullopt, read_file(source_folder / "config.json")));
}

}  // namespace unsloth::train
