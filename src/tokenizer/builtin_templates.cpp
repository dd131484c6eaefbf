#include "tokenizer/builtin_templates.h"

#include <algorithm>
#include <array>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

/// Each template begins with this: contents as text, whatever their form, and a refusal of what has no form
/// here.
constexpr std::string_view content_macro = R"({%- macro text(message) -%}
  {%- if message.tool_calls %}
    {{- raise_exception('built-in chat templates have no form for tool calls: use a template of the model, or a .jinja file') }}
  {%- endif -%}
  {%- if message.content is string -%}
    {{- message.content }}
  {%- elif message.content -%}
    {%- for part in message.content -%}
      {%- if part.type != 'text' %}
        {{- raise_exception('built-in chat templates have no form for content of type %s' % part.type) }}
      {%- endif -%}
      {{- part.text -}}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
)";

constexpr std::string_view llama3 = R"({{- '<|begin_of_text|>' }}
{%- for message in messages %}
  {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ text(message) | trim }}{{ '<|eot_id|>' }}{% endgeneration %}
  {%- else %}
    {{- text(message) | trim + '<|eot_id|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
)";

constexpr std::string_view chatml = R"({%- for message in messages %}
  {{- '<|im_start|>' + message.role + '\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ text(message) }}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
  {%- else %}
    {{- text(message) + '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
)";

/// In front of ChatML: Qwen has a system turn in every conversation.
constexpr std::string_view qwen_system = R"({%- if messages[0].role != 'system' %}
  {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
)";

constexpr std::string_view zephyr = R"({%- for message in messages %}
  {%- if message.role not in ['system', 'user', 'assistant'] %}
    {{- raise_exception("the chat template zephyr knows the roles system, user and assistant, not '%s'" % message.role) }}
  {%- endif %}
  {{- '<|' + message.role + '|>\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ text(message) }}{{ eos_token }}{% endgeneration %}{{ '\n' }}
  {%- else %}
    {{- text(message) + eos_token + '\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}
)";

// Llama 2 and Mistral have no turn for the system message: it goes into the first user's.
constexpr std::string_view llama2 = R"({%- set ns = namespace(system='', turns=0) %}
{%- for message in messages %}
  {%- if message.role == 'system' and loop.first %}
    {%- set ns.system = '<<SYS>>\n' + text(message) | trim + '\n<</SYS>>\n\n' %}
  {%- elif message.role != ['user', 'assistant'][ns.turns % 2] %}
    {{- raise_exception("the chat template llama-2 needs user and assistant in turn, behind at most one system message; found '%s'" % message.role) }}
  {%- else %}
    {%- if message.role == 'user' %}
      {{- bos_token + '[INST] ' + (ns.system if ns.turns == 0 else '') + text(message) | trim + ' [/INST]' }}
    {%- else %}
      {%- generation %}{{ ' ' + text(message) | trim + ' ' + eos_token }}{% endgeneration %}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
  {%- endif %}
{%- endfor %}
)";

constexpr std::string_view mistral = R"({{- bos_token }}
{%- set ns = namespace(system='', turns=0) %}
{%- for message in messages %}
  {%- if message.role == 'system' and loop.first %}
    {%- set ns.system = text(message) + '\n\n' %}
  {%- elif message.role != ['user', 'assistant'][ns.turns % 2] %}
    {{- raise_exception("the chat template mistral needs user and assistant in turn, behind at most one system message; found '%s'" % message.role) }}
  {%- else %}
    {%- if message.role == 'user' %}
      {{- '[INST] ' + (ns.system if ns.turns == 0 else '') + text(message) + ' [/INST]' }}
    {%- else %}
      {%- generation %}{{ ' ' + text(message) | trim + eos_token }}{% endgeneration %}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
  {%- endif %}
{%- endfor %}
)";

// Turns after the first follow after an empty line, without the sentence in front.
constexpr std::string_view alpaca = R"({{- sequence_start }}
{%- if messages[0].role == 'system' %}
  {{- text(messages[0]) or alpaca_preamble }}
  {%- set messages = messages[1:] %}
{%- else %}
  {{- alpaca_preamble }}
{%- endif %}
{%- for message in messages %}
  {{- '\n\n' }}
  {%- if message.role == 'user' %}
    {{- '### Instruction:\n' + text(message) }}
  {%- elif message.role == 'assistant' %}
    {{- '### Response:\n' }}
    {%- generation %}{{ text(message) }}{{ eos_token }}{% endgeneration %}
  {%- else %}
    {{- raise_exception("the chat template alpaca knows the roles user and assistant, and system for the first message, not '%s'" % message.role) }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '\n\n### Response:\n' }}{% endif %}
)";

constexpr std::string_view llama3_tokens[] = {"<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"};
constexpr std::string_view chatml_tokens[] = {"<|im_start|>", "<|im_end|>"};

constexpr std::array<BuiltinTemplate, 7> table = {{
    {"llama-3", {}, llama3, llama3_tokens},
    {"llama-2", {}, llama2, {}, true, true},
    {"mistral", {}, mistral, {}, true, true},
    {"chatml", {}, chatml, chatml_tokens},
    {"qwen", qwen_system, chatml, chatml_tokens},
    {"alpaca", {}, alpaca, {}, true},
    {"zephyr", {}, zephyr, {}, true},
}};

}  // namespace

std::string BuiltinTemplate::source() const {
    return cat(content_macro, front, body);
}

std::span<const BuiltinTemplate> builtin_template_table() {
    return table;
}

const BuiltinTemplate* find_builtin_template(std::string_view name) {
    const auto found = std::ranges::find(table, name, &BuiltinTemplate::name);
    return found == table.end() ? nullptr : &*found;
}

}  // namespace unsloth::tokenizer
