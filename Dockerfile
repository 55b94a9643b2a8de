# Server image: Python, the packages of requirements/ pinned by version and hash, and Antiphon. No build tools.
#
#   docker build -t antiphon .                          for engines that run elsewhere
#   docker build -t antiphon --target with-model .      includes the built-in model (98 MB more)
#   docker build -t antiphon-sandbox --target sandbox-worker .    runs code, with numpy, pandas, matplotlib and pillow
#   docker run --read-only --tmpfs /tmp -v antiphon:/data -p 8000:8000 -e ANTIPHON_API_KEY=… antiphon
#
# Pin the base image by digest if your registry supports it; the tag moves with every Python or Debian update.

ARG PYTHON=python:3.13-slim-trixie

# ---- build: builds the wheel and the environment. Only /opt/antiphon is copied into the image.
FROM ${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
WORKDIR /build

# Dependencies first: these layers stay cached until the lock files change.
COPY requirements/run.lock requirements/image.lock requirements/
RUN python -m venv --without-pip /opt/antiphon
RUN pip --python /opt/antiphon install --require-hashes --only-binary :all: -r requirements/image.lock
# `run.lock` includes Hatchling, which builds the wheel; it is not copied into the image.
RUN pip install --require-hashes --only-binary :all: -r requirements/run.lock

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist .
RUN pip --python /opt/antiphon install --no-deps --no-index --compile dist/*.whl

# ---- model: downloads the built-in model. This needs pip, which the final image does not contain.
FROM build AS model
RUN pip install --no-deps --no-index dist/*.whl && XDG_CACHE_HOME=/cache antiphon pull

# ---- sandbox-packages: what code in containers may import.
FROM build AS sandbox-packages
RUN python -m venv --without-pip /opt/sandbox
RUN pip --python /opt/sandbox install --require-hashes --only-binary :all: -r src/antiphon/sandbox/packages.lock

# ---- server
FROM ${PYTHON} AS server
# OpenMP, for the embedded engine: slim images lack it.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
# A numeric user id, so that Kubernetes can verify runAsNonRoot; no home directory, no shell.
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin antiphon \
    && install -d -o 10001 -g 10001 -m 0700 /data /cache \
    && rm -rf /usr/local/lib/python*/site-packages/pip* /usr/local/lib/python*/ensurepip /usr/local/bin/pip*
COPY --from=build /opt/antiphon /opt/antiphon
# The default store is /data/antiphon/antiphon.db (ANTIPHON_STORE overrides it). Apart from it, only /tmp is written.
ENV PATH=/opt/antiphon/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_DATA_HOME=/data \
    XDG_CACHE_HOME=/cache \
    ANTIPHON_HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
# Liveness, not readiness: a container must not be restarted because its engine is unavailable. Proxies use /ready.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ.get('ANTIPHON_PORT', '8000') + '/health', timeout=2)"]
# On SIGTERM (`docker stop`) the server finishes streams within --shutdown-grace (10 s, Docker's default timeout).
# If you raise it, raise --stop-timeout too.
ENTRYPOINT ["antiphon"]
CMD ["serve"]

FROM server AS with-model
COPY --from=model --chown=10001:10001 /cache /cache

FROM server AS sandbox-worker
COPY --from=sandbox-packages /opt/sandbox /opt/sandbox
# The port is that of the health check.
ENV ANTIPHON_SANDBOX_PYTHON=/opt/sandbox/bin/python \
    ANTIPHON_PORT=8700
CMD ["sandbox-worker", "--listen", "0.0.0.0:8700"]

# The default target.
FROM server
