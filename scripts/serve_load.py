#!/usr/bin/env python3
"""Loads a server with streams of completions, and says tokens/s, time to first token and time between tokens.

    scripts/serve_load.py [--url http://127.0.0.1:8000] [--clients 1,8,64] [--prompt 256] [--answer 512] [--seconds 10]

Each client asks again as soon as its answer ends. Models are asked in turn: --models all (base and adapters), or names
separated by commas. Prompts are token ids. Clients are processes of their own, so that they do not wait for each other.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import random
import time
import urllib.parse


def client(url, models, number, arguments, start, out):
    at = urllib.parse.urlsplit(url)
    words = random.Random(number)
    connection = http.client.HTTPConnection(at.hostname, at.port)
    gaps, firsts, tokens, asked = [], [], [], 0
    start.wait()
    begin = time.monotonic()
    end = begin + arguments.seconds
    while time.monotonic() < end:
        body = {
            "model": models[(number + asked) % len(models)],
            "prompt": [words.randrange(1000, 100000) for _ in range(arguments.prompt)],
            "max_tokens": arguments.answer,
            "temperature": 1,
            "seed": number,
            "ignore_eos": True,
            "stream": True,
        }
        asked += 1
        sent = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status} {answer.read()[:300]}")
        last = None
        for line in iter(answer.readline, b""):
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            if last is None:
                firsts.append(now - sent)
            else:
                gaps.append(now - last)
            last = now
            tokens.append(now - begin)
        answer.read()
    out.put((tokens, firsts, gaps))


def share(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] * 1000 if values else float("nan")


def load(models, clients, arguments):
    start, out = multiprocessing.Event(), multiprocessing.Queue()
    asking = [
        multiprocessing.Process(target=client, args=(arguments.url, models, n, arguments, start, out))
        for n in range(clients)
    ]
    for one in asking:
        one.start()
    time.sleep(0.5)
    start.set()
    results = [out.get(timeout=arguments.seconds + 30) for _ in asking]
    for one in asking:
        one.join()
    # The first fifth is a start that a service has once.
    begin, end = arguments.seconds / 5, arguments.seconds
    tokens = sum(sum(begin <= at < end for at in r[0]) for r in results)
    firsts, gaps = sum((r[1] for r in results), []), sum((r[2] for r in results), [])
    return {
        "clients": clients,
        "tokens_per_second": round(tokens / (end - begin)),
        "first_ms": [round(share(firsts, p), 1) for p in (0.5, 0.99)],
        "between_ms": [round(share(gaps, p), 2) for p in (0.5, 0.99)],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--models", default="all")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--answer", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    at = urllib.parse.urlsplit(arguments.url)
    connection = http.client.HTTPConnection(at.hostname, at.port)
    connection.request("GET", "/v1/models")
    models = [one["id"] for one in json.load(connection.getresponse())["data"]]
    if arguments.models != "all":
        models = arguments.models.split(",")
    for clients in map(int, arguments.clients.split(",")):
        print(json.dumps(load(models, clients, arguments)), flush=True)


if __name__ == "__main__":
    main()
