// Of axolotl 0.19: the fields that depend on each other.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "config/import/axolotl_fields.h"
#include "config/import/importer.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

void set_defaults(Importer& importer) {
    importer.set_default("model.max_seq_length", 512);
    importer.set_default("model.load_in_4bit", false);
    importer.set_default("data.long_rows", "drop");
    importer.set_default("training.output_dir", "./model-out");
    importer.set_default("training.per_device_train_batch_size", 1);
    importer.set_default("training.gradient_accumulation_steps", 1);
    importer.set_default("training.num_train_epochs", 1);
    importer.set_default("training.lr_scheduler_type", "cosine");
    importer.set_default("training.warmup_steps", 0);
    importer.set_default("training.weight_decay", 0);
    importer.set_default("training.optim", "adamw_torch");
    importer.set_default("training.seed", 42);
    importer.set_default("training.save_total_limit", 4);
}

void import_adapter(Importer& importer) {
    const auto adapter = importer.take_text("adapter");
    const bool in_4bit = importer.take_flag("load_in_4bit"), in_8bit = importer.take_flag("load_in_8bit");
    if (!adapter) {
        importer.set("adapter", "lora.finetuning_type", "full");
        for (const auto& [key, given] : {std::pair{"load_in_4bit", in_4bit}, std::pair{"load_in_8bit", in_8bit}})
            if (given) importer.lose(key, "without an adapter all weights are trained, in 16 bit");
    } else if (*adapter == "lora" || *adapter == "qlora") {
        importer.set("adapter", "lora.finetuning_type", "lora");
        importer.set("load_in_4bit", "model.load_in_4bit", in_4bit);
    } else {
        importer.lose("adapter", cat(*adapter, ": LoRA and full fine-tuning are there; lora is written"));
        importer.set("load_in_4bit", "model.load_in_4bit", in_4bit);
    }
    if (adapter && in_8bit) importer.set("load_in_8bit", "model.load_in_8bit", true);
    const auto modules = importer.take("lora_target_modules");
    const bool linear = importer.take_flag("lora_target_linear");
    if (!adapter) {
        if (modules) importer.note("lora_target_modules", "has no effect: without an adapter all weights are trained");
        return;
    }
    const bool named = modules && !modules->empty();
    if (named && modules->is_string() && *modules != "all-linear") {
        importer.lose("lora_target_modules",
                      cat(shown(*modules), ": a list of projections is expected, not a pattern"));
    } else if (linear || (named && modules->is_string())) {
        importer.set("lora_target_linear", "lora.target_modules", "all-linear");
    } else if (named) {
        importer.set("lora_target_modules", "lora.target_modules", *modules);
    }
}

/// Rows are never padded; other tokens than the folder's would change what is learnt.
void import_special_tokens(Importer& importer) {
    const Json tokens = importer.take("special_tokens").value_or(nullptr);
    if (tokens.is_null() || tokens.empty()) return;
    if (tokens.is_object() && tokens.size() == 1 && tokens.contains("pad_token"))
        return importer.note("special_tokens", "pad_token has no effect: rows are not padded");
    importer.lose("special_tokens",
                  cat(shown(tokens), ": the tokenizer's own are taken; set them in the model's folder"));
}

/// "chatml" and the like by our names; nothing when the model's own template is meant.
std::optional<std::string> template_of(Importer& importer, const std::string& key, const Json& name) {
    static const std::vector<std::pair<const char*, const char*>> same = {
        {"chatml", "chatml"}, {"llama3", "llama-3"}, {"alpaca", "alpaca"}};
    for (const auto& [theirs, ours] : same)
        if (name == theirs) return ours;
    if (name != "tokenizer_default" && name != "jinja")
        importer.lose(key, cat(shown(name),
                               ": of axolotl's templates chatml, llama3 and alpaca are built in; "
                               "data.template auto takes the model's own"));
    return std::nullopt;
}

void import_template(Importer& importer) {
    const auto name = importer.take("chat_template");
    const auto text = importer.take_text("chat_template_jinja");
    if (text) {
        if (text->find('{') == std::string::npos) return importer.set("chat_template_jinja", "data.template", *text);
        importer.lose("chat_template_jinja", "write the template to a file NAME.jinja, and data.template NAME.jinja");
    } else if (name) {
        if (const auto ours = template_of(importer, "chat_template", *name))
            importer.set("chat_template", "data.template", *ours);
    }
}

/// A data set of the list `key`, field by field.
class Source {
  public:
    /// `rl`: of the file; empty: rows are learnt as they are.
    Source(Importer& importer, std::string key, Json fields, std::string rl)
        : importer_(importer), key_(std::move(key)), fields_(std::move(fields)), rl_(std::move(rl)) {}

