# Two images:
#   docker build --target master -t elastane-master .
#   docker build --target worker -t elastane-worker .       a base for images with your training script
#
# The worker's torch is PyPI's, with CUDA; another build: --build-arg TORCH_INDEX_URL=... of PyTorch's own index.

ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS source
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt
RUN python3 -m venv --without-pip --symlinks /opt/elastane && python3 -m venv /opt/pip
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY proto proto
COPY shard_service shard_service
COPY master master
COPY worker worker

FROM source AS master-build
RUN /opt/pip/bin/pip --python /opt/elastane/bin/python install . \
 && find /opt/elastane -name '*.pyc' -delete && /opt/elastane/bin/python -m compileall -q /opt/elastane

FROM source AS worker-build
ARG TORCH_INDEX_URL=
RUN /opt/pip/bin/pip --python /opt/elastane/bin/python install ${TORCH_INDEX_URL:+--extra-index-url $TORCH_INDEX_URL} '.[worker]'

FROM ${BASE} AS runtime
# Numbers, not names: Kubernetes' runAsNonRoot can only check numbers.
RUN groupadd --gid 10001 elastane && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin elastane
ENV PATH=/opt/elastane/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
STOPSIGNAL SIGTERM

FROM runtime AS worker
COPY --from=worker-build /opt/elastane /opt/elastane
USER 10001:10001
WORKDIR /workspace
CMD ["elastane", "--help"]

FROM runtime AS master
COPY --from=master-build /opt/elastane /opt/elastane
RUN mkdir -p /var/lib/elastane && chown 10001:10001 /var/lib/elastane
USER 10001:10001
WORKDIR /var/lib/elastane
VOLUME /var/lib/elastane
# Nobody outside the container reaches it before the operator of it has said how callers are told apart:
# give certificates and tokens, or ELASTANE_MASTER_INSECURE=1 on a network of one's own.
ENV ELASTANE_LISTEN=0.0.0.0:50051 ELASTANE_STATE_DIR=/var/lib/elastane/state ELASTANE_LOG_FORMAT=json
EXPOSE 50051
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["elastane", "health"]
ENTRYPOINT ["elastane", "master"]
