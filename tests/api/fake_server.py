"""A real server with played searches: `fake_server.py DATABASE DESCRIPTOR`, a listening socket to inherit."""

from __future__ import annotations

import socket
import sys

import uvicorn
from http_service import PLAYED

from api.http.app import create_app
from api.http.server import server_config
from api.http.settings import Settings

if __name__ == "__main__":
    settings = Settings(database=sys.argv[1], num_solvers=1, body_timeout_s=1.0)
    config = server_config(create_app(settings, worker=PLAYED), settings)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[2]))])
