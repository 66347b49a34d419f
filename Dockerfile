# Three images:
#
#   docker build --target master   -t elastane-master   .      the control plane, without torch
#   docker build --target worker   -t elastane-worker   .      a base for images with your training script
#   docker build --target operator -t elastane-operator .      ElasticJobs in Kubernetes
#
# docs/deploy.md says how they are run; the shortest way to a master on this machine:
#
#   docker run -p 127.0.0.1:50051:50051 -v elastane:/var/lib/elastane --read-only --tmpfs /tmp \
#       -e ELASTANE_MASTER_INSECURE=1 elastane-master
#
# That port is open to this machine alone, which is why --insecure is right there; docs/security.md has
# certificates and tokens for any other.
#
# PyPI's torch for x86-64 brings CUDA. For processors alone, or another CUDA, name an index of PyTorch's own:
#
#   docker build --target worker --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu -t elastane-worker .

ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS source
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt
RUN python3 -m venv --without-pip --symlinks /opt/elastane && python3 -m venv /opt/pip
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY common common
COPY proto proto
COPY shard_service shard_service
COPY scheduler scheduler
COPY planner planner
COPY master master
COPY worker worker
COPY deploy/elastane_operator deploy/elastane_operator
COPY examples/digits_cnn.py examples/digits_cnn.py
COPY examples/service examples/service

FROM source AS master-build
RUN /opt/pip/bin/pip --python /opt/elastane/bin/python install '.[tracing]' \
 && find /opt/elastane -name '*.pyc' -delete && /opt/elastane/bin/python -m compileall -q /opt/elastane

FROM source AS operator-build
RUN /opt/pip/bin/pip --python /opt/elastane/bin/python install '.[operator]' \
 && find /opt/elastane -name '*.pyc' -delete && /opt/elastane/bin/python -m compileall -q /opt/elastane

FROM source AS worker-build
ARG TORCH_INDEX_URL=
# With a pip of its own: who builds upon this image installs into the same environment.
RUN python3 -m venv --symlinks --clear /opt/elastane \
 && /opt/elastane/bin/pip install ${TORCH_INDEX_URL:+--extra-index-url $TORCH_INDEX_URL} '.[worker,tracing]'

FROM ${BASE} AS runtime
# Numbers, not names: Kubernetes' runAsNonRoot can only check numbers.
RUN groupadd --gid 10001 elastane \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin elastane
# The root file system may be read-only: nothing is compiled or kept beside the code, and $HOME is a scratch folder.
ENV PATH=/opt/elastane/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
STOPSIGNAL SIGTERM

FROM runtime AS worker
COPY --from=worker-build /opt/elastane /opt/elastane
# A named volume takes over the owner of the folder that it covers.
RUN mkdir -p /workspace /checkpoints && chown 10001:10001 /workspace /checkpoints
USER 10001:10001
WORKDIR /workspace
# What stands behind the image's name are options and script of `elastane run`, or of no other command.
# The first SIGTERM drains: the workers leave at the next step, the last one saves a checkpoint before.
ENTRYPOINT ["elastane", "run"]
CMD ["--help"]

FROM runtime AS operator
COPY --from=operator-build /opt/elastane /opt/elastane
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["elastane-operator"]

FROM runtime AS master
COPY --from=master-build /opt/elastane /opt/elastane
RUN mkdir -p /var/lib/elastane && chown 10001:10001 /var/lib/elastane
USER 10001:10001
WORKDIR /var/lib/elastane
VOLUME /var/lib/elastane
# The master refuses to start here until it is told how callers are told apart, or that none need be.
ENV ELASTANE_LISTEN=0.0.0.0:50051 ELASTANE_STATE_DIR=/var/lib/elastane/state ELASTANE_LOG_FORMAT=json
# gRPC, and HTTP where ELASTANE_HTTP=0.0.0.0:8080 asks for it.
EXPOSE 50051 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["elastane", "health"]
ENTRYPOINT ["elastane", "master"]
