#include "import/axolotl_source.h"

#include <algorithm>
#include <map>
#include <vector>

#include "import/template_names.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/reasoning_names.h"

namespace unsloth::import {
namespace {

/// A data set, field by field.
class AxolotlSource {
  public:
    /// `rl`: of the file; empty: rows are trained on as they are.
    AxolotlSource(Importer& importer, std::string key, Json fields, std::string rl)
        : importer_(importer), key_(std::move(key)), fields_(std::move(fields)), rl_(std::move(rl)) {}

    ImportedSource read() {
        if (!fields_.is_object()) {
            importer_.lose(key_, "a data set is an object with a path");
            return {};
        }
        read_path();
        if (source_.path.empty()) lose("path", "a data set has one, or data_files");
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
        if (split != "train") source_.split = split;
        source_.config_name = text("name");
        if (const std::string revision = text("revision", "main"); revision != "main")
            lose("revision", cat(revision, ": PATH@REVISION names one of the hub"));
    }

    void read_type() {
        const Json type = take("type").value_or(nullptr);
        if (type.is_object() && rl_.empty()) return read_prompter(type);
        const std::string name = type.is_null() ? "" : shown(type);
        if (rl_ == "grpo") return read_prompts(name);
        if (!rl_.empty()) return read_answers(name);
        if (name.empty()) {
            source_.format = DataFormat::tokenized;
        } else if (name == "alpaca" || name == "alpaca:chat" || name == "alpaca:phi") {
            source_.format = DataFormat::alpaca;
            source_.template_name = "alpaca";  // axolotl never gives such rows to a chat template
            source_.columns = {{"system", ""}, {"history", ""}};
            if (name != "alpaca") lose("type", cat(name, ": rows are taken as alpaca, with its prompt"));
        } else if (name.starts_with("chat_template") || name.starts_with("sharegpt")) {
            read_conversations(name);
        } else if (name == "completion" || name == "pretrain") {
            source_.format = DataFormat::text;
            const std::string column = text(name == "completion" ? "field" : "text_column", "text");
            if (column != "text") source_.columns["text"] = column;
        } else {
            lose("type", cat(name,
                             ": known are alpaca, chat_template, completion, pretrain, tokenised rows, and an "
                             "object that names columns; bring the rows into one of these forms"));
        }
    }

    /// Rows of prompts, and columns for the rewards.
    void read_prompts(const std::string& type) {
        if (!type.empty() && type != "chat_template" && type != "chat_template.default")
            lose("type", cat(type,
                             ": bring the rows into the form {\"prompt\": \"…\"} or {\"messages\": […]}, with the "
                             "columns that the rewards read"));
        for (const auto& [ours, field] : {std::pair{"messages", "field_messages"}, std::pair{"tools", "field_tools"}})
            if (const std::string column = text(field, ours); column != ours) source_.columns[ours] = column;
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
            return lose("type", cat(type, ": bring the rows into one of the forms of docs/how-to/preferences.md"));
        if (!own_template) source_.template_name = words == "llama3" ? "llama-3" : words;
        // Answers of a chat template are messages, in columns of these names.
        if (!own_template || rl_ == "kto") source_.columns = columns->second;
        for (const auto& [ours, field] : {std::pair{"messages", "field_messages"}, std::pair{"chosen", "field_chosen"},
                                          std::pair{"rejected", "field_rejected"}})
            if (const std::string column = text(field, ours); column != ours) source_.columns[ours] = column;
        (void)read_mappings();
    }

    void read_conversations(const std::string& name) {
        if (name != "chat_template" && name != "chat_template.default" && !name.starts_with("sharegpt"))
            lose("type", cat(name, ": rows are taken as chat_template"));
        const bool sharegpt = name.starts_with("sharegpt");
        const bool openai = read_mappings() && !sharegpt && !renames_roles();
        const std::string column = text("field_messages", sharegpt ? "conversations" : "messages");
        // Of the two formats sharegpt knows other names of roles.
        source_.format = openai ? DataFormat::messages : DataFormat::sharegpt;
        const char* const ours = openai ? "messages" : "conversations";
        if (column != ours) source_.columns[ours] = column;
        for (const auto& [known, field] : {std::pair{"tools", "field_tools"}, std::pair{"system", "field_system"}})
            if (const std::string theirs = text(field, known); theirs != known) source_.columns[known] = theirs;
        for (const char* field : {"field_thinking", "template_thinking_key"})
            if (const std::string key = text(field, "reasoning_content"); !spec::is_reasoning(key))
                lose(field, cat(key, ": reasoning is read of reasoning_content, reasoning and thinking; rename it"));
        if (take("split_thinking").value_or(false) != false)
            lose("split_thinking",
                 "contents stay whole; write what is between <think> and </think> into a "
                 "member reasoning_content, unless the model's template looks for these marks");
    }

