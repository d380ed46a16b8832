"""A real server: `fake_server.py DATABASE DESCRIPTOR WORKER`; it inherits the listening socket."""

from __future__ import annotations

import socket
import sys

import uvicorn

from api.http.app import create_app
from api.http.server import server_config
from api.http.settings import Settings

if __name__ == "__main__":
    settings = Settings(database=sys.argv[1], num_solvers=1, body_timeout_s=1.0)
    config = server_config(create_app(settings, worker=(sys.executable, sys.argv[3])), settings)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[2]))])
