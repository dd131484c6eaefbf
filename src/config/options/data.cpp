#include "config/options/sections.h"

namespace unsloth::config {
namespace {

std::vector<std::pair<std::string, DataFormat>> row_formats() {
    return {{"auto", DataFormat::automatic},        {"tokenized", DataFormat::tokenized},
            {"alpaca", DataFormat::alpaca},         {"messages", DataFormat::messages},
            {"sharegpt", DataFormat::sharegpt},     {"prompt_completion", DataFormat::prompt_completion},
            {"preference", DataFormat::preference}, {"text", DataFormat::text},
            {"decision", DataFormat::decision}};
}

void declare_source(OptionSet& options, DataSource& source) {
    options.add("path", source.path, "File, folder or glob, as train_file.").path("FILE").must_be_given();
    options.add_choice("format", source.format, row_formats(), "What a row holds; auto: data.format.");
    options.add("weight", source.weight, "Share of an epoch, relative to the other sources' weights.")
        .above(0)
        .at_most(1e9);
    options.add("name", source.config_name, "Configuration of the data set: its folder NAME; empty: none.")
        .alias("", "config")
        .suggested_for({"subset", "config_name"});
    options.add("split", source.split,
                "Only files of this split, by their names, or a slice of their rows, as train[:20%]; empty: all, or "
                "train where a folder has one.");
    options.add("columns", source.columns, "Names of columns in the files; empty: data.columns.");
    options.add("template", source.template_name, "Chat template of its rows; empty: data.template.")
        .path("NAME")
        .synonym("llama3", "llama-3")
        .synonym("llama2", "llama-2");
    options.add("max_samples", source.max_samples, "Read only this many examples, from the start; 0: all.")
        .at_least(0)
        .suggested_for({"num_samples", "max_rows", "limit"});
}

void declare_files(OptionSet& options, DataOptions& data) {
    options
        .add("train_file", data.train_file,
             "Training rows: a file (JSON Lines, JSON array, CSV, TSV, plain text, each also as .gz or .zst; Parquet, "
             "Arrow), "
             "a folder "
             "of such files, a glob, or a data set of the Hugging Face hub (ORG/NAME).")
        .path("FILE")
        .most_used("Rows: JSONL, CSV, Parquet, text")
        .suggested_for({"dataset", "data", "train", "train_data", "dataset_path", "dataset_name", "data_path", "file"})
        .on_resume(OnResume::logged);
    options
        .add("train_split", data.train_split,
             "Split of train_file, by the names of its files, or a slice of the rows, as Hugging Face's datasets write "
             "it: train, train[:20%], [100:500], train[-10%:]+test. Empty: train where there is one, else all.")
        .only_with("data.train_file")
        .suggested_for({"dataset_train_split", "split", "dataset_split"});
    options
        .add_list(
            "datasets", data.datasets, declare_source,
            "Several sources of training rows, instead of train_file: [{\"path\", \"name\", \"format\", \"weight\", "
            "\"split\", \"columns\", \"template\", \"max_samples\"}], all but path optional. Weights, on all or on "
            "none, are the "
            "sources' shares of an epoch.")
        .not_with("data.train_file")
        .because("training rows come from one of them")
        .suggested_for({"sources", "dataset_mixer", "train_files"})
        .on_resume(OnResume::logged);
    options.add("eval_file", data.eval_file, "Evaluation rows: a file, folder or glob.")
        .path("FILE")
        .suggested_for({"validation_file", "valid_file", "test_file", "eval_dataset", "eval_data"})
        .not_with("data.val_size")
        .because("evaluation rows come from one of them")
        .not_with("data.eval_files")
        .because("evaluation rows come from one of them")
        .on_resume(OnResume::logged);
    options
        .add("eval_split", data.eval_split,
             "Split or slice of eval_file, written as train_split; without an eval_file, of train_file.")
        .needs({"data.eval_file", "data.train_file"})
        .not_with("data.val_size")
        .because("evaluation rows come from one of them")
        .not_with("data.eval_files")
        .because("evaluation rows come from one of them")
        .suggested_for({"dataset_test_split", "test_split"});
    options
        .add("eval_files", data.eval_files,
             "Several named evaluation sets instead of eval_file: {\"law\": \"law.jsonl\", \"chat\": \"chat.jsonl\"}. "
             "Each set gets its own loss (eval_law_loss), in addition to the loss over all tokens (eval_loss).")
        .not_with("data.val_size")
        .because("evaluation rows come from one of them")
        .on_resume(OnResume::logged);
    options
        .add("val_size", data.val_size,
             "Rows of the training data held out for evaluation: below 1 a fraction, else a number; 0: none.")
        .at_least(0)
        .suggested_for({"test_size", "val_set_size", "eval_size"});
}

/// How a file is read.
void declare_rows(OptionSet& options, DataOptions& data) {
    options.add_choice(
        "format", data.format, row_formats(),
        "What a row holds: input_ids; instruction, input, output; messages; conversations; prompt, completion; "
        "chosen, rejected; text; or input, question, answer. auto looks at the rows' keys.");
    options
        .add("columns", data.columns,
             "Names of columns in the files, by the name that is known here: {\"instruction\": \"question\", "
             "\"output\": \"answer\"}. An empty name: that column is not read.")
        .suggested_for({"column_mapping", "field_mapping", "rename_columns"});
    options.add_choice("text_unit", data.text_unit, {{"paragraph", TextUnit::paragraph}, {"file", TextUnit::file}},
                       "What a row of a plain text file is: the lines between two blank ones, or the whole file.");
    options.add_choice(
        "invalid_utf8", data.invalid_utf8, {{"refuse", InvalidUtf8::refuse}, {"replace", InvalidUtf8::replace}},
        "A row that is not UTF-8: refuse takes it for a bad row, replace makes its broken bytes U+FFFD.");
    options
        .add(
            "image_root", data.image_root,
            "Folder that the paths of images in rows are relative to, and that none may lead out of; empty: the folder "
            "of the rows' file.")
        .path("DIR")
        .suggested_for({"image_dir", "image_folder", "media_dir"});
    options
        .add("image_max_pixels", data.image_max_pixels,
             "Shrink images of more pixels to this number, before the model's own preprocessing; 0: none.")
        .at_least(0)
        .suggested_for({"max_pixels", "image_size", "image_resize"});
    options
        .add("template", data.template_name,
             "Chat template. auto: the model's own, else a built-in one that fits its tokens. A name: one of the "
             "model's, or llama-3, llama-2, mistral, chatml, qwen, alpaca, zephyr. A path: a .jinja file. A text with "
             "{{ or {%: the template itself.")
        .path("NAME")
        .alias("data", "chat_template_jinja")
        .synonym("llama3", "llama-3")
        .synonym("llama2", "llama-2")
        .synonym("tokenizer_default", "default")
        .suggested_for({"chat_template", "prompt_template"});
    options.add_object(
        "chat_template_kwargs", data.chat_template_kwargs,
        "Variables of the chat template, such as {\"enable_thinking\": false}. A row's own columns win, and "
        "over these its column chat_template_kwargs.");
}

/// What a row becomes.
void declare_examples(OptionSet& options, DataOptions& data) {
    options.add("train_on_prompt", data.train_on_prompt, "Prompts have labels too, not only completions.")
        .not_with("data.train_on_last_turn_only")
        .not_with("training.objective", {"dpo", "orpo", "kto", "decision"})
        .because("preferences are about answers");
    options
        .add("train_on_last_turn_only", data.train_on_last_turn_only,
             "Only the last assistant turn of a conversation has labels.")
        .not_with("training.objective", {"dpo", "orpo", "kto", "decision"})
        .because("preferences are about answers");
    options.add("shuffle", data.shuffle, "Shuffle examples every epoch, seeded by training.seed; false: file order.");
    options
        .add("packing", data.packing,
             "Fill rows of max_seq_length with several examples, each attending only to itself.")
        .alias("training", "packing")
        .not_with("training.max_tokens_per_batch")
        .because("packing fills rows, max_tokens_per_batch fills micro-batches")
        .not_with("training.objective", {"grpo"})
        .because("each completion is a row of its own");
    options
        .add_choice(
            "overflow_strategy", data.long_rows,
            {{"auto", LongRows::automatic},
             {"truncate", LongRows::truncate},
             {"split", LongRows::split},
             {"drop", LongRows::drop}},
            "What happens to an example of more than model.max_seq_length tokens. truncate cuts it. split makes "
            "several sequences of it. drop skips and counts it. auto splits plain text and truncates other examples.")
        .not_with("training.objective", {"dpo", "orpo", "kto", "decision"})
        .when({"split"})
        .because("it would separate an answer from its prompt")
        .error("option.unsupported")
        .or_else("Set data.overflow_strategy to truncate or drop.")
        .formerly("data", "long_rows");
    options
        .add("min_length", data.min_length,
             "Skip and count examples of fewer tokens than this, and such pieces of examples that are split; 0: none.")
        .at_least(0)
        .not_with("training.objective", {"dpo", "orpo", "kto", "grpo", "decision"})
        .because("only whole sequences of tokens are compared with it")
        .suggested_for({"min_sample_len", "min_seq_length", "min_tokens"});
    options.add("drop_duplicates", data.drop_duplicates,
                "Skip training examples whose tokens and labels repeat an earlier example, and count them.");
    options.add("skip_invalid", data.skip_bad_rows, "Count and skip examples that cannot be read, instead of stopping.")
        .formerly("data", "skip_bad_rows");
    options
        .add("cache_dir", data.cache_dir,
             "Folder for encoded rows, so that the next start need not tokenise; auto: unsloth-train in the user's "
             "cache folder, "
             "for data of 1 MiB or more; empty: none.")
        .path("DIR")
        .suggested_for({"dataset_cache", "tokenized_path", "cache"})
        .on_resume(OnResume::mutable_);
    options
        .add("cache_max_gib", data.cache_max_gib,
             "Size limit of cache_dir in GiB. A new file evicts the least recently used ones, but never a file that a "
             "run has open. 0: no limit.")
        .at_least(0)
        .at_most(100000)
        .on_resume(OnResume::mutable_);
}

}  // namespace

void declare_data(OptionSet& options, DataOptions& data) {
    options.section("data", "Data", "Rows to train and to evaluate on.", OnResume::immutable);
    declare_files(options, data);
    declare_rows(options, data);
    declare_examples(options, data);
}

}  // namespace unsloth::config
