# syntax=docker/dockerfile:1
# docker build -t triolet . && docker run -p 127.0.0.1:8000:8000 -e TRIOLET_API_KEY=KEY triolet
# What it needs at run time, and how to mount a checkpoint: docs/deployment.md.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY . .
RUN python3 -m venv /usr/local/lib/triolet \
 && /usr/local/lib/triolet/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt .

FROM python:${PYTHON}-slim
# Compiled kernels are kept in /var/cache/triolet: its own user's folder, which a volume takes over with its owner.
RUN groupadd --gid 10001 triolet \
 && useradd --uid 10001 --gid triolet --no-create-home --home-dir /nonexistent triolet \
 && install --directory --mode 0700 --owner triolet --group triolet /var/cache/triolet
COPY --from=build /usr/local/lib/triolet /usr/local/lib/triolet
ENV PATH=/usr/local/lib/triolet/bin:$PATH XDG_CACHE_HOME=/var/cache PYTHONDONTWRITEBYTECODE=1 TRIOLET_HOST=0.0.0.0
WORKDIR /
USER 10001:10001
VOLUME /var/cache/triolet
EXPOSE 8000
STOPSIGNAL SIGTERM
# Alive is enough: while the model loads, the server listens and /health/ready says so.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["python3", "-c", "import os, urllib.request as r; \
r.urlopen(f'http://127.0.0.1:{os.environ.get(\"TRIOLET_PORT\", 8000)}/health/live', timeout=4)"]
ENTRYPOINT ["triolet"]
CMD ["serve"]
