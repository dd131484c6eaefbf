// Fields of transformers' TrainingArguments, TRL's SFTConfig, PEFT's LoraConfig and from_pretrained() that are no
// options here: which are taken without effect, which mean an option, and which are refused, with the reason.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/json.h"

namespace unsloth::config {

struct PeerField {
    std::string section, key;  ///< its place in our files; it is known in every section
    std::string note;          ///< shown when it is taken without effect; empty: nothing
    bool takes_any = false;    ///< every value is taken without effect
    std::vector<Json> taken;   ///< or these are: what the program does anyway
    std::string option;        ///< full name of the option that it means
    /// {value, the option's}; empty with an `option`: all others, as they are.
    std::vector<std::pair<Json, Json>> meanings;
    std::string refusal;  ///< why other values are refused, and what to do instead

    /// A value that means another option.
    struct Elsewhere {
        Json value;
        std::string option;
        Json meant;
    };
    std::vector<Elsewhere> elsewhere;
    bool aside = false;  ///< what is refused does not change what is learned
};

const std::vector<PeerField>& peer_fields();

/// By its key, or a section's name, a dot and its key; nullptr when there is none.
const PeerField* find_peer_field(const std::string& name);

/// What becomes of a value of a field.
struct Taken {
    std::optional<std::pair<std::string, Json>> meaning;  ///< the option's full name and value; nothing: no effect
    std::string note;                                     ///< to be shown after the field's name; empty: nothing
    std::string refusal;                                  ///< why it is refused; empty: it is not
};
Taken take(const PeerField& field, const Json& value);

/// The option's full name and value that this value of the field means; nothing when it has no effect. Notes for the
/// user are appended to `notes`. Usage Error with `origin` for a refused one.
std::optional<std::pair<std::string, Json>> meaning_of(const PeerField& field, const Json& value,
                                                       const std::string& origin, std::vector<std::string>& notes);

/// The rows of such a table.
class PeerRows {
  public:
    /// Of the rows that follow.
    PeerRows& section(const char* name) { return section_ = name, *this; }
    /// Fields that change nothing here, whatever they say.
    PeerRows& any(const std::vector<const char*>& keys, const char* note);
    /// Fields that have no effect with these values, which are what the program does; `note` is shown for them.
    PeerRows& only(const std::vector<const char*>& keys, const std::vector<Json>& values, const char* refusal,
                   const char* note = "");
    /// A field that means an option. `taken`: values without effect.
    PeerRows& means(const char* key, const char* option, const std::vector<std::pair<Json, Json>>& meanings,
                    const std::vector<Json>& taken, const char* refusal = "", const char* note = "");

    /// The same, for fields that do not change what is learned.
    PeerRows& aside(const std::vector<const char*>& keys, const char* refusal, const std::vector<Json>& values = off);
    /// A value of the latest field that means another option.
    PeerRows& or_means(const char* value, const char* option, Json meant);

    std::vector<PeerField> take() { return std::move(fields_); }

    /// Why other programs' sharding is refused, and where its equivalents are.
    static constexpr const char* ranks_share =
        "distributed.zero_stage, offload_optimizer and tp_size say what ranks share; "
        "docs/how-to/migrate/fsdp-and-deepspeed.md has the equivalents";

    /// The values that ask for nothing.
    static const std::vector<Json> off;

  private:
    std::string section_;
    std::vector<PeerField> fields_;
};

/// A value as messages show it.
std::string shown(const Json& value);

/// What becomes of the field, in words for docs/reference/options/peers.md and the schema.
std::string describe(const PeerField& field);

}  // namespace unsloth::config
