"""A server on this machine that speaks the Hugging Face hub's API: what of it huggingface_hub and this program use. Standard library only.

Large files (*.safetensors, *.parquet) are redirected to a second server, as the hub redirects to its storage.
"""

import base64
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

    Uploads: `accounts` has {token: answer of whoami}. Large files that storage has are in `objects`, by SHA-256; one above `part` bytes
    is taken in parts. The faults of "whoami-v2", "create", "preupload", "batch", "put", "complete" and "commit" are of requests there;
    a number is of bytes of the request that are read before the connection is cut.
    """

    def __init__(self, repositories, page=2, accounts=None, part=1 << 30):
        self.repositories, self.page = repositories, page
        self.accounts, self.part = accounts or {}, part
        self.objects, self.parts, self.commits, self.created = {}, {}, [], []
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
            if self.command != "HEAD":
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.close_connection = True

        def refuse(self, status, code, message):
            self.send(status, b'{"error": "no"}', {"X-Error-Code": code, "X-Error-Message": message})

        def do_POST(self):
            try:
                upload(hub, server_name, self)
            except (BrokenPipeError, ConnectionResetError):
                pass

        do_PUT = do_POST

        def answer(self):
            if self.path == "/api/whoami-v2":
                return upload(hub, server_name, self)
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


def upload(hub, server_name, request):
    """A request of an upload."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query)
    step = path.rsplit("/", 2)[-2 if "/preupload/" in path or "/commit/" in path else -1]
    step = path.split("/")[1] if server_name == "storage" or path.startswith("/complete/") else step
    size, fault = int(request.headers.get("Content-Length") or 0), hub.fault(step)
    if isinstance(fault, int):
        request.rfile.read(fault)
        request.close_connection = True
        return
    body = request.rfile.read(size)
    if fault and fault[0] == "status":
        return request.send(fault[1], b"" if len(fault) < 4 else fault[3], fault[2])
    answer = lambda value, status=200: request.send(  # noqa: E731
        status, json.dumps(value).encode(), {"Content-Type": "application/json"}
    )
    if server_name == "storage":
        hash_, number = path.split("/")[2], int(query.get("part", ["0"])[0])
        assert request.headers.get("Authorization") is None, "the token is the hub's alone"
        if number:
            hub.parts[hash_, number] = body
        else:
            hub.objects[hash_] = body
        return request.send(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
    token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
    account = hub.accounts.get(token)
    if path.startswith("/complete/"):
        given = json.loads(body)
        parts = [hub.parts[given["oid"], part["partNumber"]] for part in given["parts"]]
        assert [part["etag"] for part in given["parts"]] == [f'"{hashlib.md5(part).hexdigest()}"' for part in parts]
        hub.objects[given["oid"]] = b"".join(parts)
        return answer({})
    if account is None:
        return request.refuse(401, "", f"Invalid credentials: {token}")
    if step == "whoami-v2":
        return answer(account)
    owners = {account["name"], *(each["name"] for each in account.get("orgs", []))}
    if step == "create":
        given = json.loads(body)
        name = f"{given.get('organization', account['name'])}/{given['name']}"
        if name in hub.repositories:
            return answer({"error": "You already created this model repo", "url": f"{hub.url}/{name}"}, 409)
        if name.split("/")[0] not in owners:
            return answer({"error": "You don't have the rights to create a model there"}, 403)
        hub.repositories[name] = Repository({}, token)
        hub.created.append((name, given.get("private", given.get("visibility") == "private")))
        return answer({"url": f"{hub.url}/{name}"})
    name = path.removeprefix("/api/models/").split(".git/")[0] if step == "batch" else "/".join(path.split("/")[3:5])
    name = name.removeprefix("/")
    repository = hub.repositories[name]
    if name.split("/")[0] not in owners:
        return answer({"error": "Forbidden: you need write access"}, 403)
    if step == "preupload":
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if repository.is_large(file["path"]) else "regular",
                "shouldIgnore": False,
                "oid": repository.hash(file["path"]) if file["path"] in repository.files else None,
            }
            for file in json.loads(body)["files"]
        ]
        return answer({"files": files})
    if step == "batch":
        return answer({"transfer": "basic", "objects": [lfs_object(hub, one) for one in json.loads(body)["objects"]]})
    lines = [json.loads(line) for line in body.splitlines()]
    for line in lines[1:]:
        value = line["value"]
        data = hub.objects[value["oid"]] if line["key"] == "lfsFile" else base64.b64decode(value["content"])
        repository.files[value["path"]] = data
    hub.commits.append((lines[0]["value"]["summary"], [line["value"]["path"] for line in lines[1:]]))
    answer({"commitUrl": f"{hub.url}/{name}/commit/1", "commitOid": "1" * 40})


def lfs_object(hub, asked):
    """Where storage takes an object; nothing for one that is there."""
    if asked["oid"] in hub.objects:
        return asked
    place, header = f"{hub.storage}/put/{asked['oid']}", {}
    if asked["size"] > hub.part:
        parts = -(-asked["size"] // hub.part)
        header = {"chunk_size": str(hub.part)} | {f"{n:05d}": f"{place}?part={n}" for n in range(1, parts + 1)}
        place = f"{hub.url}/complete/{asked['oid']}"
    return asked | {"actions": {"upload": {"href": place, "header": header}}}
