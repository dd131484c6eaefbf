#include "unsloth/config/import.h"

#include "config/import/importer.h"
#include "config/read_tree.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

struct Program {
    PeerProgram program;
    const char* name;
    void (*import)(Importer&);
    std::vector<const char*> marks;  ///< fields that only its files have
};

const std::vector<Program>& programs() {
    static const std::vector<Program> all = {
        {PeerProgram::axolotl, "axolotl 0.19.0", import_axolotl, {"base_model", "micro_batch_size", "sequence_len"}},
        {PeerProgram::llama_factory,
         "LLaMA-Factory 0.9.5",
         import_llama_factory,
         {"stage", "cutoff_len", "template", "finetuning_type", "lora_rank", "dataset_dir"}},
        {PeerProgram::trl,
         "TRL 1.16.0 and Unsloth 2026.10.9",
         import_trl,
         {"model_name_or_path", "model_name", "dataset_name", "use_peft", "per_device_train_batch_size",
          "max_seq_length"}}};
    return all;
}

const Program& program_of(const Json& fields, PeerProgram wanted, const std::string& file) {
    for (const Program& one : programs()) {
        if (one.program == wanted) return one;
        if (wanted != PeerProgram::automatic) continue;
        for (const char* mark : one.marks)
            if (fields.contains(mark)) return one;
    }
    if (fields.contains("zero_optimization"))
        throw usage_error(cat(file, " is a configuration of DeepSpeed, which import-config does not read"),
                          "Section distributed says what ranks share: docs/parallel.md names each field's equivalent.");
    if (fields.contains("model") && fields["model"].is_object() && fields["model"].contains("path"))
        throw usage_error(cat(file, " is a configuration of this program already"), cat("unsloth-train ", file));
    throw usage_error(
        cat(file, " is no configuration of axolotl, LLaMA-Factory, TRL or Unsloth, as far as its fields tell"),
        "--from axolotl, llamafactory or trl says whose it is.");
}

}  // namespace

ImportedConfig import_config(const std::filesystem::path& file, PeerProgram program) {
    const Json fields = read_tree(file);
    if (!fields.is_object()) throw usage_error(cat(file.string(), ": expected an object of fields at the top"));
    const Program& chosen = program_of(fields, program, file.string());
    Importer importer(fields, file.parent_path());
    chosen.import(importer);
    return importer.finish(chosen.name);
}

}  // namespace unsloth::config