    ImportedSource read() {
        if (!fields_.is_object()) {
            importer_.lose(key_, "a data set is an object with a path");
            return {};
        }
        read_path();
        read_type();
        read_rest();
        return std::move(source_);
    }

  private:
    std::optional<Json> take(const char* field) {
        const auto found = fields_.find(field);
        if (found == fields_.end()) return std::nullopt;
        Json value = *found;
        fields_.erase(found);
        if (value.is_null() || value == "") return std::nullopt;
        return value;
    }
    std::string text(const char* field, const std::string& absent = "") {
        const auto value = take(field);
        return value ? shown(*value) : absent;
    }
    void lose(const std::string& field, const std::string& why) { importer_.lose(cat(key_, ".", field), why); }

    void read_path() {
        source_.path = text("path");
        const auto files = take("data_files");
        const std::string type = text("ds_type");
        if (files && (files->is_string() || files->size() == 1)) {
            const std::string file = shown(files->is_string() ? *files : files->front());
            // A path that names a reader, such as json, is none.
            const bool reader = source_.path.empty() || source_.path == type || source_.path == "json" ||
                                source_.path == "csv" || source_.path == "parquet" || source_.path == "text";
            source_.path = reader ? file : source_.path + "/" + file;
        } else if (files) {
            lose("data_files", cat(shown(*files), ": one path a data set; a folder or a glob may name several files"));
        }
        const std::string split = text("split", "train");
        if (split != "train") {
            source_.split = split;
            if (split.find_first_of("[+:") != std::string::npos) {
                lose("split", cat(split, ": a part of a split; data.datasets' split is a name"));
                source_.split.clear();
            }
        }
        if (const std::string name = text("name"); !name.empty())
            lose("name", cat(name, ": a configuration of a hub's data set; ORG/NAME/FOLDER names its files"));
        if (const std::string revision = text("revision", "main"); revision != "main")
            lose("revision", cat(revision, ": PATH@REVISION names one of the hub"));
    }

    void read_type() {
        const Json type = take("type").value_or(nullptr);
        if (type.is_object() && rl_.empty()) return read_prompter(type);
        const std::string name = type.is_null() ? "" : shown(type);
        if (!rl_.empty()) return read_answers(name);
        const std::string field = text("field"), messages = text("field_messages");
        if (name.empty()) {
            source_.format = DataFormat::tokenized;
        } else if (name == "alpaca" || name == "alpaca:chat" || name == "alpaca:phi") {
            source_.format = DataFormat::alpaca;
            source_.template_name = "alpaca";  // axolotl never gives such rows to a chat template
            if (name != "alpaca") lose("type", cat(name, ": rows are taken as alpaca, with its prompt"));
        } else if (name.starts_with("chat_template") || name.starts_with("sharegpt")) {
            read_conversations(name, messages);
        } else if (name == "completion" || name == "pretrain") {
            source_.format = DataFormat::text;
            const std::string column = field.empty() ? text("text_column", "text") : field;
            if (column != "text") source_.columns["text"] = column;
        } else {
            lose("type", cat(name,
                             ": known are alpaca, chat_template, completion, pretrain, tokenised rows, and an "
                             "object that names columns; bring the rows into one of these forms"));
        }
    }

