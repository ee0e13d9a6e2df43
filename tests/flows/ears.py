"""A web server and a mail server that keep what they receive."""

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    def do_POST(self) -> None:
        self.server.heard.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(500 if self.path.startswith("/broken") else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as takes a message in."""

    def handle(self) -> None:
        self.say("220 here")
        while line := self.rfile.readline().decode().strip().upper():
            if line == "DATA":
                self.say("354 go on")
                text = ""
                while (part := self.rfile.readline().decode()) != ".\r\n":
                    text += part
                self.server.heard.append(text)
            elif line == "QUIT":
                self.say("221 bye")
                return
            self.say("250 fine")

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


def serving(server: socketserver.BaseServer) -> Iterator[socketserver.BaseServer]:
    server.heard = []
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def webhook(server: socketserver.BaseServer, path: str) -> str:
    """The address of the web server as apprise writes it."""
    return f"json://127.0.0.1:{server.server_address[1]}/{path}"


def messages(hook: socketserver.BaseServer) -> list[tuple[str, str]]:
    """The event and the first line of each message that the web server has heard."""
    return [(post["title"].split()[1], post["message"].split("\n")[0]) for _, post in hook.heard]
