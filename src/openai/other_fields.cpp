// The fields of the routes that answer no prompt.
#include "openai/field_table.h"
#include "openai/messages.h"

namespace unsloth::openai {
namespace {

struct Tokenizing : TokenizeRequest {};

void read_messages_to_count(Tokenizing& to, const Json& value, const std::string& name, const ParseOptions& options) {
    to.row = std::make_shared<Json>(Json{{"messages", read_messages(value, name, options)}});
}

const Field<Tokenizing> tokenize_fields[] = {
    {"model", Text<Tokenizing>{&Tokenizing::model}},
    {"prompt", Text<Tokenizing>{&Tokenizing::prompt}},
    {"messages", Other<Tokenizing>{read_messages_to_count, messages_schema}},
    {"add_special_tokens", Flag<Tokenizing>{&Tokenizing::add_special_tokens}},
    {"return_token_strs", Flag<Tokenizing>{&Tokenizing::return_token_strs}},
    {"add_generation_prompt", Flag<Tokenizing>{&Tokenizing::add_generation_prompt}},
    {"continue_final_message", Flag<Tokenizing>{&Tokenizing::continue_final_message}},
};

void read_tokens(DetokenizeRequest& to, const Json& value, const std::string& name, const ParseOptions& options) {
    to.tokens = ids_of(value, name, options.vocab_size);
}
const Field<DetokenizeRequest> detokenize_fields[] = {
    {"model", Text<DetokenizeRequest>{&DetokenizeRequest::model}},
    {"tokens", Other<DetokenizeRequest>{read_tokens, ids_schema}, /*required=*/true},
};

using Adapter = AdapterRequest;
const Field<Adapter> adapter_name_field[] = {{"lora_name", Text<Adapter>{&Adapter::name}, /*required=*/true}};
const Field<Adapter> load_fields[] = {
    {"lora_path", Text<Adapter>{&Adapter::path}, /*required=*/true},
    {"load_inplace", Flag<Adapter>{&Adapter::load_inplace}},
};
const Field<Adapter> unload_fields[] = {{"lora_int_id", NoEffect{}}};

}  // namespace

Json tokenize_schema() {
    return object_schema<Tokenizing>({tokenize_fields});
}
Json detokenize_schema() {
    return object_schema<DetokenizeRequest>({detokenize_fields});
}
Json load_adapter_schema() {
    return object_schema<Adapter>({adapter_name_field, load_fields});
}
Json unload_adapter_schema() {
    return object_schema<Adapter>({adapter_name_field, unload_fields});
}

TokenizeRequest parse_tokenize(std::string_view body, const ParseOptions& options) {
    Tokenizing request;
    const Json object = parse_body(body);
    read_fields<Tokenizing>(object, {tokenize_fields}, options, request);
    if (request.row == nullptr && !object.contains("prompt"))
        throw ApiError(400, "Missing required parameter: 'prompt' or 'messages'.", "prompt",
                       "missing_required_parameter");
    if (request.row) finish_row(*request.row, request.add_generation_prompt, request.continue_final_message);
    return request;
}

DetokenizeRequest parse_detokenize(std::string_view body, const ParseOptions& options) {
    DetokenizeRequest request;
    read_fields<DetokenizeRequest>(parse_body(body), {detokenize_fields}, options, request);
    return request;
}

AdapterRequest parse_load_adapter(std::string_view body, const ParseOptions& options) {
    Adapter request;
    read_fields<Adapter>(parse_body(body), {adapter_name_field, load_fields}, options, request);
    if (request.name.empty()) throw invalid("'lora_name' is empty.", "lora_name");
    if (request.path.empty()) throw invalid("'lora_path' is empty.", "lora_path");
    return request;
}

AdapterRequest parse_unload_adapter(std::string_view body, const ParseOptions& options) {
    Adapter request;
    read_fields<Adapter>(parse_body(body), {adapter_name_field, unload_fields}, options, request);
    return request;
}

}  // namespace unsloth::openai