    /// Rows of pairs, or for kto of answers with a verdict: TEMPLATE.FORM.
    void read_answers(const std::string& type) {
        using Columns = std::map<std::string, Json>;
        static const Columns pairs = {{"default", Json::object()},
                                      {"argilla_chat", Json::object()},
                                      {"intel", Json::object()},
                                      {"ultra", Json::object()},
                                      {"prompt_pairs", {{"instruction", "prompt"}}},
                                      {"icr", {{"instruction", "input"}}},
                                      {"argilla", {{"chosen", "chosen_response"}, {"rejected", "rejected_response"}}}};
        static const Columns verdicts = {{"argilla", {{"output", "completion"}}},
                                         {"intel", {{"instruction", "question"}, {"output", "completion"}}},
                                         {"icr", {{"instruction", "input"}, {"output", "completion"}}},
                                         {"prompt_pairs", {{"instruction", "prompt"}, {"output", "completion"}}},
                                         {"ultra", {{"instruction", "prompt"}, {"output", "completion"}}}};
        const Columns& known = rl_ == "kto" ? verdicts : pairs;
        const std::size_t dot = std::min(type.find('.'), type.size());
        const std::string words = type.substr(0, dot), form = type.substr(std::min(dot + 1, type.size()));
        source_.format = rl_ == "kto" ? DataFormat::alpaca : DataFormat::preference;
        const auto columns = known.find(form);
        const bool own_template = words == "chat_template";
        if (columns == known.end() || (!own_template && words != "chatml" && words != "llama3"))
            return lose("type", cat(type, ": bring the rows into one of the forms of docs/guide.md, Preferences"));
        if (!own_template) source_.template_name = words == "llama3" ? "llama-3" : words;
        // Answers of a chat template are messages, in columns of these names.
        if (!own_template || rl_ == "kto") source_.columns = columns->second;
        for (const auto& [ours, field] : {std::pair{"messages", "field_messages"}, std::pair{"chosen", "field_chosen"},
                                          std::pair{"rejected", "field_rejected"}})
            if (const std::string column = text(field, ours); column != ours) source_.columns[ours] = column;
        const Json usual = {{"role", "role"}, {"content", "content"}},
                   sharegpt = {{"role", "from"}, {"content", "value"}};
        const Json mappings = take("message_property_mappings").value_or(usual);
        if (mappings != usual && mappings != sharegpt)
            lose("message_property_mappings", cat(shown(mappings), ": a message is {role, content} or {from, value}"));
    }

    void read_conversations(const std::string& name, const std::string& messages) {
        if (name != "chat_template" && name != "chat_template.default" && !name.starts_with("sharegpt"))
            lose("type", cat(name, ": rows are taken as chat_template"));
        const std::string role = text("message_field_role", "role"), content = text("message_field_content", "content");
        const Json mappings = take("message_property_mappings").value_or(Json{{"role", role}, {"content", content}});
        const auto names = [&](const char* of_role, const char* of_content) {
            return mappings.is_object() && mappings.value("role", Json("role")) == of_role &&
                   mappings.value("content", Json("content")) == of_content;
        };
        const bool openai = names("role", "content"), sharegpt = names("from", "value");
        const std::string column =
            messages.empty() ? name.starts_with("sharegpt") ? "conversations" : "messages" : messages;
        source_.format = openai && !name.starts_with("sharegpt") ? DataFormat::messages : DataFormat::sharegpt;
        const char* const ours = source_.format == DataFormat::messages ? "messages" : "conversations";
        if (column != ours) source_.columns[ours] = column;
        if (!openai && !sharegpt)
            lose("message_property_mappings", cat(shown(mappings), ": a message is {role, content} or {from, value}"));
    }

    /// Columns by name, and texts around them.
    void read_prompter(Json prompter) {
        source_.format = DataFormat::alpaca;
        source_.template_name = "alpaca";
        for (const char* name : {"instruction", "input", "output", "system"}) {
            const std::string key = cat("field_", name);
            if (prompter.contains(key) && prompter[key].is_string() && prompter[key] != name)
                source_.columns[name] = prompter[key];
            prompter.erase(key);
        }
        for (const auto& [key, value] : prompter.items())
            if (!value.is_null() && value != "")
                lose("type." + key,
                     cat(shown(value), ": prompts have alpaca's words; data.template may name a .jinja file"));
    }

    void read_rest() {
        if (const auto chosen = take("chat_template"))
            if (const auto ours = template_of(importer_, key_ + ".chat_template", *chosen))
                source_.template_name = *ours;
        for (const char* harmless : {"trust_remote_code", "preprocess_shards", "template_thinking_key",
                                     "field_thinking", "split_thinking", "text_column", "field_tools"})
            take(harmless);
        const std::vector<std::pair<const char*, Json>> usual = {{"roles_to_train", Json::array({"assistant"})},
                                                                 {"train_on_eos", "turn"},
                                                                 {"train_on_eot", "turn"},
                                                                 {"drop_system_message", false}};
        for (const auto& [field, value] : usual) {
            const auto given = take(field);
            if (given && *given != value && *given != Json::array({"gpt"}))
                lose(field, cat(shown(*given),
                                ": an answer is learnt with the token that ends it, and nothing else; "
                                "data.train_on_prompt true is for all tokens"));
        }
        if (const auto roles = take("roles")) read_roles(*roles);
        for (const auto& [field, value] : fields_.items())
            if (!value.is_null() && value != false && value != "")
                lose(field, cat(shown(value), ": the rows are read without it"));
    }

