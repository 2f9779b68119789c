#!/usr/bin/env python3
"""Clients of keel serve, by sockets alone: good ones, whose texts are compared, and slow, broken, oversized and
impatient ones. serve_client.py PORT PID EXPECTED REQUESTS ROUNDS [figures]: EXPECTED has a line of JSON for each text
that is known. Prints what is wrong, and in the end a line of counts; or with `figures` how long requests took."""
import itertools
import json
import random
import socket
import struct
import sys
import threading
import time

port, pid, expected_path, requests, rounds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
figures = len(sys.argv) > 6
expected = [json.loads(line) for line in open(expected_path, encoding="utf-8")]
THREADS = 12
lock = threading.Lock()
wrong, counts, times = [], {}, []


def note(kind, why=None):
    with lock:
        counts[kind] = counts.get(kind, 0) + 1
        if why is not None:
            wrong.append(f"{kind}: {why}")


def connect():
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def read_all(s):
    data = b""
    while True:
        try:
            more = s.recv(65536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more


def split(data):
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    code = int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") else 0
    if b"transfer-encoding: chunked" in head.lower():
        plain = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            n = int(size or b"0", 16)
            plain, body = plain + rest[:n], rest[n + 2:]
            if n == 0:
                break
        body = plain
    return code, head, body


def post(s, body, extra=""):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body)


def ask(request):
    with connect() as s:
        post(s, request)
        return split(read_all(s))


def get(path):
    with connect() as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return split(read_all(s))


def good(n):
    want = expected[n % len(expected)]
    request = {k: v for k, v in want.items() if k != "text"}
    for _ in range(100):
        begun = time.monotonic()
        code, head, body = ask(request)
        if code != 503:
            break
        if b"retry-after:" not in head.lower():
            return note("good", "503 without Retry-After")
        note("busy")
        time.sleep(0.05 + random.random() * 0.2)
    if code != 200:
        return note("good", f"status {code} {body[:200]}")
    answer = json.loads(body)
    if answer["choices"][0]["text"] != want["text"]:
        return note("good", f"another text: {answer['choices'][0]['text']!r}, wanted {want['text']!r}")
    with lock:
        times.append(time.monotonic() - begun)
    return note("good")


def stream(n):
    want = expected[n % len(expected)]
    request = {k: v for k, v in want.items() if k != "text"}
    request["stream"] = True
    for _ in range(100):
        code, _, body = ask(request)
        if code != 503:
            break
        time.sleep(0.05 + random.random() * 0.2)
    events = [e[6:] for e in body.decode().split("\n\n") if e.startswith("data: ")]
    if code != 200 or not events or events[-1] != "[DONE]":
        return note("stream", f"status {code} {body[-200:]}")
    parts = [json.loads(e) for e in events[:-1]]
    if "".join(p["choices"][0]["text"] for p in parts) != want["text"]:
        return note("stream", "another text")
    ends = [p["choices"][0]["finish_reason"] for p in parts]
    if ends[-1] != "length" or any(e is not None for e in ends[:-1]):
        return note("stream", f"ends {ends}")
    return note("stream")


BAD = [b"", b"{", b"[]", b"null", b'{"prompt":1}', b'{"prompt":"a","prompt":"b"}', b'{"max_tokens":0}', b'{"max_tokens":1.5}',
       b'{"temperature":-1}', b'{"temperature":"warm"}', b'{"top_p":0}', b'{"top_k":-1}', b'{"seed":-1}', b'{"stream":1}',
       b'{"stop":""}', b'{"stop":["a","b","c","d","e"]}', b'{"stop":[1]}', b'{"stop":7}', b'{"echo":true}', b'{"model":"another"}', b'{"prompt":"\xff"}', b'{"prompt":"a\\u0000b"}', b"[" * 3000,
       b'{"max_tokens":100000}', b'{"prompt":"\xc3\xa9"}']
TWO_ENDS = ["Content-Length: 1\r\n", "Transfer-Encoding: chunked\r\n", "Transfer-Encoding : chunked\r\n"]  # beside the right length
UNREAD = ["gzip", "identity", "gzip, chunked", "chunked;x=1"]  # encodings that no length is known of: not waited for
bad = itertools.cycle([(None, f"Transfer-Encoding: {e}\r\n") for e in UNREAD] + [(body, "") for body in BAD] + [(b"2\r\n{}\r\n0\r\n\r\n", end) for end in TWO_ENDS])


def broken(_):
    with lock:
        body, extra = next(bad)
    with connect() as s:
        if body is None:
            s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{extra}\r\n".encode())
        else:
            post(s, body, extra)
        code, _, answer = split(read_all(s))
    right = code == (501 if body is None else 400) and b'"error"' in answer
    return note("broken", None if right else f"{extra} {(body or b'')[:40]}: status {code} {answer[:200]}")