    /// What members of a message are called; whether {role, content}, else {from, value}.
    bool read_mappings() {
        const std::string role = text("message_field_role", "role"), content = text("message_field_content", "content");
        Json mappings = take("message_property_mappings").value_or(Json::object());
        const auto theirs = [&](const char* member, const std::string& otherwise) {
            const std::string name = mappings.contains(member) ? shown(mappings[member]) : otherwise;
            if (mappings.is_object()) mappings.erase(member);
            return name;
        };
        const std::string names = theirs("role", role) + ", " + theirs("content", content);
        if (names != "role, content" && names != "from, value")
            lose("message_property_mappings", cat("{", names, "}: a message is {role, content} or {from, value}"));
        if (!mappings.is_object()) {
            lose("message_property_mappings", cat(shown(mappings), ": an object is expected"));
            mappings = Json::object();
        }
        for (const auto& [member, name] : mappings.items())
            if (name != member && !(spec::is_reasoning(member) && name.is_string() &&
                                    spec::is_reasoning(name.get_ref<const std::string&>())))
                lose("message_property_mappings." + member, cat(shown(name), ": rename it in the rows"));
        return names != "from, value";
    }

    /// Whether `roles` has other names for them than a chat template's.
    bool renames_roles() const {
        const auto roles = fields_.find("roles");
        if (roles == fields_.end() || !roles->is_object()) return false;
        for (const auto& [role, names] : roles->items())
            if (names != role && names != Json::array({role})) return true;
        return false;
    }

    /// Columns by name, and texts around them.
    void read_prompter(Json prompter) {
        source_.format = DataFormat::alpaca;
        source_.template_name = "alpaca";
        for (const char* name : {"instruction", "input", "output", "system"}) {
            const std::string key = cat("field_", name);
            const bool optional = name == std::string_view("input") || name == std::string_view("system");
            const Json column = prompter.value(key, Json(nullptr));
            if (column.is_string() && column != name && column != "") source_.columns[name] = column;
            if (optional && (column.is_null() || column == "")) source_.columns[name] = "";
            if (!column.is_null() && !column.is_string())
                lose("type." + key, cat(shown(column), ": a text is expected"));
            prompter.erase(key);
        }
        source_.columns["history"] = "";
        for (const auto& [key, value] : prompter.items())
            if (!value.is_null() && value != "")
                lose("type." + key,
                     cat(shown(value), ": prompts have alpaca's words; data.template may name a .jinja file"));
    }

    void read_rest() {
        if (const auto chosen = take("chat_template"))
            if (const auto ours = axolotl_template(importer_, key_ + ".chat_template", *chosen))
                source_.template_name = *ours;
        for (const char* harmless : {"trust_remote_code", "preprocess_shards"}) take(harmless);
        const std::vector<std::pair<const char*, Json>> usual = {
            {"roles_to_train", Json::array({"assistant"})}, {"train_on_eos", "turn"}, {"train_on_eot", "turn"}};
        if (take("drop_system_message").value_or(false) != false)
            lose("drop_system_message", "system texts stay; leave them out of the rows");
        for (const auto& [field, value] : usual) {
            const auto given = take(field);
            if (given && *given != value && *given != Json::array({"gpt"}))
                lose(field, cat(shown(*given),
                                ": an answer is learned with the token that ends it, and nothing else; "
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

}  // namespace

ImportedSource read_axolotl_source(Importer& importer, const std::string& key, const Json& entry,
                                   const std::string& rl) {
    return AxolotlSource(importer, key, entry, rl).read();
}

std::optional<std::string> axolotl_template(Importer& importer, const std::string& key, const Json& name) {
    const Json model = importer.look("base_model");
    const auto known = find_template("axolotl", name.is_string() ? name.get<std::string>() : "",
                                     model.is_string() ? model.get<std::string>() : "");
    if (known) {
        if (!known->note.empty()) importer.note(key, known->note);
        return known->ours.empty() ? "default" : known->ours;
    }
    if (name != "jinja" && !(name.is_string() && name.get<std::string>().starts_with("tokenizer_default")))
        importer.lose(
            key, cat(shown(name),
                     ": of axolotl's templates chatml, llama3, alpaca, qwen_25, qwen3, phi_3 and phi_35 are known; "
                     "data.template auto takes the model's own"));
    return std::nullopt;
}

}  // namespace unsloth::import
