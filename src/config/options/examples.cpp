#include "config/options/sections.h"

namespace unsloth::config {

// A cache of encoded rows is valid as long as none of the first changes. The tests change each of them.
void declare_changes_of_examples(OptionSet& options) {
    for (const char* name : {"model.path",
                             "model.adapter_name_or_path",
                             "model.max_seq_length",
                             "model.special_tokens",
                             "training.objective",
                             "data.train_file",
                             "data.train_split",
                             "data.datasets",
                             "data.eval_file",
                             "data.eval_split",
                             "data.eval_files",
                             "data.format",
                             "data.columns",
                             "data.text_unit",
                             "data.invalid_utf8",
                             "data.image_root",
                             "data.image_max_pixels",
                             "data.template",
                             "data.chat_template_kwargs",
                             "data.train_on_prompt",
                             "data.train_on_last_turn_only",
                             "data.overflow_strategy",
                             "data.min_length",
                             "data.skip_invalid",
                             "preference.max_prompt_length",
                             "preference.truncation_mode"})
        options.at(name).changes_examples = true;
    for (const char* name : {"data.val_size", "data.shuffle", "data.packing", "data.drop_duplicates", "data.cache_dir",
                             "data.cache_max_gib"})
        options.at(name).changes_examples = false;
}

}  // namespace unsloth::config
