// A parsed template. Names are numbers into Program::names, so that looking one up compares integers.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

struct FilterEntry;
struct TestEntry;

enum class Operation {
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in,
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
    enum class Kind {
        constant,  // value
        name,      // id
        member,    // children[0].text, or a namespace's member as a target (id.text, no children)
        item,      // children[0][children[1]]
        slice,     // children[0][children[1]:children[2]:children[3]], any of the last three may be null
        call,      // children[0](arguments)
        filter,    // children[0]|text(arguments); children[0] is null in {% filter %} and {% set %} blocks
        test,      // children[0] is text(arguments)
        negate,
        plus,
        logical_not,  // of children[0]
        binary,       // children[0] operation children[1]
        compare,      // children[0] operations[0] children[1] operations[1] children[2] …
        logical_and,
        logical_or,   // children[0], children[1]
        conditional,  // children[0] if children[1] else children[2] (may be null)
        concatenate,
        list,
        tuple,  // all children
        dict,   // key, value, key, value …
    };
    Kind kind;
    int line;
    int height = 1;  ///< of the tree below
    int id = -1;
    Value value;
    std::string text;
    Operation operation{};
    std::vector<Operation> operations;
    std::vector<ExpressionPtr> children;
    // Arguments of calls, filters and tests.
    std::vector<ExpressionPtr> positional;
    std::vector<std::pair<std::string, ExpressionPtr>> named;
    ExpressionPtr more_positional, more_named;  ///< *expression and **expression
    const FilterEntry* filter = nullptr;        ///< null: unknown, an error only when it is reached
    const TestEntry* test = nullptr;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Parameter {
    int id;
    std::string name;
    ExpressionPtr otherwise;  ///< default, may be null
};

struct Statement {
    enum class Kind {
        data,          // text
        output,        // expressions
        assign,        // target = expressions[0]
        assign_block,  // target = body, through expressions[0] where there is one
        for_loop,      // target in expressions[0] if condition: body, else otherwise
        condition,     // branches in order, then otherwise
        macro,         // id, text, parameters, body
        call_block,    // expressions[0] is the call; parameters and body are the caller's
        filter_block,  // body through expressions[0]
        with,          // target (a tuple) = expressions, then body
        generation,    // body: what the assistant says
        block,         // body
        break_loop,
        continue_loop,
    };
    Kind kind;
    int line;
    int id = -1;
    std::string text;
    ExpressionPtr target, condition;
    std::vector<ExpressionPtr> expressions;
    std::vector<Parameter> parameters;
    Body body, otherwise;
    std::vector<std::pair<ExpressionPtr, Body>> branches;
    bool recursive = false;
    bool uses_caller = false, uses_kwargs = false, uses_varargs = false;  ///< of a macro's body
};

struct Program {
    std::vector<std::string> names;
    Body body;
    bool has_generation = false;
    int id_of(std::string_view name) const {
        for (std::size_t i = 0; i < names.size(); ++i) {
            if (names[i] == name) return static_cast<int>(i);
        }
        return -1;
    }
};

}  // namespace unsloth::tokenizer::jinja
