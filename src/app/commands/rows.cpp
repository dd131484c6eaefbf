// What data, data augment and tokenize take.
#include "app/commands/declarations.h"

namespace unsloth::app {

void declare_data_command(OptionSet& options, CommandLine& line) {
    options
        .add("n", line.data.n,
             "Training rows to show; of the evaluation rows one, of those with all labels masked as many.")
        .at_least(0);
    options.add("json", line.data.json, "Print the findings as JSON.");
    options
        .add_choice("color", line.data.color,
                    {{"auto", ColorChoice::automatic}, {"always", ColorChoice::always}, {"never", ColorChoice::never}},
                    "Trained tokens by colour; never: between the brackets U+27E6 and U+27E7. auto: by colour on a "
                    "terminal, unless NO_COLOR is set or TERM is dumb.")
        .suggested_for({"colour"});
}

void declare_augment(OptionSet& options, CommandLine& line) {
    data::AugmentRequest& augment = line.augment;
    options.add("in", augment.in, "Rows to augment: a file, folder or glob; empty: data.train_file.")
        .path("FILE")
        .suggested_for({"input"});
    options.add("out", augment.out, "JSON Lines file to write: the rows, each followed by its copies.")
        .output("FILE")
        .must_be_given();
    options
        .add("eval_out", augment.eval_out,
             "JSON Lines file for the rows that data.val_size holds out, for data.eval_file. They get no copies.")
        .output("FILE");
    declare_force(options, line);
    options
        .add("thesaurus", augment.thesaurus,
             "Synonyms for copies: a JSON object {\"word\": [\"synonym\", …]}, or JSON Lines of {\"word\", "
             "\"synonyms\"}.")
        .path("FILE");
    options.add("synonym_rate", augment.synonym_rate, "Share of the words with synonyms that become one.")
        .at_least(0)
        .at_most(1);
    options
        .add("swap_rate", augment.swap_rate,
             "Copies in which this share of the words changes places with another one of the line; 0: none.")
        .at_least(0)
        .at_most(1);
    options.add("delete_rate", augment.delete_rate, "Copies without this share of the words; 0: none.")
        .at_least(0)
        .at_most(1);
    options.add("copies", augment.copies, "Copies of a row by each of these three ways.").at_least(1).at_most(1000);
    options
        .add("back_translations", augment.back_translations,
             "Rows {id, …} whose texts make one more copy each of the row with that id: a file, folder or glob.")
        .path("FILE");
    options
        .add("id_column", augment.id_column,
             "Column that names a row; where rows have none, they go by their number, from 0.")
        .value("NAME");
    options
        .add("fields", augment.fields,
             "Whose texts change: columns of alpaca, prompt_completion and text rows, roles of conversations. Empty: "
             "instruction and input; "
             "prompt; user.")
        .value("LIST");
}

void declare_tokenize(OptionSet& options, CommandLine& line) {
    options.add("tokenizer", line.tokenize.tokenizer, "Folder that holds tokenizer.json or tokenizer.model.")
        .path("DIR")
        .alias("model", "path")
        .must_be_given();
    options.add("template", line.tokenize.chat_template, "Chat template for rows of messages, as data.template.")
        .alias("data", "template")
        .value("NAME");
    options
        .add_object("chat_template_kwargs", line.tokenize.chat_template_kwargs,
                    "Variables of the chat template, as data.chat_template_kwargs.")
        .alias("data", "chat_template_kwargs");
    options.add("decode", line.tokenize.decode, "Turn ids into text; rows are {\"ids\"}.");
    options.add("no_special", line.tokenize.no_special,
                "Add no special tokens to a text; leave them out when decoding.");
    options
        .add(
            "measure", line.tokenize.measure,
            "Benchmark: encode the {\"text\"} rows this many times and print the seconds of each round instead of ids.")
        .at_least(0);
}

}  // namespace unsloth::app
