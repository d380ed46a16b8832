# The planning service without torch: docker build -t pipeplan . && docker run --rm -p 8000:8000 pipeplan

# Stage 1: a virtual environment. The packages come first, so that a change of the code does not install them again:
# with empty packages in its place, pip sees the project's requirements and nothing of its code.
FROM python:3.11.14-slim-trixie AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /build
COPY pyproject.toml constraints.txt ./
RUN mkdir planner profiles api \
    && touch README.md LICENSE planner/__init__.py profiles/__init__.py api/__init__.py \
    && pip install --constraint constraints.txt hatchling \
    && pip install --constraint constraints.txt --no-build-isolation ".[server,highs]"
COPY README.md LICENSE ./
COPY planner planner/
COPY profiles profiles/
COPY api api/
RUN pip install --no-deps --no-build-isolation --force-reinstall .

# Stage 2: what runs. One fixed user that is not root; /data is the only folder that it can write.
FROM python:3.11.14-slim-trixie
ENV PATH=/opt/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 pipeplan \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin pipeplan \
    && install -d -o 10001 -g 10001 /data
COPY --from=build /opt/venv /opt/venv
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
CMD ["pipeplan", "serve", "--host", "0.0.0.0", "--port", "8000"]
