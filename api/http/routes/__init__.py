"""One module per group of routes; `api.http.app` mounts them."""
