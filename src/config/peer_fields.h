// Fields of transformers' TrainingArguments, TRL's SFTConfig, PEFT's LoraConfig and from_pretrained() that are no
// options here: which are taken without effect, which mean an option, and which are refused, with the reason.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/json.h"

namespace unsloth::config {

struct PeerField {
    std::string section, key;  ///< where it stands in our files; it is known in every section
    std::string note;          ///< told when it is taken without effect; empty: nothing
    bool takes_any = false;    ///< every value is taken without effect
    std::vector<Json> taken;   ///< or these are: what the program does anyway
    std::string option;        ///< full name of the option that it means
    /// {value, the option's}; empty with an `option`: all others, as they are.
    std::vector<std::pair<Json, Json>> meanings;
    std::string refusal;  ///< why other values are refused, and what to do instead
};

const std::vector<PeerField>& peer_fields();

/// By its key, or a section's name, a dot and its key; nullptr when there is none.
const PeerField* find_peer_field(const std::string& name);

/// The option's full name and value that this value of the field stands for; nothing when it has no effect. What is to
/// be told is appended to `notes`. Usage Error with `origin` for a refused one.
std::optional<std::pair<std::string, Json>> meaning_of(const PeerField& field, const Json& value,
                                                       const std::string& origin, std::vector<std::string>& notes);

/// What becomes of the field, in words for docs/options.md and the schema.
std::string describe(const PeerField& field);

}  // namespace unsloth::config
