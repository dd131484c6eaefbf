#include "import/template_names.h"

#include <regex>

namespace unsloth::import {
namespace {

constexpr const char* any = "";  // model
constexpr const char* own = "";  // template

// Turns of axolotl's templates of these names.
constexpr const char* phi_3 =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + "
    "message['content'] + '<|end|>\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + "
    "'<|end|>\\n<|assistant|>\\n' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + '<|end|>\\n' }}"
    "{% endif %}{% endfor %}";
constexpr const char* phi_35 =
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{ '<|system|>\\n' + "
    "message['content'] + '<|end|>\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + "
    "'<|end|>\\n' }}{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\\n' + message['content'] + "
    "'<|end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

/// The turns of axolotl's qwen3, for texts. Labels omit the empty thought of a last answer, as they do there.
constexpr const char* qwen3 = R"({%- set ns = namespace(last=messages|length - 1, found=false) -%}
{%- for m in messages[::-1] -%}
  {%- if not ns.found and m.role == 'user' -%}
    {%- set ns.found = true -%}
    {%- set ns.last = messages|length - 1 - loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
  {%- if tools or m.tool_calls or m.role == 'tool' -%}
    {{- raise_exception('this template has no form for tools: name the model\'s own with data.template default') -}}
  {%- endif -%}
  {%- set content = m.content or '' -%}
  {%- if m.role != 'assistant' -%}
    {{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' -}}
  {%- else -%}
    {%- set thought = m.reasoning_content or '' -%}
    {%- if m.reasoning_content is not string and '</think>' in content -%}
      {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].strip('\n') -%}
      {%- set content = content.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.index0 > ns.last and thought -%}
      {{- '<think>' -}}
      {%- generation -%}
        {{- '\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') + '<|im_end|>' -}}
      {%- endgeneration -%}
    {%- elif loop.index0 > ns.last and loop.last -%}
      {{- '<think>\n\n</think>\n\n' -}}
      {%- generation -%}{{- content.lstrip('\n') + '<|im_end|>' -}}{%- endgeneration -%}
    {%- else -%}
      {%- generation -%}{{- content + '<|im_end|>' -}}{%- endgeneration -%}
    {%- endif -%}
    {{- '\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})";

struct Row {
    const char *program, *name, *models, *ours, *note;
};

/// The first row that fits holds. A model's own template is named only where it writes the same turns.
constexpr Row table[] = {
    {"axolotl", "chatml", any, "chatml", ""},
    {"axolotl", "llama3", any, "llama-3", ""},
    {"axolotl", "alpaca", any, "alpaca", ""},
    {"axolotl", "gemma3", "gemma-?3-[0-9.]+(b|m)-it", own, ""},
    {"axolotl", "qwen_25", "qwen2\\.5-[0-9.]+b-instruct", own, ""},
    {"axolotl", "qwen_25", any, "qwen", "is taken as qwen, which writes the same turns, and no lists of tools"},
    {"axolotl", "qwen3", any, qwen3,
     "is written out: the empty thought in front of a last answer has no labels, as there. It has no tools"},
    {"axolotl", "qwen2_vl", "qwen2\\.5-vl-[0-9.]+b-instruct", own, ""},
    {"axolotl", "llama3_2_vision", "llama-3\\.2-[0-9.]+b-vision-instruct", own, ""},
    {"axolotl", "phi_3", any, phi_3, "is written out: the prompt of an answer is at the end of the user's turn"},
    {"axolotl", "phi_35", any, phi_35, "is written out"},

    {"llamafactory", "llama3", any, "llama-3", ""},
    {"llamafactory", "llama2", any, "llama-2", ""},
    {"llamafactory", "mistral", any, "mistral", ""},
    {"llamafactory", "chatml", any, "chatml", ""},
    {"llamafactory", "alpaca", any, "alpaca", ""},
    {"llamafactory", "zephyr", any, "zephyr", ""},
    {"llamafactory", "qwen", any, "qwen", ""},
    {"llamafactory", "qwen2_vl", "qwen2\\.5-vl-[0-9.]+b-instruct", own, ""},
    {"llamafactory", "qwen3_vl_nothink", "qwen3-vl-[0-9.]+b-instruct", own, ""},
    {"llamafactory", "qwen3_nothink", "qwen3-.*instruct-2507", own, ""},
    {"llamafactory", "qwen3_nothink", any, "chatml", "is taken as chatml, with the same turns, and no lists of tools"},
    {"llamafactory", "gemma3", "gemma-?3-[0-9.]+(b|m)-it", own, ""},

    {"swift", "llama3", any, "llama-3", ""},
    {"swift", "llama", any, "llama-2", ""},
    {"swift", "chatml", any, "chatml", ""},
    {"swift", "zephyr", any, "zephyr", ""},
    {"swift", "qwen", any, "qwen", ""},
    {"swift", "qwen2_5", any, "qwen", ""},
};

bool fits(const Row& row, const std::string& model) {
    return *row.models == '\0' || std::regex_search(model, std::regex(row.models, std::regex::icase));
}

}  // namespace

std::optional<ImportedTemplate> find_template(const std::string& program, const std::string& name,
                                              const std::string& model) {
    for (const Row& row : table) {
        if (program != row.program || name != row.name || !fits(row, model)) continue;
        if (*row.ours == '\0') return ImportedTemplate{"", name + " is this model's own template"};
        return ImportedTemplate{row.ours, *row.note == '\0' ? "" : name + " " + row.note};
    }
    return std::nullopt;
}

}  // namespace unsloth::import
