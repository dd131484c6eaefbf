#include "grammar/schema_references.h"

#include <algorithm>
#include <map>
#include <set>

#include "grammar/nodes.h"
#include "unsloth/core/error.h"

namespace unsloth::grammar {

void refuse_keyword(const std::string& key, const std::string& why) {
    throw Refused(cat("the schema's keyword '", key.substr(0, 100), "' ", why));
}

const Json& SchemaReferences::referred(const Json& ref) const {
    if (!ref.is_string()) refuse_keyword("$ref", "is no text");
    const auto& path = ref.get_ref<const std::string&>();
    if (path != "#" && !path.starts_with("#/"))
        refuse_keyword("$ref", "refers to another document; only '#/…' is supported");
    try {
        return root_.at(Json::json_pointer(path.substr(1)));
    } catch (const Json::exception&) {
        refuse_keyword("$ref", cat("refers to '", path.substr(0, 100), "', which is not there"));
    }
}

const Json& SchemaReferences::resolved(const Json& schema) const {
    const Json* here = &schema;
    for (int i = 0; i < deepest_schema && here->is_object() && here->contains("$ref"); ++i)
        here = &referred((*here)["$ref"]);
    return *here;
}

bool SchemaReferences::are_disjoint(const Json& all) const {
    std::set<std::string> types;
    std::map<std::string, std::set<std::string>> constants;  // by property
    std::map<std::string, std::size_t> named;
    bool types_differ = true;
    for (const Json& one : all) {
        const Json& schema = resolved(one);
        const auto type = schema.is_object() ? schema.find("type") : schema.end();
        std::string name =
            schema.is_object() && type != schema.end() && type->is_string() ? type->get<std::string>() : "";
        if (name == "integer") name = "number";
        types_differ = types_differ && !name.empty() && !schema.value("nullable", false) && types.insert(name).second;
        if (!schema.is_object() || !schema.contains("properties") || !schema["properties"].is_object()) continue;
        const Json required = schema.value("required", Json::array());
        for (const auto& [property, of] : schema["properties"].items()) {
            if (!of.is_object() || std::ranges::find(required, Json(property)) == required.end()) continue;
            Json values = of.contains("const") ? Json::array({of["const"]}) : of.value("enum", Json::array());
            if (!values.is_array() || values.empty()) continue;
            bool differ = true;
            for (const Json& value : values) differ = constants[property].insert(value.dump()).second && differ;
            if (differ) ++named[property];
        }
    }
    return types_differ ||
           std::any_of(named.begin(), named.end(), [&](const auto& property) { return property.second == all.size(); });
}

}  // namespace unsloth::grammar
