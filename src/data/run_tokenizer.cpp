#include "unsloth/data/run_tokenizer.h"

#include "unsloth/core/error.h"
#include "unsloth/data/special_tokens.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/folder_contents.h"

namespace unsloth::data {

std::filesystem::path run_tokenizer_folder(const config::Config& config, const std::filesystem::path& model_folder) {
    std::filesystem::path folder = model_folder;
    if (const auto& adapter = config.model.adapter_name_or_path) {
        const std::filesystem::path own = formats::resolve_model_path(*adapter);
        if (tokenizer::Tokenizer::exists(own)) folder = own;
    }
    const SpecialTokenNames& tokens = config.model.special_tokens;
    return tokens.empty() || !tokenizer::Tokenizer::exists(folder) ? folder : with_special_tokens(folder, tokens);
}

tokenizer::Tokenizer load_run_tokenizer(const std::filesystem::path& folder, int64_t vocab_size) {
    if (!tokenizer::Tokenizer::exists(folder))
        throw formats::missing_in(folder, "tokenizer.json or tokenizer.model, which text needs",
                                  formats::Sought::tokenizer, folder.string());
    tokenizer::Tokenizer loaded = tokenizer::Tokenizer::load(folder);
    if (vocab_size > 0 && loaded.vocab_size() > vocab_size)
        throw Error("tokenizer.vocabulary-size",
                    cat(folder.string(), ": the tokenizer has ids up to ", loaded.vocab_size() - 1,
                        ", the model's vocabulary ends at ", vocab_size - 1),
                    "Use the tokenizer that belongs to the checkpoint.");
    return loaded;
}

EncoderMaker run_encoder_maker(const std::filesystem::path& folder, int64_t vocab_size,
                               const config::DataOptions& data) {
    return [folder, vocab_size, name = data.template_name, kwargs = data.chat_template_kwargs](const std::string& own) {
        return make_row_encoder(load_run_tokenizer(folder, vocab_size), own.empty() ? name : own, kwargs);
    };
}

std::string run_encoder_fingerprint(const std::filesystem::path& folder, const config::DataOptions& data) {
    std::string all = encoder_fingerprint(folder, data.template_name, data.chat_template_kwargs);
    for (const config::DataSource& source : data.datasets)
        if (!source.template_name.empty())
            all += " " + encoder_fingerprint(folder, source.template_name, data.chat_template_kwargs);
    return all;
}

}  // namespace unsloth::data
