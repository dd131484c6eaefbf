#include <filesystem>
#include <iostream>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/folder_contents.h"
#include "unsloth/tokenizer/tokenize_command.h"

namespace unsloth::app {

void run_tokenize(const CommandLine& line) {
    const TokenizeRequest& request = line.tokenize;
    tokenizer::TokenizeOptions options;
    options.chat_template = request.chat_template;
    options.chat_template_kwargs = request.chat_template_kwargs;
    options.decode = request.decode;
    options.no_special = request.no_special;
    std::ios::sync_with_stdio(false);
    const std::filesystem::path place =
        formats::resolve_model_path(request.tokenizer, formats::ModelFiles::all_but_weights);
    const auto has = [&](const char* name) { return std::filesystem::exists(place / name); };  // of whatever kind
    if (std::filesystem::is_directory(place) && !has("tokenizer.json") && !has("tokenizer.model"))
        throw formats::missing_in(place, "tokenizer.json or tokenizer.model", formats::Sought::tokenizer,
                                  request.tokenizer);
    if (std::filesystem::is_regular_file(place) && place.extension() != ".json")
        throw Error("tokenizer.not-found", cat(place.string(), ": is no tokenizer.json"),
                    "--tokenizer is a model's folder, or its tokenizer.json.");
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(place);
    if (request.measure > 0) {
        tokenizer::measure_encoding(tokenizer, !options.no_special, static_cast<int>(request.measure), std::cin,
                                    std::cout);
    } else {
        tokenizer::tokenize_stream(tokenizer, options, std::cin, std::cout);
    }
}

}  // namespace unsloth::app
