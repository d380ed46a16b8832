"""The OpenAPI document and the page that shows it. The page's scripts come from this service and from nowhere else."""

from __future__ import annotations

import functools
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from api.http.problems import RefusalError, json_bytes

router = APIRouter(include_in_schema=False)

ASSETS = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "start.js": "text/javascript; charset=utf-8",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>PipePlan: HTTP service</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script src="docs/assets/start.js"></script>
</body>
</html>
"""
START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    return Response(json_bytes(request.app.openapi()), media_type="application/json")


@router.get("/docs")
def docs() -> Response:
    """Swagger UI; the browser itself is told to load nothing from elsewhere."""
    return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})


@router.get("/docs/assets/{name}")
def asset(name: str) -> Response:
    """One of the three files that the page needs."""
    if name not in ASSETS:
        raise RefusalError(404, "not-found", "there is no such file")
    return Response(_asset(name), media_type=ASSETS[name], headers={"Cache-Control": "max-age=86400"})


@functools.cache
def _asset(name: str) -> bytes:
    if name == "start.js":
        return START.encode()
    return files("fastapi_offline").joinpath("static", name).read_bytes()
