// A configuration file as a tree of values: JSON (with comments), or YAML.
#pragma once

#include <filesystem>
#include <string>

#include "unsloth/config/json.h"
#include "unsloth/core/error.h"

namespace unsloth::config {

/// By its name's ending YAML (.yaml, .yml), else JSON with // and /* */ comments. Usage Error, with the place, for a
/// file that cannot be read, is malformed, nests deeper than 64 levels or has a key twice in one object.
Json read_tree(const std::filesystem::path& path);

/// YAML 1.2 with what PyYAML's users write besides: yes, no, on and off are booleans, << merges. An empty document is
/// null. `file` names it in messages. Usage Error also for several documents, tags of other languages' objects and keys
/// that are no scalars.
Json parse_yaml(const std::string& content, const std::string& file);

/// A usage Error with file, line and column of that byte, and the line itself.
Error malformed(const std::string& file, const std::string& content, std::size_t at, const std::string& what);

/// Whether the name ends as YAML files' names do.
bool is_yaml(const std::filesystem::path& path);

}  // namespace unsloth::config
