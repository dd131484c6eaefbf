// What a JSON schema's "$ref" names.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace unsloth::grammar {

using Json = nlohmann::ordered_json;

constexpr int deepest_schema = 100;

[[noreturn]] void refuse_keyword(const std::string& key, const std::string& why = "is not supported");

/// The references of one document, `root`, which must live longer.
class SchemaReferences {
  public:
    explicit SchemaReferences(const Json& root) : root_(root) {}

    /// The schema that the value of "$ref" names. Throws Refused.
    const Json& referred(const Json& ref) const;
    /// Whether no value fits two of the schemas, as can be seen from types or from constants that are required.
    bool are_disjoint(const Json& all) const;

  private:
    const Json& resolved(const Json& schema) const;

    const Json& root_;
};

}  // namespace unsloth::grammar