def oversized(n):
    with connect() as s:
        try:
            if n % 2 == 0:  # told beforehand
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n{")
            else:  # found out on the way
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(40):
                    s.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
                s.sendall(b"0\r\n\r\n")
        except (ConnectionResetError, BrokenPipeError):
            pass
        code, _, body = split(read_all(s))
    return note("oversized", None if code == 413 else f"status {code} {body[:100]}")


def slow(n):
    """A byte now and then, which a limit of silence would let pass."""
    text = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n" + b" " * 49
    begun = time.monotonic()
    with connect() as s:
        s.settimeout(0.2)
        for at in range(300):
            try:
                s.sendall(text[at:at + 1])
                if s.recv(1) == b"":
                    break
            except socket.timeout:
                continue
            except OSError:
                break
        else:
            return note("slow", "is still let in after 60 s")
    return note("slow", None if time.monotonic() - begun < 40 else "was let in for more than 40 s")


def leaves(n):
    """Asks for a long text, and is gone, with a stream by an end that is as a half-close until something is sent; or goes
    in the middle of asking; or says something else."""
    with connect() as s:
        if n % 3 == 0:
            post(s, {"max_tokens": 1500, "stream": n % 2 == 0})
            time.sleep(0.05)
            if n % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif n % 3 == 1:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        else:
            s.sendall(bytes(random.Random(n).randrange(256) for _ in range(300)) + b"\r\n\r\n")
            read_all(s)
    return note("leaves")


def half(n):
    """Says by the end of what it sends that it asks no more, and waits for its answer."""
    want = expected[n % len(expected)]
    for _ in range(100):
        with connect() as s:
            post(s, {k: v for k, v in want.items() if k != "text"})
            s.shutdown(socket.SHUT_WR)
            code, _, body = split(read_all(s))
        if code != 503:
            break
        time.sleep(0.05 + random.random() * 0.2)
    right = code == 200 and json.loads(body)["choices"][0]["text"] == want["text"]
    return note("half", None if right else f"status {code} {body[:200]}")


def let_go(s):
    """Has the server closed its end? By the system's table: here its end shows behind all data, which nobody takes."""
    mine = s.getsockname()[1]
    with open("/proc/net/tcp") as table:
        for line in table:
            words = line.split()
            if words[1].endswith(f":{port:04X}") and words[2].endswith(f":{mine:04X}"):
                return words[3] != "01"  # established
    return True


def stalls(n):
    """Takes nothing of a stream that is more than the systems hold on the way: is let go, and not kept for ever."""
    for _ in range(100):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", port))
            s.settimeout(60)
            post(s, {"max_tokens": 2000, "stream": True})
            until = time.monotonic() + 120
            while not let_go(s) and time.monotonic() < until:
                time.sleep(0.1)
            over = let_go(s)
            data = read_all(s)
        if not data.startswith(b"HTTP/1.1 503"):
            break
        time.sleep(0.05 + random.random() * 0.2)
    return note("stalls", None if over and b"[DONE]" not in data else f"was let in: {data[-60:]}")


def mixed(n):
    turn = n % 10
    if figures:
        tenth, rare, usual = n // 10, [slow, half, stalls], [broken, oversized, leaves, stream]
        kind = good if turn else rare[tenth // 16 % 3] if tenth % 16 == 0 else usual[tenth % 4]
    else:
        ninth = slow if n % 20 == 9 else {19: half, 39: stalls}.get(n % 80, good)
        kind = [good, good, stream, good, broken, stream, oversized, broken, leaves, ninth][turn]
    try:
        kind(n // 10 + turn)
    except Exception as e:  # a client must not end by what it is told
        note(kind.__name__, repr(e))


def work(numbers):
    while True:
        with lock:
            n = next(numbers, None)
        if n is None:
            return
        mixed(n)


def run_round():
    numbers = iter(range(requests))
    threads = [threading.Thread(target=work, args=(numbers,)) for _ in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def metrics():
    _, _, body = get("/metrics")
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in body.decode().splitlines() if line and line[0] != "#"}


def settle():
    """Until nothing is under way: those who left are given up, and their connections closed."""
    while True:
        m = metrics()
        if m["keel_serve_active"] == m["keel_serve_queued"] == 0 and m["keel_serve_connections"] == 1:
            return m
        time.sleep(0.1)


def descriptors(wanted=0):
    """Once there are no more than wanted, or after a minute: the connection that the metrics came by is closed behind them."""
    import os
    for _ in range(600 if wanted else 1):
        count = len(os.listdir(f"/proc/{pid}/fd"))
        if count <= wanted:
            break
        time.sleep(0.1)
    return count


def memory_kb():
    for line in open(f"/proc/{pid}/status", encoding="ascii"):
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    return 0


run_round()
m = settle()
before = descriptors(), memory_kb()
for _ in range(rounds - 1):
    run_round()
    m = settle()
after = descriptors(before[0]), memory_kb()
for line in wrong[:20]:
    print("WRONG", line)
if rounds > 1 and after[0] > before[0]:
    print(f"WRONG descriptors: {before[0]} became {after[0]}")
if rounds > 1 and after[1] > before[1] + 1024:
    print(f"WRONG memory: {before[1]} KB became {after[1]} KB")
if m["keel_serve_requests_total"] != m["keel_serve_done_total"] + m["keel_serve_given_up_total"] or m["keel_serve_failed_total"]:
    print("WRONG metrics:", {k: v for k, v in m.items() if "_total" in k})
if figures:
    times.sort()
    print(json.dumps({"requests": sum(counts.values()), "good": len(times), "p50_s": times[len(times) // 2],
                      "p99_s": times[len(times) * 99 // 100], "rss_anon_kb": after[1], "grown_kb": after[1] - before[1]}))
else:
    print("counts", " ".join(f"{k}={v}" for k, v in sorted(counts.items())), f"descriptors={after[0]}", f"grown_kb={after[1] - before[1]}")
sys.exit(1 if wrong else 0)