    // Those that are known without being named.
    void read_roles(const Json& roles) {
        static const std::vector<std::pair<std::string, std::vector<std::string>>> known = {
            {"user", {"user", "human"}},
            {"assistant", {"assistant", "gpt", "model"}},
            {"system", {"system"}},
            {"tool", {"tool", "function", "observation"}}};
        for (const auto& [role, names] : roles.items())
            for (const Json& name : names.is_array() ? names : Json::array({names})) {
                const auto fits = [&, &role = role](const auto& one) {
                    return one.first == role &&
                           std::any_of(one.second.begin(), one.second.end(), [&](const auto& n) { return name == n; });
                };
                if (std::none_of(known.begin(), known.end(), fits))
                    lose("roles", cat(shown(name), " for ", role, ": rename it in the rows"));
            }
    }

    Importer& importer_;
    std::string key_;
    Json fields_;
    std::string rl_;
    ImportedSource source_;
};

/// What is learnt; rl of the file, or nothing where rows are learnt as they are.
std::string import_objective(Importer& importer) {
    std::string rl = importer.take_text("rl").value_or("");
    const bool dpo = rl == "dpo", ipo = rl == "ipo", simpo = rl == "simpo", orpo = rl == "orpo", kto = rl == "kto";
    if (dpo || ipo || simpo || orpo || kto) {
        importer.set("rl", "training.objective", orpo || kto ? rl : "dpo");
        if (ipo || simpo) importer.set("rl", "preference.loss_type", rl);
        if (simpo) importer.set_default("preference.rpo_alpha", 1);  // cpo_alpha of TRL's CPOConfig
    } else if (!rl.empty()) {
        importer.lose("rl", cat(rl, ": of preferences dpo, ipo, simpo, orpo and kto are there"));
        rl.clear();
    }
    struct Served {
        const char *key, *option;
        bool serves;
    };
    for (const auto& [key, option, serves] :
         {Served{"rl_beta", "preference.beta", !rl.empty()}, Served{"orpo_alpha", "preference.beta", orpo},
          Served{"dpo_loss_type", "preference.loss_type", dpo},
          Served{"dpo_label_smoothing", "preference.label_smoothing", dpo},
          Served{"rpo_alpha", "preference.rpo_alpha", dpo || ipo}, Served{"cpo_alpha", "preference.rpo_alpha", simpo},
          Served{"simpo_gamma", "preference.simpo_gamma", simpo},
          Served{"kto_desirable_weight", "preference.desirable_weight", kto},
          Served{"kto_undesirable_weight", "preference.undesirable_weight", kto}}) {
        const auto value = importer.take(key);
        if (!value) continue;
        const bool alone = value->is_array() && value->size() == 1;
        if (serves)
            importer.set(key, option, alone ? value->front() : *value);
        else
            importer.note(key, "has no effect: it serves another rl");
    }
    return rl;
}

void import_sources(Importer& importer, const std::string& rl) {
    const bool pretraining = !importer.look("pretraining_dataset").is_null();
    const std::string key = pretraining ? "pretraining_dataset" : "datasets";
    Json list = importer.take(key).value_or(Json::array());
    if (!pretraining) importer.take("pretraining_dataset");
    if (list.is_string()) list = Json::array({Json{{"path", list}}});
    if (!list.is_array()) list = Json::array({list});
    std::vector<ImportedSource> sources;
    std::set<std::string> templates;
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (pretraining && list[i].is_object() && !list[i].contains("type")) list[i]["type"] = "pretrain";
        sources.push_back(Source(importer, cat(key, "[", i, "]"), list[i], rl).read());
        templates.insert(sources.back().template_name);
    }
    if (templates.size() == 1 && !templates.begin()->empty()) {
        importer.set(key, "data.template", *templates.begin());
        for (ImportedSource& source : sources) source.template_name.clear();
    }
    set_sources(importer, key, sources);
    if (pretraining && !importer.look("datasets").is_null()) {
        importer.take("datasets");
        importer.lose("datasets", "pretraining_dataset is given too, and alone is taken");
    }
}

/// Whether there are rows to evaluate on.
bool import_evaluation_rows(Importer& importer, const std::string& rl) {
    const auto tests = importer.take("test_datasets");
    if (!tests || tests->empty()) return importer.look("val_set_size").is_number() && importer.look("val_set_size") > 0;
    const Json list = tests->is_array() ? *tests : Json::array({*tests});
    std::vector<NamedSource> sources;
    for (std::size_t i = 0; i < list.size(); ++i) {
        ImportedSource source = Source(importer, cat("test_datasets[", i, "]"), list[i], rl).read();
        const std::string name = std::filesystem::path(source.path).stem().string();
        sources.emplace_back(name, std::move(source));
    }
    return set_evaluation_sources(importer, "test_datasets", sources);
}

