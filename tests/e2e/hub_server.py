"""A server on this machine that speaks the Hugging Face hub's API: what of it huggingface_hub and this program use. Standard library only.

Large files (*.safetensors, *.parquet) are redirected to a second server, as the hub redirects to its storage.
"""

import collections
import hashlib
import http.server
import json
import threading
import urllib.parse

Request = collections.namedtuple("Request", "method server path authorization start status")


class Repository:
    def __init__(self, files, token=None, gated=False):
        self.files = {name: data if isinstance(data, bytes) else data.encode() for name, data in files.items()}
        self.token, self.gated = token, gated
        self.commit = hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def is_large(self, name):
        return name.endswith((".safetensors", ".parquet", ".arrow"))

    def hash(self, name):
        """The name of its blob."""
        data = self.files[name]
        if self.is_large(name):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def tree(self):
        for name, data in sorted(self.files.items()):
            entry = {"type": "file", "path": name, "size": len(data), "oid": self.hash(name)}
            if self.is_large(name):
                entry["oid"] = hashlib.sha1(name.encode()).hexdigest()
                entry["lfs"] = {"oid": self.hash(name), "size": len(data), "pointerSize": 134}
            yield entry
        for folder in sorted({name.rsplit("/", 1)[0] for name in self.files if "/" in name}):
            yield {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}


class Hub:
    """`with Hub({"org/name": Repository(...), "datasets/org/name": ...}) as hub:`; hub.url is HF_ENDPOINT.

    `hub.faults[name]` is a list of what happens to the next requests for a file (or "revision", "tree"): a number (the connection is cut
    after so many bytes of the body), ("status", code, headers), ("data", bytes), "no range" or None (nothing happens).
    """

    def __init__(self, repositories, page=2):
        self.repositories, self.page = repositories, page
        self.requests, self.faults = [], collections.defaultdict(list)
        self.lock = threading.Lock()
        self.at_once, self.most_at_once = 0, 0

    def __enter__(self):
        self.servers = [
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(self, name)) for name in ("hub", "storage")
        ]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url, self.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers)
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()
        self.servers = []

    def fault(self, name):
        with self.lock:
            return self.faults[name].pop(0) if self.faults[name] else None

    def downloads(self):
        """Files whose bytes were sent."""
        return [
            r
            for r in self.requests
            if r.method == "GET" and ("/resolve/" in r.path or r.server == "storage") and r.status < 300
        ]


def handler(hub, server_name):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            with hub.lock:
                hub.at_once += 1
                hub.most_at_once = max(hub.most_at_once, hub.at_once)
            try:
                self.answer()
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                with hub.lock:
                    hub.at_once -= 1

        def send(self, status, body=b"", headers=(), cut=None):
            start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
            hub.requests.append(
                Request(self.command, server_name, self.path, self.headers.get("Authorization"), start, status)
            )
            self.send_response(status)
            for key, value in dict(headers).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.close_connection = True

        def refuse(self, status, code, message):
            self.send(status, b'{"error": "no"}', {"X-Error-Code": code, "X-Error-Message": message})

        def answer(self):
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            if server_name == "storage":
                _, name, hash_ = path.split("/", 2)
                return self.file(urllib.parse.unquote(name).replace("|", "/"), hash_)
            api = path.startswith("/api/")
            parts = path[
                len("/api/models/") if path.startswith("/api/models/") else len("/api/") if api else 1 :
            ].split("/")
            words = 3 if parts[0] == "datasets" else 2
            name, rest = "/".join(parts[:words]), parts[words:]
            repository = hub.repositories.get(name)
            token = self.headers.get("Authorization")
            if token == "Bearer wrong":
                return self.refuse(401, "", "Invalid credentials in Authorization header")
            if repository is None or (
                repository.token and token != f"Bearer {repository.token}" and not repository.gated
            ):
                return self.refuse(401, "RepoNotFound", "Repository not found")
            if rest[0] == "resolve" and repository.gated and token != f"Bearer {repository.token}":
                return self.refuse(403, "GatedRepo", "Access to this repository is restricted")
            if rest[0] in ("revision", "tree", "resolve") and rest[1] not in ("main", repository.commit):
                return self.refuse(404, "RevisionNotFound", "Invalid rev id")
            if api:
                return self.api(name, repository, rest, query)
            return self.resolve(repository, "/".join(rest[2:]))

        def api(self, name, repository, rest, query):
            fault = hub.fault(rest[0])
            if fault and fault[0] == "status":
                return self.send(fault[1], b"", fault[2])
            if fault and fault[0] == "data":
                return self.send(200, fault[1])
            headers = {"Content-Type": "application/json"}
            if rest[0] == "revision":
                files = [{"rfilename": path} for path in repository.files]
                about = {"_id": "1", "id": name.removeprefix("datasets/"), "sha": repository.commit, "siblings": files}
                return self.send(200, json.dumps(about).encode(), headers)
            entries, begin = list(repository.tree()), int(query.get("cursor", ["0"])[0])
            if begin + hub.page < len(entries):
                headers["Link"] = (
                    f'<{hub.url}{self.path.split("?")[0]}?recursive=true&cursor={begin + hub.page}>; rel="next"'
                )
            self.send(200, json.dumps(entries[begin : begin + hub.page]).encode(), headers)

        def resolve(self, repository, name):
            if name not in repository.files:
                return self.refuse(404, "EntryNotFound", "Entry not found")
            if not repository.is_large(name):
                return self.file(name, repository.hash(name), repository)
            place = f"{hub.storage}/{urllib.parse.quote(name.replace('/', '|'), safe='')}/{repository.hash(name)}"
            headers = {"Location": place, "X-Linked-Size": len(repository.files[name])}
            self.send(302, b"", headers | self.about(repository, name, "X-Linked-Etag"))

        def about(self, repository, name, etag):
            return {"X-Repo-Commit": repository.commit, etag: f'"{repository.hash(name)}"'}

        def file(self, name, hash_, repository=None):
            repository = repository or next(
                r for r in hub.repositories.values() if name in r.files and r.hash(name) == hash_
            )
            data, fault = repository.files[name], hub.fault(name) if self.command == "GET" else None
            headers = self.about(repository, name, "ETag")
            if isinstance(fault, tuple) and fault[0] == "status":
                return self.send(fault[1], b"later", fault[2])
            if isinstance(fault, tuple) and fault[0] == "data":
                data = fault[1]
            start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
            if start and fault != "no range":
                if start >= len(data):
                    return self.send(416)
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                return self.send(206, data[start:], headers, fault if isinstance(fault, int) else None)
            self.send(200, data, headers, fault if isinstance(fault, int) else None)

    return Handler
