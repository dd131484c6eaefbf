// Of axolotl: fields that change something for some models, adapters or data sets alone.
#include <algorithm>

#include "import/axolotl_fields.h"
#include "import/model_names.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

/// Patterns that name the whole language model, and nothing else: they freeze a tower.
bool names_language_model(const Json& patterns) {
    const auto whole = [](const Json& pattern) {
        static const std::vector<std::string> known = {"model.language_model.*",   "language_model.*", "lm_head.*",
                                                       "language_model.lm_head.*", "language_model",   "lm_head"};
        if (!pattern.is_string()) return false;
        std::string text = pattern;
        if (text.starts_with('^')) text.erase(0, 1);
        return std::find(known.begin(), known.end(), text) != known.end();
    };
    return patterns.is_array() && std::all_of(patterns.begin(), patterns.end(), whole);
}

void import_frozen_parts(Importer& importer) {
    const auto patterns = importer.take("unfrozen_parameters");
    const bool adapts = importer.config().lora.finetuning_type == config::FinetuningType::lora;
    if (patterns && !patterns->empty()) {
        if (adapts && names_language_model(*patterns))
            importer.note("unfrozen_parameters",
                          "adapters are of the language model alone, and the base and its tower are frozen "
                          "(lora.vision false)");
        else
            importer.lose("unfrozen_parameters",
                          cat(shown(*patterns),
                              ": lora.target_modules and layers_to_transform say what adapters are "
                              "of; lora.finetuning_type full trains all weights"));
    }
    if (importer.take_flag("freeze_mm_modules"))
        importer.note("freeze_mm_modules", "towers are frozen unless lora.vision is true");
}

void import_vision(Importer& importer, const Json& model) {
    const auto processor = importer.take("processor_type");
    if (!processor) return;
    if (model.is_string() && has_vision(model))
        importer.note("processor_type", "images of rows are read as the model's preprocessor_config.json says");
    else
        importer.lose("processor_type", cat(shown(*processor), ": text alone is trained on"));
}

void import_vocabulary(Importer& importer, const Json& model) {
    if (!importer.take_flag("resize_token_embeddings_to_32x")) return;
    if (model.is_string() && has_rows_of_32(model) && importer.look("tokens").is_null())
        importer.note("resize_token_embeddings_to_32x",
                      "has no effect: the model's embeddings have a multiple of 32 rows");
    else
        importer.lose("resize_token_embeddings_to_32x",
                      "true: the vocabulary is the model folder's; add tokens there first");
}

/// Several sets are merged and shuffled once; epochs then repeat that order.
void import_order(Importer& importer) {
    if (!importer.take_flag("curriculum_sampling")) return;
    const Json sets = importer.look("datasets");
    const bool several = sets.is_array() && sets.size() > 1, kept = importer.look("shuffle_merged_datasets") == false;
    if (!several || kept) return importer.set("curriculum_sampling", "data.shuffle", false);
    importer.lose("curriculum_sampling",
                  "true: data.shuffle draws an order every epoch, or keeps the files'; here one order of all sets is "
                  "drawn, and every epoch repeats it");
}

/// Labels of conversations begin where a turn's text does: after the empty thought that the template writes.
void tell_thoughts(Importer& importer, const Json& model) {
    const Json name = importer.look("chat_template"), sets = importer.look("datasets");
    const bool own = name.is_null() || (name.is_string() && name.get<std::string>().starts_with("tokenizer_default"));
    const auto converses = [](const Json& one) {
        const Json type = one.is_object() ? one.value("type", Json("")) : Json("");
        return type.is_string() && type.get<std::string>().starts_with("chat_template");
    };
    if (!own || !importer.look("chat_template_jinja").is_null() || !importer.look("rl").is_null() ||
        !model.is_string() || !has_hybrid_thinking(model) || !sets.is_array() ||
        std::none_of(sets.begin(), sets.end(), converses))
        return;
    importer.lose("datasets",
                  "the empty thought in front of a last answer has labels here, and none there; chat_template: qwen3 "
                  "is imported with the labels that it has there");
}

}  // namespace

void import_axolotl_model(Importer& importer) {
    const Json model = importer.look("base_model");
    import_frozen_parts(importer);
    import_vision(importer, model);
    import_vocabulary(importer, model);
    import_order(importer);
    tell_thoughts(importer, model);
}

}  // namespace unsloth::import