/// What comes so often an epoch, when that is once in the run: at the end, which is where it always comes.
void import_often(Importer& importer, const char* field, const char* option, const char* what, bool wanted) {
    const Json epochs = importer.look("num_epochs");
    const auto often = importer.take(field);
    if (!often || *often == 0 || !wanted) return;
    const bool once = often->is_number() && (epochs.is_null() || epochs == 1) && *often == 1;
    if (once) return importer.set(field, option, 0);
    importer.lose(field, cat(shown(*often), ": ", what, " every ", option, " steps, a number, and at the end"));
}

void import_precision_of_adapters(Importer& importer) {
    const Json checkpointing = importer.take("gradient_checkpointing").value_or(nullptr);
    if (checkpointing == "offload") {
        importer.set("gradient_checkpointing", "training.gradient_checkpointing", "full+offload");
    } else if (checkpointing == "offload_disk") {
        importer.lose("gradient_checkpointing", "offload_disk: what layers keep goes to host memory (full+offload)");
    } else if (!checkpointing.is_null()) {
        importer.set("gradient_checkpointing", "training.gradient_checkpointing", checkpointing);
    }
    import_precision(importer, "bfloat16");
}

void import_optimizer(Importer& importer) {
    const auto optimizer = importer.take("optimizer");
    if (optimizer && *optimizer == "adamw_torch_8bit") {
        importer.set("optimizer", "training.optim", "adamw_8bit");
        importer.note("optimizer",
                      "adamw_torch_8bit is taken as adamw_8bit: bitsandbytes' code of moments, not torchao's");
    } else if (optimizer) {
        importer.set("optimizer", "training.optim", *optimizer);
    }
    const auto schedule = importer.take("lr_scheduler");
    const auto least = importer.take("cosine_min_lr_ratio");
    if (least && *least != 0 && (!schedule || *schedule == "cosine")) {
        importer.set("lr_scheduler", "training.lr_scheduler_type", "cosine_with_min_lr");
        importer.set("cosine_min_lr_ratio", "training.lr_scheduler_kwargs", {{"min_lr_rate", *least}});
    } else if (schedule) {
        importer.set("lr_scheduler", "training.lr_scheduler_type", *schedule);
    }
    if (importer.look("warmup_steps").is_null() && importer.look("warmup_ratio").is_null()) {
        importer.take("warmup_steps"), importer.take("warmup_ratio");
        importer.set_default("training.warmup_ratio", 0.03);  // of axolotl, at most 100 steps
    } else {
        import_warmup(importer);
    }
}

}  // namespace

void import_axolotl(Importer& importer) {
    set_defaults(importer);
    const bool packed = importer.take_flag("sample_packing");
    if (packed) importer.set("sample_packing", "data.packing", true);
    import_adapter(importer);
    import_template(importer);
    import_special_tokens(importer);
    const std::string rl = import_objective(importer);
    import_sources(importer, rl);
    import_precision_of_adapters(importer);
    import_optimizer(importer);
    const bool evaluates = import_evaluation_rows(importer, rl);
    const bool says_often = !importer.look("saves_per_epoch").is_null();
    import_often(importer, "saves_per_epoch", "training.save_steps", "checkpoints come", true);
    import_often(importer, "evals_per_epoch", "training.eval_steps", "evaluations come", evaluates);
    const bool says_saving = !importer.look("save_steps").is_null() || !importer.look("save_strategy").is_null();
    if (says_saving) {
        import_saving(importer, "steps");
    } else if (!says_often) {
        importer.note("save_strategy", "axolotl saves after every epoch; here training.save_steps says how often");
    }
    if (evaluates) import_evaluation(importer, importer.look("eval_steps").is_null() ? "no" : "steps", evaluates);
    for (const char* key : {"save_steps", "save_strategy", "eval_steps", "eval_strategy", "evaluation_strategy"})
        importer.take(key);
    const TrainingOptions& training = importer.config().training;
    // axolotl loads the best one unless it is told not to, where every checkpoint has an evaluation.
    if (says_saving && training.save_steps > 0 && training.eval_steps > 0 &&
        training.save_steps % training.eval_steps == 0 && importer.look("load_best_model_at_end").is_null())
        importer.set_default("training.load_best_model_at_end", true);
    import_best(importer, "early_stopping_patience");
    for (const std::string& plugin : importer.take_names("plugins"))
        importer.note("plugins", cat(plugin, ": nothing is loaded; what its fields ask for is told with them"));
    importer.take_rest(axolotl_fields(), false);
}

}  // namespace unsloth::config
