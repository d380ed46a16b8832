"""The HTTP service: plans as jobs, solved in processes of their own. Start it with `api.http.server.serve`."""
