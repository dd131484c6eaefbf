// What serve takes.
#include "app/commands/declarations.h"
#include "unsloth/config/option_table.h"

namespace unsloth::app {

void declare_serve(OptionSet& options, CommandLine& line) {
    ServeRequest& serve = line.serve;
    declare_adapters(options, line.generate.adapters,
                     "Adapters, each a model of its name for clients. May be given several times.");
    options
        .add("adapter_root", serve.adapter_root,
             "Folder below which clients may load adapters (/v1/load_lora_adapter). Empty: they may load none.")
        .path("DIR");
    options
        .add("watch", serve.watch,
             "Output folder of a run. Its newest checkpoint answers under the folder's name, and later ones follow.")
        .path("RUN");
    options
        .add("max_loras", serve.max_loras,
             "Adapters that are loaded at a time. 0: those of --adapter, and two more if others can come.")
        .at_least(0)
        .at_most(256);
    options
        .add("max_lora_rank", serve.max_lora_rank,
             "Largest rank of an adapter that is loaded later. 0: that of the adapters given, at least 16.")
        .at_least(0)
        .at_most(512);
    options.add("served_model_name", serve.served_model_name, "Name of the base model for clients. Empty: model.path.")
        .value("NAME");
    options.add("host", serve.host, "Address to listen on. 0.0.0.0 or ::: all of the machine's.").value("ADDRESS");
    options.add("port", serve.port, "Port to listen on. 0: any free one.").at_least(0).at_most(65535);
    options
        .add("grpc_port", serve.grpc_port,
             "Another port, for clients of gRPC. 0: none; --port answers gRPC in any case.")
        .at_least(0)
        .at_most(65535);
    options
        .add(
            "api_key_file", serve.api_key_file,
            "File of API keys, one per line. Clients send one as 'Authorization: Bearer KEY'. Empty: no key is needed.")
        .path("FILE");
    options.add("tls_cert", serve.tls_cert, "Certificate chain (PEM) for HTTPS.").path("FILE");
    options.add("tls_key", serve.tls_key, "Private key (PEM) of --tls_cert.").path("FILE");
    declare_batches(options, line.generate, "0: the model's maximum.");
    options
        .add("max_queue", serve.max_queue,
             "Sequences that may wait for a row. Requests beyond them get status 429 and can be repeated.")
        .at_least(1);
    options
        .add("drain_delay", serve.drain_delay,
             "Seconds after SIGTERM in which requests are still accepted. /ready answers 503 from the signal on.")
        .at_least(0);
    options
        .add("shutdown_timeout", serve.shutdown_timeout,
             "Seconds after SIGTERM and --drain_delay in which running answers may end. Then they are cut.")
        .at_least(0);
    options.add("accept_unknown_fields", serve.accept_unknown_fields,
                "Ignore unknown fields of requests. Otherwise they are errors.");
}

}  // namespace unsloth::app
