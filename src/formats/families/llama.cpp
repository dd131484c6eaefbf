#include "formats/families/family.h"

namespace unsloth::formats {

constinit const Family llama_family = {.model_type = "llama",
                                       .class_name = "LlamaForCausalLM",
                                       .gguf = gguf_llama,
                                       .kv_heads_default = true,
                                       .attention_bias_key = true,
                                       .mlp_bias_key = true};

}  // namespace unsloth::formats
