"""A proxy that writes down what clients send: tests/clients_test.py sends it again, without the clients."""
import contextlib
import json
import re
import socket
import threading


class Recorder:
    """Stands between a client and a server; `base_url` is for the client. One request is under way at a time."""

    def __init__(self, url):
        host, port = re.match(r"http://([^:/]+):(\d+)", url).groups()
        self.upstream = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.requests, self.now = [], None
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def step(self, name, status=200, leaves=False):
        """What is sent within is recorded under this name: the reply's status, and whether the client leaves before its end."""
        self.now = {"step": name, "status": status, "leaves": leaves}
        yield
        print(f"  {name}")

    def write(self, path):
        with open(path, "w") as out:
            for request in self.requests:
                out.write(json.dumps(request, ensure_ascii=False) + "\n")

    def _accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.upstream)
            threading.Thread(target=self._pump, args=(client, server, self._note), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, lambda more, held: b""), daemon=True).start()

    def _note(self, more, held):
        """Takes the requests out of what has come so far; returns the rest."""
        held += more
        while b"\r\n\r\n" in held:
            head, rest = held.split(b"\r\n\r\n", 1)
            length = int((re.search(rb"(?i)\r\ncontent-length: *(\d+)", head) or [0, 0])[1])
            if len(rest) < length:
                break
            self.requests.append({**self.now, "head": head.decode() + "\r\n\r\n", "body": rest[:length].decode()})
            held = rest[length:]
        return held

    @staticmethod
    def _pump(source, sink, note):
        held = b""
        with contextlib.suppress(OSError):
            while more := source.recv(65536):
                held = note(more, held)
                sink.sendall(more)
        for s in source, sink:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
