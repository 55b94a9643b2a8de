# The image of a server: Python, its packages at the versions and hashes of requirements/, and nothing to build with.
#
#   docker build -t antiphon .                          in front of engines that run elsewhere
#   docker build -t antiphon --target with-model .      with the built-in model in it (98 MB more)
#   docker run --read-only --tmpfs /tmp -v antiphon:/data -p 8000:8000 -e ANTIPHON_API_KEY=… antiphon
#
# Pin the base by digest if your registry allows; the tag is moved with every fix of Python or Debian.

ARG PYTHON=python:3.13-slim-trixie

# ---- build: makes the wheel and the environment. Nothing of this stage but /opt/antiphon is in the image.
FROM ${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
WORKDIR /build

# What the server runs on comes first: these layers stay as long as the lock files do.
COPY requirements/run.lock requirements/image.lock requirements/
RUN python -m venv --without-pip /opt/antiphon
RUN pip --python /opt/antiphon install --require-hashes --only-binary :all: -r requirements/image.lock
# Hatchling, which makes the wheel, is among what `run.lock` pins; it stays in this stage.
RUN pip install --require-hashes --only-binary :all: -r requirements/run.lock

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist .
RUN pip --python /opt/antiphon install --no-deps --no-index --compile dist/*.whl

# ---- model: fetches the built-in model, with pip, which the image itself does not have.
FROM build AS model
RUN pip install --no-deps --no-index dist/*.whl && XDG_CACHE_HOME=/cache antiphon pull

# ---- server
FROM ${PYTHON} AS server
# A number, so that Kubernetes can tell that it is not root; no home, no shell.
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin antiphon \
    && install -d -o 10001 -g 10001 -m 0700 /data /cache \
    && rm -rf /usr/local/lib/python*/site-packages/pip* /usr/local/lib/python*/ensurepip /usr/local/bin/pip*
COPY --from=build /opt/antiphon /opt/antiphon
# The store is /data/antiphon/antiphon.db unless ANTIPHON_STORE says otherwise. Nothing else is written but /tmp.
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
# Alive, not ready: a container whose engine is away is not to be restarted. Proxies look at /ready.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ.get('ANTIPHON_PORT', '8000') + '/health', timeout=2)"]
# SIGTERM, which `docker stop` sends, lets streams end within --shutdown-grace (10 s, as long as Docker waits by
# default: give it more with --stop-timeout when you raise that).
ENTRYPOINT ["antiphon"]
CMD ["serve"]

FROM server AS with-model
COPY --from=model --chown=10001:10001 /cache /cache

# What `docker build` makes if no --target is named.
FROM server
