"""What `plan` says, as JSON."""

import json

from support import EndToEnd

HOST = ["--max_memory", '{"cpu": "200GiB"}']


class Planning(EndToEnd):
    def plan(self, *arguments):
        return json.loads(self.succeed("plan", *arguments, "--json").out)
