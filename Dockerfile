# The master as a container, without torch:
#
#   docker build --target master -t elastane-master .
#   docker run -p 127.0.0.1:50051:50051 -v elastane:/var/lib/elastane --read-only --tmpfs /tmp \
#       -e ELASTANE_MASTER_INSECURE=1 elastane-master
#
# The port of the command is open to this machine alone, which is why --insecure is right there; docs/security.md has
# certificates and tokens for any other.

ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt
RUN python3 -m venv --without-pip --symlinks /opt/elastane && python3 -m venv /opt/pip
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY proto proto
COPY shard_service shard_service
COPY master master
COPY worker worker
RUN /opt/pip/bin/pip --python /opt/elastane/bin/python install . \
 && find /opt/elastane -name '*.pyc' -delete && /opt/elastane/bin/python -m compileall -q /opt/elastane

FROM ${BASE} AS master
# Numbers, not names: Kubernetes' runAsNonRoot can only check numbers.
RUN groupadd --gid 10001 elastane \
 && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin elastane
COPY --from=build /opt/elastane /opt/elastane
RUN mkdir -p /var/lib/elastane && chown 10001:10001 /var/lib/elastane
USER 10001:10001
WORKDIR /var/lib/elastane
VOLUME /var/lib/elastane
ENV PATH=/opt/elastane/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
# The master refuses to start here until it is told how callers are told apart, or that none need be.
ENV ELASTANE_LISTEN=0.0.0.0:50051 ELASTANE_STATE_DIR=/var/lib/elastane/state ELASTANE_LOG_FORMAT=json
EXPOSE 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["elastane", "health"]
ENTRYPOINT ["elastane", "master"]
