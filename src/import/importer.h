// What the readers of other programs' configurations share: the fields that are left, and the configuration being made.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "import/config_names.h"
#include "unsloth/import/import.h"

namespace unsloth::import {

class Importer {
  public:
    /// `fields`: the file's top object. Files that it names are looked for from `folder` on.
    Importer(Json fields, std::filesystem::path folder);

    /// The field's value, which is then dealt with; nothing when it is absent or null.
    std::optional<Json> take(const std::string& key);
    /// The same for a text; one of another type is a loss, and nothing.
    std::optional<std::string> take_text(const std::string& key);
    /// Whether it is true; absent is false.
    bool take_flag(const std::string& key);
    /// A list of texts, or one text of them with commas between; empty when absent.
    std::vector<std::string> take_names(const std::string& key);
    /// What a field says, or that is left of it, without dealing with it; null when absent.
    Json look(const std::string& key) const;
    /// Whether the file says null for it.
    bool is_null(const std::string& key) const;
    /// Makes the members of an object fields of their own: "trl.beta" of {"trl": {"beta": …}}.
    void spread(const std::string& key);

    /// Sets that program's default; call it before all else.
    void set_default(const std::string& option, const Json& value);
    /// For `key`, which is carried over by it; where the option refuses the value, that is a loss. Of a list of names
    /// those that the option does not know are lost, and the others are carried over.
    void set(const std::string& key, const std::string& option, const Json& value);
    void carry(const std::string& key, const Json& value, const PeerField& field);
    /// For a field that was dealt with without an option.
    void note(const std::string& key, const std::string& text);
    void lose(const std::string& key, const std::string& why);
    /// The same for a field without which the training is the same.
    void leave(const std::string& key, const std::string& why);
    /// The same for a field that the program does not have.
    void lose_unknown(const std::string& key);

    /// Deals with all fields that are left and stand in the table, or, with `by_our_names`, that are options or peers'
    /// fields of ours; the rest is not known.
    void take_rest(const std::vector<PeerField>& table, bool by_our_names);

    const std::filesystem::path& folder() const { return folder_; }
    /// A file that is named from where that program is started: the working folder, or one at or above the file's own.
    /// Empty where there is none.
    std::filesystem::path find_file(const std::filesystem::path& name) const;
    const Config& config() const { return config_; }
    bool is_set(const std::string& option) const { return given_.count(option) != 0; }
    int64_t unknown_fields() const { return unknown_; }
    ImportedConfig finish(std::string program);

  private:
    void carry_by_our_name(const std::string& key, const Json& value);
    Json known_names(const std::string& key, const Option& target, const Json& value);

    Json fields_;
    std::filesystem::path folder_;
    Config config_;
    OptionSet options_;
    std::set<std::string> given_;
    ImportedConfig result_;
    int64_t unknown_ = 0;
};

/// A source of rows, as the other programs describe it.
struct ImportedSource {
    std::string path;
    DataFormat format = DataFormat::automatic;
    std::string split;
    std::optional<double> weight;
    Json columns = Json::object();  ///< {name here: name in the file}; empty: rows are read without it
    Json max_samples;               ///< null: all
    std::string template_name;      ///< empty: data.template
    bool has_images = false;
    std::string config_name;  ///< of a hub's data set; empty: none
};

/// Writes train_file, or datasets where one file does not say it.
void set_sources(Importer& importer, const std::string& key, const std::vector<ImportedSource>& sources);

/// A name, and the rows to evaluate on.
using NamedSource = std::pair<std::string, ImportedSource>;
/// Writes eval_file, or eval_files of several; after set_sources(). Whether there are any.
bool set_evaluation_sources(Importer& importer, const std::string& key, const std::vector<NamedSource>& sources);

// Groups of fields that transformers' TrainingArguments have, and that all three programs pass on.

/// bf16 and fp16 (also bfloat16, float16). `absent`: the type where the file does not mention them; `neither`: where it
/// switches them off. Empty: the checkpoint's own type, which is logged.
void import_precision(Importer& importer, const char* absent, const char* neither);
/// warmup_steps (below 1 a share) and warmup_ratio.
void import_warmup(Importer& importer);
/// save_strategy and save_steps; eval_strategy (or evaluation_strategy) and eval_steps. `has_rows`: to evaluate on.
void import_saving(Importer& importer, const std::string& strategy_default);
/// training.saves_per_epoch, for `key`, instead of the save_steps that the program has by default.
void save_per_epoch(Importer& importer, const std::string& key, const Json& times);
/// `steps_default`: eval_steps where the file says none; null: training.logging_steps.
void import_evaluation(Importer& importer, const std::string& strategy_default, bool has_rows,
                       const Json& steps_default = nullptr);
/// `modules`: names that get adapters, or "all-linear"; nothing: not said. `saved_key`: the field of modules that are
/// trained as a whole. Embeddings and lm_head get no adapters here: of `modules` they become such.
void import_modules(Importer& importer, const std::string& key, const std::optional<Json>& modules,
                    const std::string& saved_key);
/// fsdp, fsdp_config and deepspeed: section distributed; after the gradients' checkpointing.
void import_sharding(Importer& importer);
/// The projections of `modules`, which are ends of paths, or one expression over whole paths as PEFT takes it. Nothing,
/// after a loss, where the expression chooses among layers.
std::optional<Json> projections_of(Importer& importer, const std::string& key, const Json& modules);
/// TRL's trainers of preferences, which the others build on, learn without dropout unless disable_dropout is false.
void import_dropout_of_preferences(Importer& importer, const std::string& key);
/// Fields of TRL's DPOConfig, CPOConfig, KTOConfig and ORPOConfig that say the loss. `key`: the field that says the
/// objective. `cpo_loss`: CPOConfig's loss_type where the file says none; empty: it is not CPOConfig's.
void import_preference_fields(Importer& importer, const std::string& key, const std::string& objective,
                              const std::string& cpo_loss);
/// load_best_model_at_end, and the patience of early stopping under that program's name; after import_evaluation().
void import_best(Importer& importer, const char* patience);
/// push_to_hub, hub_model_id, hub_private_repo and hub_strategy. `id_alone`: hub_model_id means an upload by itself.
void import_upload(Importer& importer, bool id_alone = false);

// The programs. Each takes all fields of `importer`.
void import_axolotl(Importer& importer);
void import_llama_factory(Importer& importer);
void import_trl(Importer& importer);
void import_swift(Importer& importer);
void import_studio(Importer& importer);

}  // namespace unsloth::import
